"""Policy versions: published by the trainer, picked up by explorers. Some have a checkpoint to go on from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trinity_db.database import Transaction
from trinity_db.errors import LeaseLost
from trinity_db.schema.queries import query
from trinity_db.store import evaluations, runs


@dataclass(frozen=True)
class Checkpoint:
    """What a trainer goes on from at a version, in a folder of its own."""

    folder: Path
    hash: str
    address: str | None = None
    """Of the same files in an object store. None: they are in the folder alone."""


@dataclass(frozen=True)
class PolicyVersion:
    """A published version whose weights are there."""

    version: int
    step: int
    checkpoint: Path
    """The folder of its weights."""
    checkpoint_hash: str
    resumed: Checkpoint | None = None
    """None: no trainer can go on from it, unless it is version 0, the starting model."""
    weights: str | None = None
    """Address of the same files in an object store. None: they are in the folder alone."""
    broadcast_at: str | None = None
    """Where the trainer sends it by broadcast, if it is the newest one. None: it does not."""

    @property
    def is_start(self) -> bool:
        """Whether a trainer can go on from it."""
        return self.version == 0 or self.resumed is not None

    @property
    def folders(self) -> list[Path]:
        """Those of its weights and of its checkpoint. In runs of before these are one."""
        resumed = [self.resumed.folder] if self.resumed else []
        return list(dict.fromkeys([self.checkpoint, *resumed]))


@dataclass(frozen=True)
class Pruned:
    """What need not stay as it is."""

    deleted: list[tuple[int, Path]]
    """Versions that are forgotten, and the folders to delete."""
    packable: set[int]
    """Versions whose weights stay, and need not be whole."""


def publish(tx: Transaction, run_id: int, policy: PolicyVersion, worker_id: int | None = None) -> None:
    """Record a version; it includes every batch committed since the one before.

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
        "weights": policy.weights,
        "worker_id": worker_id,
    }
    if tx.execute(query("publish_version"), values).rowcount:
        tx.execute(query("include_batches"), values)
        evaluations.begin_due(tx, run_id, policy.version)
        runs.announce(tx, run_id)
    elif tx.execute(query("find_version"), values).fetchone() is None:
        raise LeaseLost(f"Version {policy.version} was not published: another trainer took the run over.")


def record_checkpoint(tx: Transaction, run_id: int, version: int, checkpoint: Checkpoint) -> None:
    """Record what a trainer goes on from at a version. Saying it again changes nothing.

    Call it in a transaction that holds the trainer's place, when the files are safe on disk.

    Raises:
        LeaseLost: the version was withdrawn, so another trainer took the run over.
    """
    values = {"run_id": run_id, "version": version} | named(checkpoint)
    if not tx.execute(query("record_checkpoint"), values).rowcount:
        raise LeaseLost(f"Version {version} has no checkpoint: another trainer took the run over.")


def record_upload(tx: Transaction, run_id: int, version: int, checkpoint: Checkpoint) -> None:
    """Record where a checkpoint is in an object store, once all of it is there."""
    values = {
        "run_id": run_id,
        "version": version,
        "resume_hash": checkpoint.hash,
        "resume_address": checkpoint.address,
    }
    tx.execute(query("record_upload"), values)


def newest(tx: Transaction, run_id: int) -> PolicyVersion | None:
    """The newest version whose weights are there; None before the first."""
    row = tx.execute(query("newest_version"), {"run_id": run_id}).fetchone()
    return None if row is None else _version(**row)


def with_checkpoint(tx: Transaction, run_id: int) -> list[PolicyVersion]:
    """Versions whose weights were not pruned, newest first."""
    rows = tx.execute(query("versions_with_checkpoint"), {"run_id": run_id})
    return [_version(**row) for row in rows]


def folders_of_others(tx: Transaction, run_id: int) -> list[Path]:
    """The folders of all weights that other runs name. Weights that they started from may be this run's."""
    rows = tx.execute(query("folders_of_others"), {"run_id": run_id})
    return [Path(row["checkpoint"]) for row in rows]


