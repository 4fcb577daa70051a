"""Where a trainer starts: the run's first model, or the latest checkpoint whose files are whole."""

import logging
from pathlib import Path

from trinity_db.config import ModelConfig
from trinity_db.database import Database, Transaction
from trinity_db.errors import ConfigError
from trinity_db.models import build_scratch, check_source
from trinity_db.store import batches, policies, runs
from trinity_db.trainer import checkpoint

logger = logging.getLogger(__name__)


def version_folder(checkpoints: Path, version: int) -> Path:
    """Where the checkpoint of a version lies."""
    return checkpoints / f"version-{version:06d}"


def publish_first_version(
    database: Database, run: runs.Run, model: ModelConfig, seed: int, checkpoints: Path
) -> None:
    """Make the starting model policy version 0, unless that was done before.

    Raises:
        ConfigError: there is no such model.
    """
    with database.transaction() as tx:
        if policies.latest_version(tx, run.id) is not None:
            return
        folder = _starting_model(tx, model)
    if folder is None:
        assert model.scratch is not None
        folder = version_folder(checkpoints, 0)
        build_scratch(model.scratch, seed, folder)
    policy = policies.PolicyVersion(0, 0, folder, checkpoint.digest(folder))
    with database.transaction() as tx:
        policies.publish(tx, run.id, policy)


def recover(database: Database, run: runs.Run) -> policies.PolicyVersion:
    """The latest version whose checkpoint is whole; every batch that it does not include is reopened.

    Versions with damaged or missing files are withdrawn, with a warning.

    Raises:
        ConfigError: none is left, not even the starting model.
    """
    with database.transaction() as tx:
        found = policies.with_checkpoint(tx, run.id)
    for policy in found:
        if checkpoint.verify(policy.checkpoint, policy.checkpoint_hash):
            with database.transaction() as tx:
                reopened = batches.reopen(tx, run.id, policy.version)
            if reopened:
                logger.warning("version %d does not include %d batches: reopened", policy.version, reopened)
            return policy
        logger.warning(
            "version %d: its checkpoint at %s is damaged or missing", policy.version, policy.checkpoint
        )
        with database.transaction() as tx:
            policies.withdraw(tx, run.id, policy.version)
    raise ConfigError(
        f"Run '{run.name}': no checkpoint is whole, and its starting model has changed or is gone."
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
