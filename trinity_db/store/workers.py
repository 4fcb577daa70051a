"""Workers: one row a process. What they hold is alive as long as their heartbeat."""

import os
import socket
from dataclasses import dataclass

from trinity_db.database import Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole


@dataclass(frozen=True)
class Released:
    """How much was given back."""

    experiences: int
    groups: int

    def __bool__(self) -> bool:
        return bool(self.experiences or self.groups)


def register(tx: Transaction, run_id: int, role: WorkerRole) -> int:
    """Enter this process; returns the worker's id.

    Workers of this machine whose process is gone are marked as stopped right away, so that a
    restart after a crash need not wait for their leases to run out.
    """
    host = socket.gethostname()
    for worker in tx.execute(query("running_workers"), {"run_id": run_id}).fetchall():
        if worker["host"] == host and not _is_alive(worker["pid"]):
            tx.execute(query("stop_worker"), {"worker_id": worker["id"]})
    row = tx.execute(
        query("register_worker"), {"run_id": run_id, "role": role, "host": host, "pid": os.getpid()}
    ).fetchone()
    assert row is not None
    return int(row["id"])


def stop(tx: Transaction, worker_id: int) -> None:
    """Say goodbye; the next rescue gives back what the worker still holds."""
    tx.execute(query("stop_worker"), {"worker_id": worker_id})


def release_leases(tx: Transaction, run_id: int, lease_seconds: float) -> Released:
    """Give back what stopped workers, and those silent for longer than their lease, hold."""
    row = tx.execute(query("release_leases"), {"run_id": run_id, "lease_seconds": lease_seconds}).fetchone()
    assert row is not None
    return Released(row["experiences"], row["groups"])


def release_own(tx: Transaction, worker_id: int) -> Released:
    """Give back what a worker has claimed but not in hand, as when the answer to its claim was lost."""
    row = tx.execute(query("release_own_leases"), {"worker_id": worker_id}).fetchone()
    assert row is not None
    return Released(row["experiences"], row["groups"])


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
