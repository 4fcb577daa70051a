"""Publishes a run's starting model instead of the trainer, for a run that explores before it trains."""

import logging
import time
from pathlib import Path

from trinity_db.config.shared import ModelConfig
from trinity_db.errors import LeaseLost
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import policies, runs, workers
from trinity_db.trainer.checkpoints import run_files, starting_model
from trinity_db.worker.service import LEASE_SECONDS

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5  # between checks while another process publishes the version


def begin(
    database: Database,
    run: runs.Run,
    model: ModelConfig,
    seed: int,
    checkpoints: Path,
    weights: str | None = None,
) -> None:
    """Ensure that the run has a version, and publish version 0 if no trainer does.

    Meanwhile this process acts as the run's trainer: a trainer that starts now waits, so that neither removes
    the other's files. It sends no heartbeat, so a trainer takes over after 30 s.

    Args:
        weights: Object store for the version; None: no upload.

    Raises:
        ConfigError: if the starting model does not exist.
        TrinityError: if it cannot be written, or this login may not publish it.
    """
    while True:
        with database.transaction() as tx:
            if policies.latest_version(tx, run.id) is not None:
                return
            worker_id = workers.register_only(tx, run, WorkerRole.TRAIN)
            if worker_id is None:  # another process has it; it is stopped here if it died on this machine
                workers.running(tx, run.id, LEASE_SECONDS)
        if worker_id is not None:
            try:
                files = run_files.own_folder(database, run, worker_id, checkpoints, weights)
                starting_model.publish_first_version(files, model, seed)
            except LeaseLost:
                logger.info("a trainer publishes version 0")
            finally:
                with database.transaction() as tx:
                    workers.stop(tx, worker_id)
        time.sleep(LOOK_SECONDS)
