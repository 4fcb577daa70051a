"""Policy versions: published by the trainer, loaded by explorers. Some have a checkpoint to resume from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trinity_db.errors import ConfigError, LeaseLost, TrinityError
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.store import evaluations, runs


@dataclass(frozen=True)
class Checkpoint:
    """Files from which a trainer resumes at a version, in a separate folder."""

    folder: Path
    hash: str
    address: str | None = None
    """Address of the same files in an object store. None: they are only in the folder."""


@dataclass(frozen=True)
class PolicyVersion:
    """A published version whose weights exist."""

    version: int
    step: int
    checkpoint: Path
    """Folder of its weights."""
    checkpoint_hash: str
    resumed: Checkpoint | None = None
    """None: no trainer can resume from it, unless it is version 0, the starting model."""
    weights: str | None = None
    """Address of the same files in an object store. None: they are only in the folder."""
    broadcast_at: str | None = None
    """Address from which the trainer broadcasts it, if it is the newest version. None: no broadcast."""

    @property
    def is_start(self) -> bool:
        """Whether a trainer can resume from it."""
        return self.version == 0 or self.resumed is not None

    @property
    def folders(self) -> list[Path]:
        """Folders of its weights and its checkpoint."""
        return [self.checkpoint, *([self.resumed.folder] if self.resumed else [])]


class TooStale(TrinityError):
    """A rollout's version is too far behind the newest one, so that no step will draw it."""


@dataclass(frozen=True)
class PrunedCheckpoints:
    """Result of pruning checkpoints."""

    deleted: list[tuple[int, Path]]
    """Versions that were pruned, and the folders to delete."""
    packable: set[int]
    """Versions whose weights stay, and may be stored as deltas."""


def publish(tx: Transaction, run_id: int, policy: PolicyVersion, worker_id: int | None = None) -> None:
    """Record a version; it includes every batch committed since the previous version. Idempotent.

    The evaluations configured for it begin in the same transaction. Call it only when the files are safe on
    disk. All versions except the first name the worker that committed their last step.

    Raises:
        LeaseLost: if another trainer took the run over, and this version's steps were reopened.
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
    """Record the checkpoint from which a trainer resumes at a version. Idempotent.

    Call it in a transaction that holds the trainer's place, when the files are safe on disk.

    Raises:
        LeaseLost: if the version was withdrawn, because another trainer took the run over.
    """
    values = {"run_id": run_id, "version": version} | named(checkpoint)
    if not tx.execute(query("record_checkpoint"), values).rowcount:
        raise LeaseLost(f"Version {version} has no checkpoint: another trainer took the run over.")


def record_upload(tx: Transaction, run_id: int, version: int, checkpoint: Checkpoint) -> None:
    """Record the object store address of a checkpoint that is completely uploaded."""
    values = {
        "run_id": run_id,
        "version": version,
        "resume_hash": checkpoint.hash,
        "resume_address": checkpoint.address,
    }
    tx.execute(query("record_upload"), values)


def newest(tx: Transaction, run_id: int) -> PolicyVersion | None:
    """Return the newest version whose weights exist; None before the first."""
    row = tx.execute(query("newest_version"), {"run_id": run_id}).fetchone()
    return None if row is None else _version(**row)


def with_checkpoint(tx: Transaction, run_id: int) -> list[PolicyVersion]:
    """List the versions whose weights were not pruned, newest first."""
    rows = tx.execute(query("versions_with_checkpoint"), {"run_id": run_id})
    return [_version(**row) for row in rows]


def folders_of_others(tx: Transaction, run_id: int) -> list[Path]:
    """List the weight folders that other runs refer to; a run started from this one may use its folder."""
    rows = tx.execute(query("folders_of_others"), {"run_id": run_id})
    return [Path(row["checkpoint"]) for row in rows]


def latest_version(tx: Transaction, run_id: int) -> int | None:
    """Highest version ever published, including withdrawn ones: no number is used twice."""
    row = tx.execute(query("latest_version"), {"run_id": run_id}).fetchone()
    assert row is not None
    version: int | None = row["version"]
    return version


def check_sampled(tx: Transaction, run_id: int, versions: Sequence[int], max_staleness: int | None) -> None:
    """Check that tokens of these versions may be trained on.

    Raises:
        ConfigError: if the run has no such version.
        TooStale: if one is farther than `max_staleness` from the newest version.
    """
    values = {"run_id": run_id, "versions": list(versions), "max_staleness": max_staleness}
    row = tx.execute(query("wrong_versions"), values).fetchone()
    if row is None:
        return
    if row["is_unknown"]:
        raise ConfigError(
            f"The run has no version {row['version']}; its newest is {row['newest']}. Name the version whose "
            "weights sampled the tokens."
        )
    raise TooStale(
        f"Version {row['version']} is {row['staleness']} versions behind the newest, {row['newest']}, and "
        f"the run's max_staleness is {max_staleness}."
    )


def seconds_since(tx: Transaction, run_id: int, version: int) -> float:
    """Seconds since a version was published."""
    row = tx.execute(query("seconds_since_version"), {"run_id": run_id, "version": version}).fetchone()
    assert row is not None
    return float(row["seconds"])


def hold_checkpoint(tx: Transaction, run_id: int, checkpoint: Path) -> bool:
    """Whether a version of the run has its weights here; if so, they stay until this transaction ends."""
    values = {"run_id": run_id, "checkpoint": str(checkpoint)}
    return tx.execute(query("hold_checkpoint"), values).fetchone() is not None


def relocate(tx: Transaction, run_id: int, policy: PolicyVersion) -> None:
    """Record the new folders of a version's files, whose hashes are unchanged."""
    values = {
        "run_id": run_id,
        "version": policy.version,
        "checkpoint": str(policy.checkpoint),
        "checkpoint_hash": policy.checkpoint_hash,
    }
    tx.execute(query("relocate_checkpoint"), values | named(policy.resumed))


