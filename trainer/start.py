"""Where a trainer starts: the run's first model, or the latest checkpoint whose files are whole."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trinity_db.config import ModelConfig
from trinity_db.database import Database, Transaction
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models import build_scratch, check_source, folder_digest
from trinity_db.store import batches, instances, policies, runs, workers
from trinity_db.trainer import checkpoint
from trinity_db.trainer.folder import Folder, claim, names

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Beginning:
    """The run and worker that a trainer starts as, and where the files are."""

    database: Database
    run: runs.Run
    worker_id: int
    default: Path
    """The folder of checkpoints that the configuration names."""
    folder: Folder
    """The run's own one: the default, or one beside it."""

    def found(self, policy: policies.PolicyVersion) -> Path | None:
        """Where a version is whole: where the store says, or in a folder that moved with the store."""
        moved = (parent / policy.checkpoint.name for parent in (self.folder.path, self.default))
        places = dict.fromkeys([policy.checkpoint, *moved])
        return next((place for place in places if folder_digest.verify(place, policy.checkpoint_hash)), None)


def own_folder(database: Database, run: runs.Run, worker_id: int, default: Path) -> Beginning:
    """Find the run's own folder of checkpoints, which no other run, and no other store, writes to.

    Raises:
        ConfigError: the default folder and the one beside it have other owners. Nothing is changed then.
        TrinityError: it cannot be written, or is missing although versions are in it.
    """
    with database.transaction() as tx:
        instance = instances.identify(tx)
        published = policies.with_checkpoint(tx, run.id)
    if any(policy.checkpoint.parent == default for policy in published):
        _check_is_there(default)
    folder = claim(default, {"store": str(instance.id)} | run.identity)
    if instance.is_new_copy:
        logger.warning(
            "this store is a copy of another one, or was moved: run '%s' writes its checkpoints to %s and "
            "leaves the other's files alone; if it was moved on purpose, stop it, then: trinity-db db moved",
            *(run.name, folder.path),
        )
    return Beginning(database, run, worker_id, default, folder)


def clear_leftovers(begin: Beginning) -> None:
    """Remove what crashes left in the run's own folder: nothing that a version names.

    Raises:
        ConfigError: the folder holds later checkpoints than the store knows of.
        LeaseLost: another trainer has this one's place, and what no version names may be its own.
    """
    with begin.database.transaction() as tx:
        workers.hold_place(tx, begin.worker_id)
        newest = policies.latest_version(tx, begin.run.id)
        published = {policy.checkpoint.name for policy in policies.with_checkpoint(tx, begin.run.id)}
    begin.folder.clear_leftovers(published, -1 if newest is None else newest)


def publish_first_version(begin: Beginning, model: ModelConfig, seed: int) -> None:
    """Make the starting model policy version 0, unless that was done before.

    Raises:
        ConfigError: there is no such model.
        TrinityError: it cannot be written, or another run's was pruned meanwhile. Nothing is published then.
        LeaseLost: another trainer has this one's place.
    """
    with begin.database.transaction() as tx:
        if policies.latest_version(tx, begin.run.id) is not None:
            return
        source = _starting_model(tx, model)
    if source is None:
        scratch = model.scratch
        assert scratch is not None
        folder = begin.folder.version_folder(0)
        found = checkpoint.place(folder, lambda aside: build_scratch(scratch, seed, aside))
    else:
        folder, recorded = source
        found = _digest(folder, recorded, model)
    with begin.database.transaction() as tx:
        workers.hold_place(tx, begin.worker_id)
        if model.run is not None:
            other = runs.find(tx, model.run)
            if not policies.hold_checkpoint(tx, other.id, folder):
                raise _pruned(model.run)
        policies.publish(tx, begin.run.id, policies.PolicyVersion(0, 0, folder, found))


