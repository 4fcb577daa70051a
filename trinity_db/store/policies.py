"""Policy versions: published by the trainer with a checkpoint, picked up by explorers."""

from dataclasses import dataclass
from pathlib import Path

from trinity_db.database import Transaction
from trinity_db.errors import LeaseLost
from trinity_db.schema.queries import query
from trinity_db.store import evaluations, runs


@dataclass(frozen=True)
class PolicyVersion:
    """A published version whose checkpoint is there."""

    version: int
    step: int
    checkpoint: Path
    checkpoint_hash: str


def publish(tx: Transaction, run_id: int, policy: PolicyVersion, worker_id: int | None = None) -> None:
    """Record a version; by that its checkpoint includes every batch committed since the one before.

    The evaluations that the configuration wants of it begin in the same transaction.
    Call it when the files are safe on disk, never before. Saying it again changes nothing. All
    versions but the first name the worker that committed their last step.

    Raises:
        LeaseLost: another trainer took the run over, and this version's steps were reopened.
    """
    values = {
        "run_id": run_id,
        "version": policy.version,
        "step": policy.step,
        "checkpoint": str(policy.checkpoint),
        "checkpoint_hash": policy.checkpoint_hash,
        "worker_id": worker_id,
    }
    if tx.execute(query("publish_version"), values).rowcount:
        tx.execute(query("include_batches"), values)
        evaluations.begin_due(tx, run_id, policy.version)
        runs.announce(tx, run_id)
    elif tx.execute(query("find_version"), values).fetchone() is None:
        raise LeaseLost(f"Version {policy.version} was not published: another trainer took the run over.")


def newest(tx: Transaction, run_id: int) -> PolicyVersion | None:
    """The newest version whose checkpoint is there; None before the first."""
    found = with_checkpoint(tx, run_id, limit=1)
    return found[0] if found else None


def with_checkpoint(tx: Transaction, run_id: int, limit: int | None = None) -> list[PolicyVersion]:
    """Versions whose checkpoint was not pruned, newest first."""
    rows = tx.execute(query("versions_with_checkpoint"), {"run_id": run_id, "limit": limit})
    return [
        PolicyVersion(row["version"], row["step"], Path(row["checkpoint"]), row["checkpoint_hash"])
        for row in rows
    ]


def latest_version(tx: Transaction, run_id: int) -> int | None:
    """The highest version ever published, withdrawn ones included: no number is used twice."""
    row = tx.execute(query("latest_version"), {"run_id": run_id}).fetchone()
    assert row is not None
    version: int | None = row["version"]
    return version


def hold_checkpoint(tx: Transaction, run_id: int, checkpoint: Path) -> bool:
    """Whether a version of the run has this checkpoint; then it stays while this transaction lasts."""
    values = {"run_id": run_id, "checkpoint": str(checkpoint)}
    return tx.execute(query("hold_checkpoint"), values).fetchone() is not None


def relocate(tx: Transaction, run_id: int, policy: PolicyVersion) -> None:
    """Say where a version's files are now: the same files, by their hash."""
    values = {
        "run_id": run_id,
        "version": policy.version,
        "checkpoint": str(policy.checkpoint),
        "checkpoint_hash": policy.checkpoint_hash,
    }
    tx.execute(query("relocate_checkpoint"), values)


def prune(tx: Transaction, run_id: int, keep: int) -> list[tuple[int, Path]]:
    """Forget all but the newest `keep` checkpoints and version 0; returns which versions and folders."""
    tx.execute(query("lock_checkpoints"), {"run_id": run_id})
    rows = tx.execute(query("prune_checkpoints"), {"run_id": run_id, "keep": keep})
    return [(row["version"], Path(row["checkpoint"])) for row in rows]