def record_weights(tx: Transaction, run_id: int, policy: PolicyVersion) -> None:
    """Record the object store address of a version's weights that are completely uploaded."""
    values = {
        "run_id": run_id,
        "version": policy.version,
        "checkpoint_hash": policy.checkpoint_hash,
        "weights": policy.weights,
    }
    tx.execute(query("record_weights"), values)
    runs.announce(tx, run_id)


def broken_weights(tx: Transaction, run_id: int) -> list[PolicyVersion]:
    """List the versions whose objects explorers found missing or damaged."""
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
) -> PrunedCheckpoints:
    """Prune all but the newest `keep` checkpoints with their weights, and the newest `keep` weights.

    Those of version 0 are kept, and the newest checkpoint in an object store.

    Args:
        every: also keep weights of versions whose step is a multiple of this.
        best: a metric; also keep the weights of the version whose step has its highest value. `-metric`: its
            lowest.
        saving: a version whose checkpoint is being written; its weights are kept.
        uploading: a version whose checkpoint is being uploaded; it is kept.
        packed: versions whose weights stay as deltas if they need not be complete.
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
    folders = [(row["version"], row[name]) for row in rows for name in ("checkpoint", "resume_from")]
    return PrunedCheckpoints(
        [(version, Path(folder)) for version, folder in folders if folder is not None],
        {row["version"] for row in rows if row["packs"]},
    )


def may_pack(tx: Transaction, run_id: int, policy: PolicyVersion) -> bool:
    """Whether a version's weights may be a delta; no run starts from it until this transaction ends."""
    values = {
        "run_id": run_id,
        "version": policy.version,
        "checkpoint": str(policy.checkpoint),
        "checkpoint_hash": policy.checkpoint_hash,
    }
    return tx.execute(query("may_pack"), values).fetchone() is not None


def named(checkpoint: Checkpoint | None) -> dict[str, str | None]:
    """Columns of a checkpoint, by name."""
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
