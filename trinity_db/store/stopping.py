"""Ask a run to stop: its workers, on any node, read the request with their next heartbeat.

The time of the request is kept and never cleared. A worker that starts later ignores it, so the command that
started the run can resume it.
"""

from dataclasses import dataclass
from datetime import datetime

from trinity_db.errors import ConfigError
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import RunKind, RunState
from trinity_db.store import runs, workers
from trinity_db.store.workers import Worker


@dataclass(frozen=True)
class StopRequest:
    """A request to stop."""

    at: datetime
    """Time on the server's clock."""
    workers: list[Worker]
    """Workers that were alive."""


def ask(tx: Transaction, run: runs.Run, lease_seconds: float, *, must_work: bool = True) -> StopRequest:
    """Ask all workers of a run to finish their current work, release their leases and exit.

    Args:
        must_work: raise an error if none of them is alive.

    Raises:
        ConfigError: if none of them is alive. Nothing is written then.
    """
    alive = [worker for worker in workers.running(tx, run.id, lease_seconds) if worker.is_alive]
    if not alive and must_work:
        raise ConfigError(_nothing_to_stop(run))
    row = tx.execute(query("ask_to_stop"), {"run_id": run.id}).fetchone()
    assert row is not None
    runs.announce(tx, run.id)
    return StopRequest(row["stop_asked_at"], alive)


def at_work(tx: Transaction, run: runs.Run, asked_at: datetime, lease_seconds: float) -> list[Worker]:
    """Return the workers that were asked and are still alive, without workers that started later."""
    running = workers.running(tx, run.id, lease_seconds)
    return [worker for worker in running if worker.is_alive and worker.started_at <= asked_at]


def asked_at(tx: Transaction, run_id: int) -> datetime | None:
    """Time of the last request to stop; None if there was none, or the run was deleted."""
    row = tx.execute(query("stop_asked_at"), {"run_id": run_id}).fetchone()
    return row["stop_asked_at"] if row else None


def _nothing_to_stop(run: runs.Run) -> str:
    if run.kind == RunKind.DATA:
        return f"'{run.name}' is an imported data set, on which no role works."
    if run.is_being_deleted:
        return f"Run '{run.name}' is being deleted, and no worker of it is alive."
    if run.state == RunState.FINISHED:
        return f"Run '{run.name}' is finished, and no worker of it is alive."
    return (
        f"No worker of run '{run.name}' is alive. Roles that start right now can be stopped in some seconds."
    )
