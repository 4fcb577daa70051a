"""Workers: one row per process. Their leases are valid while their heartbeats continue."""

import os
import socket
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime

from trinity_db.errors import ConfigError, LeaseLost
from trinity_db.postgres.connection import Transaction, is_pooled
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole
from trinity_db.store import runs

RESCUERS = 4  # rescuers per login: a dead one is noticed only after a lease, and the others keep looking


@dataclass(frozen=True)
class Released:
    """Counts of released rows and groups."""

    experiences: int
    groups: int

    def __bool__(self) -> bool:
        return bool(self.experiences or self.groups)


@dataclass(frozen=True)
class Held:
    """Ids of what a worker works on."""

    experiences: Collection[int] = ()
    groups: Collection[int] = ()


NOTHING = Held()


@dataclass(frozen=True)
class Worker:
    """A process that has not signed off and is not known to be gone."""

    id: int
    role: WorkerRole
    host: str
    pid: int
    started_at: datetime
    is_alive: bool
    """Whether its last heartbeat is within its lease."""

    def __str__(self) -> str:
        return f"{self.role} on {self.host}, pid {self.pid}"


@dataclass(frozen=True)
class Beat:
    """The server's answer to a heartbeat."""

    at: datetime
    """Time on the server's clock."""
    is_to_stop: bool
    """Whether the run was asked to stop since the worker started."""
    is_rescuer: bool
    """Whether this worker releases the leases of dead workers."""


@dataclass(frozen=True)
class Rival:
    """Another worker, the only one of its role in the run."""

    worker_id: int
    heartbeat_at: datetime
    is_silent: bool = field(compare=False)
    """Whether its lease has expired on the server's clock, which may have been changed."""


def register(tx: Transaction, run: runs.Run, role: WorkerRole) -> int:
    """Register this process; returns the worker's id.

    Workers of this host whose process is gone are marked as stopped immediately, so a restart after a crash
    need not wait for their leases to expire.

    Raises:
        ConfigError: if the run's settings were changed since this process read them.
    """
    worker_id = _enter(tx, run, role, exclusive=False)
    assert worker_id is not None
    return worker_id


def register_only(tx: Transaction, run: runs.Run, role: WorkerRole) -> int | None:
    """Register this process as the only worker of its role; None if the server has another.

    A worker whose process or session is gone does not count. All others of the role are marked as gone.

    Raises:
        ConfigError: see register.
    """
    tx.execute(query("stop_lost_rival"), {"run_id": run.id, "role": role})
    worker_id = _enter(tx, run, role, exclusive=True)
    if worker_id is not None:
        replace_others(tx, worker_id)
    return worker_id


def rival(tx: Transaction, run_id: int, role: WorkerRole, lease_seconds: float) -> Rival | None:
    """Return the only worker of the role, which `register_only` found."""
    values = {"run_id": run_id, "role": role, "lease_seconds": lease_seconds}
    row = tx.execute(query("rival"), values).fetchone()
    return Rival(row["id"], row["heartbeat_at"], row["is_silent"]) if row else None


def stop_rival(tx: Transaction, run_id: int, rival: Rival, lease_seconds: float) -> None:
    """Stop a rival that has sent no heartbeat since it was read."""
    tx.execute(query("end_silent_sessions"), {"run_id": run_id, "lease_seconds": lease_seconds})
    tx.execute(query("stop_rival"), {"worker_id": rival.worker_id, "heartbeat_at": rival.heartbeat_at})


def running(tx: Transaction, run_id: int, lease_seconds: float) -> list[Worker]:
    """List the run's workers; those of this host whose process is gone are marked as stopped and excluded."""
    host, workers = socket.gethostname(), []
    values = {"run_id": run_id, "lease_seconds": lease_seconds}
    for row in tx.execute(query("running_workers"), values).fetchall():
        if row["host"] == host and not _is_alive(row["pid"]):
            stop(tx, row["id"])
        else:
            workers.append(Worker(**{**row, "role": WorkerRole(row["role"])}))
    return workers


def newest(tx: Transaction, run: str) -> int | None:
    """Return a run's worker that started last; None before the first, or if the run does not exist."""
    row = tx.execute(query("newest_worker"), {"run": run}).fetchone()
    assert row is not None
    return None if row["id"] is None else int(row["id"])


def all_gone(tx: Transaction, run: runs.Run, lease_seconds: float, action: str) -> None:
    """Check that no worker of a run is alive, and fence off those whose lease has expired.

    Raises:
        ConfigError: if some are alive. The message names them, and how to stop them before the `action`.
    """
    workers = running(tx, run.id, lease_seconds)
    if alive := [str(worker) for worker in workers if worker.is_alive]:
        raise ConfigError(
            f"Run '{run.name}' has workers that are alive ({'; '.join(alive)}): "
            f"trinity-db stop {run.name}, then {action}."
        )
    for worker in workers:
        stop(tx, worker.id)


def sign(session: Transaction, worker_id: int) -> str:
    """Label the session with its worker; returns the session's new name."""
    values = {"worker_id": worker_id, "is_local": is_pooled(session)}
    row = session.execute(query("sign_session"), values).fetchone()
    assert row is not None
    return str(row["name"])