def recover(begin: Beginning, from_start: bool) -> policies.PolicyVersion:
    """The latest version whose checkpoint is whole; every batch that it does not include is reopened.

    Later versions, whose files are damaged or missing, are withdrawn, with a warning. A checkpoint in another
    owner's folder is copied into the run's own, since the other owner may delete it.

    Args:
        from_start: go on from the starting model where there are checkpoints and none of them is whole.

    Raises:
        ConfigError: none is whole, not even the starting model. Nothing is changed then.
        TrinityError: the starting model alone is whole, or the folder they are in is missing altogether.
            Nothing is changed then.
        LeaseLost: another trainer has taken the place of this one meanwhile. Nothing is changed then.
    """
    with begin.database.transaction() as tx:
        found = policies.with_checkpoint(tx, begin.run.id)
    damaged = []
    for policy in found:
        place = begin.found(policy)
        if place is not None:
            break
        if policy.version > 0 and not from_start:
            _check_is_there(policy.checkpoint.parent)
        logger.warning(
            "version %d: its checkpoint at %s is damaged or missing", policy.version, policy.checkpoint
        )
        damaged.append(policy)
    else:
        raise ConfigError(
            f"Run '{begin.run.name}': no checkpoint is whole, and its starting model has changed or is gone; "
            "restore one of them."
        )
    if policy.version == 0 and damaged and not from_start:
        raise TrinityError(
            f"Run '{begin.run.name}': none of its checkpoints is whole ({_versions(damaged)}); restore one "
            "of them, or train again from the starting model with --from-start."
        )
    policy = replace(policy, checkpoint=_within_reach(begin, policy, place))
    with begin.database.transaction() as tx:
        reopened = batches.reopen(tx, begin.run.id, begin.worker_id, policy.version)
        policies.relocate(tx, begin.run.id, policy)
        for lost in damaged:  # within: after a crash they would be leftovers of no version
            begin.folder.set_aside(lost.version, lost.checkpoint)
    if reopened:
        logger.warning("version %d does not include %d batches: reopened", policy.version, reopened)
    return policy


def first_digest(database: Database, run: runs.Run) -> str:
    """The digest of the run's starting model, as its files were when the run began."""
    with database.transaction() as tx:
        return policies.with_checkpoint(tx, run.id)[-1].checkpoint_hash


def first_model(begin: Beginning) -> Path:
    """The folder of the run's starting model, which the policy is compared with or is an adapter on.

    Raises:
        ConfigError: it has changed or is gone.
    """
    with begin.database.transaction() as tx:
        oldest = policies.with_checkpoint(tx, begin.run.id)[-1]
    place = begin.found(oldest) if oldest.version == 0 else None
    if place is None:
        raise ConfigError(
            f"Run '{begin.run.name}': its starting model has changed or is gone, and the policy is held "
            "to it, or built on it; restore it."
        )
    return place


def _within_reach(begin: Beginning, policy: policies.PolicyVersion, place: Path) -> Path:
    """Where the run reads a checkpoint from: in another owner's folder it may be deleted at any time."""
    if policy.version == 0 or names(place.parent, begin.folder.owner):
        return place
    target = begin.folder.version_folder(policy.version)
    checkpoint.copy(place, policy.checkpoint_hash, target)
    logger.info("version %d: copied from %s to %s", policy.version, place, target)
    return target


def _check_is_there(checkpoints: Path) -> None:
    """A disk that is not mounted is no reason to do all the work again."""
    if not checkpoints.is_dir():
        raise TrinityError(
            f"The folder of checkpoints {checkpoints} is missing: mount or restore it. "
            "To train again without them, create it and use --from-start."
        )


def _versions(damaged: Sequence[policies.PolicyVersion]) -> str:
    newest, oldest = damaged[0].version, damaged[-1].version
    return f"version {newest}" if newest == oldest else f"versions {oldest} to {newest}"


def _starting_model(tx: Transaction, model: ModelConfig) -> tuple[Path, str | None] | None:
    """Its folder, and the digest where another run has recorded one; None for one that is made of nothing."""
    if model.path is not None:
        check_source(model)
        return model.path.expanduser().absolute(), None
    if model.run is not None:
        other = runs.find(tx, model.run)
        policy = policies.newest(tx, other.id)
        if policy is None:
            raise ConfigError(f"model.run: run '{model.run}' has no checkpoint yet; train it first.")
        return policy.checkpoint, policy.checkpoint_hash
    return None


def _digest(folder: Path, expected: str | None, model: ModelConfig) -> str:
    """The digest of the starting model's files, which must be the one that another run recorded."""
    try:
        found = folder_digest.digest(folder)
    except FileNotFoundError as error:
        if model.run is None:
            raise
        raise _pruned(model.run) from error
    if expected not in (None, found):
        raise TrinityError(
            f"model.run: the checkpoint of '{model.run}' at {folder} is damaged, or is deleted right now "
            "as a newer version replaced it; start again."
        )
    return found


def _pruned(run_name: str) -> TrinityError:
    return TrinityError(
        f"model.run: the checkpoint of '{run_name}' was replaced by a newer version meanwhile; start again."
    )