def latest_version(tx: Transaction, run_id: int) -> int | None:
    """The highest version ever published, withdrawn ones included: no number is used twice."""
    row = tx.execute(query("latest_version"), {"run_id": run_id}).fetchone()
    assert row is not None
    version: int | None = row["version"]
    return version


def seconds_since(tx: Transaction, run_id: int, version: int) -> float:
    """How long ago a version was published, in seconds."""
    row = tx.execute(query("seconds_since_version"), {"run_id": run_id, "version": version}).fetchone()
    assert row is not None
    return float(row["seconds"])


def hold_checkpoint(tx: Transaction, run_id: int, checkpoint: Path) -> bool:
    """Whether a version of the run has its weights here; then they stay while this transaction lasts."""
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
    tx.execute(query("relocate_checkpoint"), values | named(policy.resumed))


def record_weights(tx: Transaction, run_id: int, policy: PolicyVersion) -> None:
    """Record where a version's files are in an object store, once all of them are there."""
    values = {
        "run_id": run_id,
        "version": policy.version,
        "checkpoint_hash": policy.checkpoint_hash,
        "weights": policy.weights,
    }
    tx.execute(query("record_weights"), values)
    runs.announce(tx, run_id)


def broken_weights(tx: Transaction, run_id: int) -> list[PolicyVersion]:
    """Versions whose objects explorers found missing or damaged."""
    rows = tx.execute(query("broken_weights"), {"run_id": run_id})
    return [_version(**row) for row in rows]


def prune(
    tx: Transaction,
    run_id: int,
    keep: int,
    every: int | None = None,
    best: str | None = None,
    saving: int | None = None,
    uploading: int | None = None,
    packed: Sequence[int] = (),
) -> Pruned:
    """Forget all but the newest `keep` checkpoints with their weights, and the newest `keep` weights.

    Those of version 0 stay, and the newest checkpoint in an object store.

    Args:
        every: weights of versions whose step is a multiple of this stay too.
        best: a metric; the weights of the version whose step has its highest value stay too. `-metric`: its
            lowest.
        saving: a version whose checkpoint is being written; its weights stay too.
        uploading: a version whose checkpoint is being uploaded; it stays too.
        packed: versions whose weights stay as deltas if they need not stay whole.
    """
    values = {
        "run_id": run_id,
        "keep": keep,
        "every": every,
        "best": best and best.removeprefix("-"),
        "direction": -1 if best and best.startswith("-") else 1,
        "saving": saving,
        "uploading": uploading,
        "packed": list(packed),
    }
    tx.execute(query("lock_checkpoints"), {"run_id": run_id})
    rows = tx.execute(query("prune_checkpoints"), values).fetchall()
    places = [(row["version"], row[name]) for row in rows for name in ("checkpoint", "resume_from")]
    return Pruned(
        [(version, Path(place)) for version, place in places if place is not None],
        {row["version"] for row in rows if row["packs"]},
    )


def may_pack(tx: Transaction, run_id: int, policy: PolicyVersion) -> bool:
    """Whether a version's weights need not be whole. No run starts from it while this transaction lasts."""
    values = {
        "run_id": run_id,
        "version": policy.version,
        "checkpoint": str(policy.checkpoint),
        "checkpoint_hash": policy.checkpoint_hash,
    }
    return tx.execute(query("may_pack"), values).fetchone() is not None


def named(checkpoint: Checkpoint | None) -> dict[str, str | None]:
    """A checkpoint by the names of its columns."""
    if checkpoint is None:
        return {"resume_from": None, "resume_hash": None}
    return {"resume_from": str(checkpoint.folder), "resume_hash": checkpoint.hash}


def _version(
    version: int,
    step: int,
    checkpoint: str,
    checkpoint_hash: str,
    resume_from: str | None,
    resume_hash: str,
    weights: str | None,
    resume_address: str | None,
    broadcast_at: str | None = None,
) -> PolicyVersion:
    resumed = None if resume_from is None else Checkpoint(Path(resume_from), resume_hash, resume_address)
    return PolicyVersion(version, step, Path(checkpoint), checkpoint_hash, resumed, weights, broadcast_at)
