"""Publishes a run's starting model in place of the trainer, for a run that explores before it trains."""

import logging
import time
from pathlib import Path

from trinity_db.config import ModelConfig
from trinity_db.database import Database
from trinity_db.errors import LeaseLost
from trinity_db.schema.states import WorkerRole
from trinity_db.service import LEASE_SECONDS
from trinity_db.store import policies, runs, workers
from trinity_db.trainer.checkpoints import run_files, starting_model

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5  # between two looks while another process publishes the version


def begin(
    database: Database,
    run: runs.Run,
    model: ModelConfig,
    seed: int,
    checkpoints: Path,
    weights: str | None = None,
) -> None:
    """See that the run has a version, and publish version 0 if no trainer does.

    This process takes the trainer's place while it publishes: so a trainer that starts now waits, and neither
    removes the files of the other. It gives no sign of life in that place, so the trainer takes it over after
    30 s.

    Args:
        weights: the object store that the version is uploaded to; None: to none.

    Raises:
        ConfigError: there is no starting model.
        TrinityError: it cannot be written, or this login may not publish it.
    """
    while True:
        with database.transaction() as tx:
            if policies.latest_version(tx, run.id) is not None:
                return
            place = workers.register_only(tx, run, WorkerRole.TRAIN)
            if place is None:  # another process has it; it is stopped here if it died on this machine
                workers.running(tx, run.id, LEASE_SECONDS)
        if place is not None:
            try:
                files = run_files.own_folder(database, run, place, checkpoints, weights)
                starting_model.publish_first_version(files, model, seed)
            except LeaseLost:
                logger.info("a trainer publishes version 0")
            finally:
                with database.transaction() as tx:
                    workers.stop(tx, place)
        time.sleep(LOOK_SECONDS)
