"""Where a trainer starts: the run's first model, or the latest checkpoint whose files are whole."""

import logging
import sys
from pathlib import Path

from trinity_db.config import ModelConfig
from trinity_db.database import Database, Transaction
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models import build_scratch, check_source
from trinity_db.store import batches, policies, runs
from trinity_db.trainer import checkpoint

logger = logging.getLogger(__name__)


def clear_leftovers(database: Database, run: runs.Run, checkpoints: Path) -> None:
    """Remove what crashes left in the run's folder: nothing that a version names, and nothing of others.

    Raises:
        ConfigError: the folder holds checkpoints that this run cannot have written.
    """
    with database.transaction() as tx:
        newest = policies.latest_version(tx, run.id)
        published = {policy.checkpoint.name for policy in _all_with_checkpoint(tx, run)}
    checkpoint.clear_leftovers(checkpoints, published, -1 if newest is None else newest)


def publish_first_version(
    database: Database, run: runs.Run, model: ModelConfig, seed: int, checkpoints: Path
) -> None:
    """Make the starting model policy version 0, unless that was done before.

    Raises:
        ConfigError: there is no such model.
        TrinityError: it cannot be written.
    """
    with database.transaction() as tx:
        if policies.latest_version(tx, run.id) is not None:
            return
        folder = _starting_model(tx, model)
    if folder is None:
        scratch = model.scratch
        assert scratch is not None
        folder = checkpoint.version_folder(checkpoints, 0)
        digest = checkpoint.place(folder, lambda aside: build_scratch(scratch, seed, aside))
    else:
        digest = checkpoint.digest(folder)
    with database.transaction() as tx:
        policies.publish(tx, run.id, policies.PolicyVersion(0, 0, folder, digest))


def recover(database: Database, run: runs.Run) -> policies.PolicyVersion:
    """The latest version whose checkpoint is whole; every batch that it does not include is reopened.

    Later versions, whose files are damaged or missing, are withdrawn, with a warning.

    Raises:
        ConfigError: none is whole, not even the starting model. Nothing is changed then.
        TrinityError: the folder they are in is missing altogether. Nothing is changed then.
    """
    with database.transaction() as tx:
        found = _all_with_checkpoint(tx, run)
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
    for folder in damaged:
        checkpoint.set_aside(folder)
    with database.transaction() as tx:
        reopened = batches.reopen(tx, run.id, policy.version)
    if reopened:
        logger.warning("version %d does not include %d batches: reopened", policy.version, reopened)
    return policy


def first_model(database: Database, run: runs.Run) -> Path:
    """The folder of the run's starting model, for algorithms that compare the policy with it.

    Raises:
        ConfigError: it has changed or is gone.
    """
    with database.transaction() as tx:
        oldest = _all_with_checkpoint(tx, run)[-1]
    if oldest.version > 0 or not checkpoint.verify(oldest.checkpoint, oldest.checkpoint_hash):
        raise ConfigError(
            f"Run '{run.name}': its starting model has changed or is gone, and the policy is held to it; "
            "restore it."
        )
    return oldest.checkpoint


def _all_with_checkpoint(tx: Transaction, run: runs.Run) -> list[policies.PolicyVersion]:
    """Newest first; at least one once version 0 is published."""
    return policies.with_checkpoint(tx, run.id, limit=sys.maxsize)


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