def keep_session(session: Transaction, worker_id: int) -> None:
    """Count the worker as lost when this session ends; no effect behind a connection pooler."""
    if not is_pooled(session):
        session.execute(query("keep_session"), {"worker_id": worker_id})


def replace_others(tx: Transaction, worker_id: int) -> None:
    """Mark all other workers of this role in this run as gone; call it only while holding the place."""
    tx.execute(query("stop_other_workers"), {"worker_id": worker_id})


def beat(tx: Transaction, worker_id: int, lease_seconds: float) -> Beat:
    """Send a heartbeat, which keeps all leases of the worker alive.

    Args:
        lease_seconds: other workers are alive if their last heartbeat is at most this old.

    Raises:
        LeaseLost: if the worker was marked as gone, or replaced.
    """
    values = {"worker_id": worker_id, "rescuers": RESCUERS, "lease_seconds": lease_seconds}
    row = tx.execute(query("heartbeat"), values).fetchone()
    if row is None:
        raise replaced(worker_id)
    return Beat(row["heartbeat_at"], row["is_to_stop"], row["is_rescuer"])


def record_staged(tx: Transaction, worker_id: int, staged: int | None, broken: str | None = None) -> None:
    """Record the version that this worker's node has fetched, or a version that cannot be fetched completely.

    Args:
        staged: the version; None: no other version was fetched.
        broken: address of a version whose objects are missing or damaged.
    """
    tx.execute(query("record_staged"), {"worker_id": worker_id, "staged": staged, "broken": broken})


def record_broadcast(tx: Transaction, worker_id: int, address: str) -> None:
    """Record the host and port where this trainer sends versions by broadcast."""
    tx.execute(query("record_broadcast"), {"worker_id": worker_id, "address": address})


def record_engine_dtype(tx: Transaction, worker_id: int, dtype: str) -> None:
    """Record the number format of this explorer's engine: float32, bfloat16 or float16."""
    tx.execute(query("record_engine_dtype"), {"worker_id": worker_id, "dtype": dtype})


def engine_dtypes(tx: Transaction, run_id: int, lease_seconds: float) -> set[str | None]:
    """Return the number formats of live explorers' engines. None: unknown."""
    rows = tx.execute(query("engine_dtypes"), {"run_id": run_id, "lease_seconds": lease_seconds})
    return {row["engine_dtype"] for row in rows}


def hold_place(tx: Transaction, worker_id: int) -> None:
    """Block replacement of this worker until this transaction ends.

    Raises:
        LeaseLost: if it was already replaced.
    """
    if tx.execute(query("hold_place"), {"worker_id": worker_id}).fetchone() is None:
        raise replaced(worker_id)


def stop(tx: Transaction, worker_id: int) -> None:
    """Sign off; the next rescue releases what the worker still holds."""
    tx.execute(query("stop_worker"), {"worker_id": worker_id})


def is_at_work(tx: Transaction, run_id: int, host: str, pid: int, lease_seconds: float) -> bool:
    """Whether a process has a worker that has not stopped and whose last heartbeat is within its lease."""
    values = {"run_id": run_id, "host": host, "pid": pid, "lease_seconds": lease_seconds}
    row = tx.execute(query("process_is_at_work"), values).fetchone()
    assert row is not None
    return bool(row["is_at_work"])


def stop_process(tx: Transaction, run_id: int, host: str, pid: int) -> None:
    """Mark the worker of a process as gone: its place becomes free, and its later writes are refused."""
    tx.execute(query("stop_process"), {"run_id": run_id, "host": host, "pid": pid})


def release_leases(tx: Transaction, run_id: int, lease_seconds: float) -> Released:
    """Release the leases of stopped workers and of those silent for longer than their lease.

    Any process may call it at any time, also concurrently. Rows locked by a silent worker's session are
    released with the next call: this one ends the session.
    """
    values = {"run_id": run_id, "lease_seconds": lease_seconds}
    row = tx.execute(query("release_leases"), values).fetchone()
    assert row is not None
    if row["silent"]:  # called on each heartbeat; scanning all sessions would be too expensive
        tx.execute(query("end_silent_sessions"), values)
    return Released(row["experiences"], row["groups"])


def release_own(tx: Transaction, worker_id: int, keep: Held = NOTHING) -> Released:
    """Release what a worker has claimed but does not process, for example because the claim's reply was lost.

    Args:
        keep: what it is working on.
    """
    kept = {"keep": [*keep.experiences], "keep_groups": [*keep.groups]}
    row = tx.execute(query("release_own_leases"), {"worker_id": worker_id, **kept}).fetchone()
    assert row is not None
    return Released(row["experiences"], row["groups"])


def replaced(worker_id: int) -> LeaseLost:
    """Error for a worker that was replaced."""
    return LeaseLost(
        f"Worker {worker_id} was marked as gone, and another has its place; everything it wrote is kept."
    )


def _enter(tx: Transaction, run: runs.Run, role: WorkerRole, exclusive: bool) -> int | None:
    running(tx, run.id, lease_seconds=0)
    entry = {
        "run_id": run.id,
        "role": role,
        "setting_id": run.setting_id,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "exclusive": exclusive,
    }
    row = tx.execute(query("register_worker"), entry).fetchone()
    runs.check_setting(tx, run)
    return int(row["id"]) if row else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
