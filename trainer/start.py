"""Where a trainer starts: the run's first model, or the latest checkpoint whose files are whole."""

import json
import logging
from pathlib import Path

from trinity_db.config import ModelConfig
from trinity_db.database import Database, Transaction
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models import build_scratch, check_source
from trinity_db.models.folder_digest import digest
from trinity_db.store import batches, policies, runs, workers
from trinity_db.trainer import checkpoint

logger = logging.getLogger(__name__)


def own_folder(database: Database, run: runs.Run, checkpoints: Path) -> None:
    """Make sure that nobody but this run, of this store, has its checkpoints in the folder.

    Raises:
        ConfigError: somebody has. Nothing is changed then.
        TrinityError: it cannot be written, or is missing although versions are in it.
    """
    with database.transaction() as tx:
        published = {policy.checkpoint for policy in policies.with_checkpoint(tx, run.id)}
    if any(folder.parent == checkpoints for folder in published):
        _check_is_there(checkpoints)
    checkpoint.own(checkpoints, json.dumps(run.identity), published)


def clear_leftovers(database: Database, run: runs.Run, worker_id: int, checkpoints: Path) -> None:
    """Remove what crashes left in the run's own folder: nothing that a version names.

    Raises:
        ConfigError: the folder holds later checkpoints than the store knows of.
        LeaseLost: another trainer has this one's place, and what no version names may be its own.
    """
    with database.transaction() as tx:
        workers.hold_place(tx, worker_id)
        newest = policies.latest_version(tx, run.id)
        published = {policy.checkpoint.name for policy in policies.with_checkpoint(tx, run.id)}
    checkpoint.clear_leftovers(checkpoints, published, -1 if newest is None else newest)


def publish_first_version(
    database: Database, run: runs.Run, worker_id: int, model: ModelConfig, seed: int, checkpoints: Path
) -> None:
    """Make the starting model policy version 0, unless that was done before.

    Raises:
        ConfigError: there is no such model.
        TrinityError: it cannot be written, or another run's was pruned meanwhile. Nothing is published then.
        LeaseLost: another trainer has this one's place.
    """
    with database.transaction() as tx:
        if policies.latest_version(tx, run.id) is not None:
            return
        folder = _starting_model(tx, model)
    if folder is None:
        scratch = model.scratch
        assert scratch is not None
        folder = checkpoint.version_folder(checkpoints, 0)
        found = checkpoint.place(folder, lambda aside: build_scratch(scratch, seed, aside))
    else:
        found = _digest(folder, model)
    with database.transaction() as tx:
        workers.hold_place(tx, worker_id)
        if model.run is not None and not policies.hold_checkpoint(tx, runs.find(tx, model.run).id, folder):
            raise _pruned(model.run)
        policies.publish(tx, run.id, policies.PolicyVersion(0, 0, folder, found))


def recover(database: Database, run: runs.Run, worker_id: int) -> policies.PolicyVersion:
    """The latest version whose checkpoint is whole; every batch that it does not include is reopened.

    Later versions, whose files are damaged or missing, are withdrawn, with a warning.

    Raises:
        ConfigError: none is whole, not even the starting model. Nothing is changed then.
        TrinityError: the folder they are in is missing altogether. Nothing is changed then.
        LeaseLost: another trainer has taken the place of this one meanwhile. Nothing is changed then.
    """
    with database.transaction() as tx:
        found = policies.with_checkpoint(tx, run.id)
    damaged = []
    for policy in found:
        if checkpoint.verify(policy.checkpoint, policy.checkpoint_hash):
            break
        if policy.version > 0:
            _check_is_there(policy.checkpoint.parent)
        logger.warning(
            "version %d: its checkpoint at %s is damaged or missing", policy.version, policy.checkpoint
        )
        damaged.append(policy.checkpoint)
    else:
        raise ConfigError(
            f"Run '{run.name}': no checkpoint is whole, and its starting model has changed or is gone; "
            "restore one of them."
        )
    with database.transaction() as tx:
        reopened = batches.reopen(tx, run.id, worker_id, policy.version)
        for folder in damaged:  # within: after a crash they would be leftovers of no version
            checkpoint.set_aside(folder)
    if reopened:
        logger.warning("version %d does not include %d batches: reopened", policy.version, reopened)
    return policy


def first_digest(database: Database, run: runs.Run) -> str:
    """The digest of the run's starting model, as its files were when the run began."""
    with database.transaction() as tx:
        return policies.with_checkpoint(tx, run.id)[-1].checkpoint_hash


def first_model(database: Database, run: runs.Run) -> Path:
    """The folder of the run's starting model, which the policy is compared with or is an adapter on.

    Raises:
        ConfigError: it has changed or is gone.
    """
    with database.transaction() as tx:
        oldest = policies.with_checkpoint(tx, run.id)[-1]
    if oldest.version > 0 or not checkpoint.verify(oldest.checkpoint, oldest.checkpoint_hash):
        raise ConfigError(
            f"Run '{run.name}': its starting model has changed or is gone, and the policy is held to it, "
            "or built on it; restore it."
        )
    return oldest.checkpoint


def _check_is_there(checkpoints: Path) -> None:
    """A disk that is not mounted is no reason to do all the work again."""
    if not checkpoints.is_dir():
        raise TrinityError(
            f"The folder of checkpoints {checkpoints} is missing: mount or restore it. "
            "To train again without them, create it."
        )


def _starting_model(tx: Transaction, model: ModelConfig) -> Path | None:
    if model.path is not None:
        check_source(model)
        return model.path.expanduser().absolute()
    if model.run is not None:
        other = runs.find(tx, model.run)
        policy = policies.newest(tx, other.id)
        if policy is None:
            raise ConfigError(f"model.run: run '{model.run}' has no checkpoint yet; train it first.")
        return policy.checkpoint
    return None


def _digest(folder: Path, model: ModelConfig) -> str:
    try:
        return digest(folder)
    except FileNotFoundError as error:
        if model.run is None:
            raise
        raise _pruned(model.run) from error


def _pruned(run_name: str) -> TrinityError:
    return TrinityError(
        f"model.run: the checkpoint of '{run_name}' was replaced by a newer version meanwhile; start again."
    )
