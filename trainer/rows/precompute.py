"""Scores adopted rows with the starting model once, before the first step (`reference: precomputed`).

The log-probabilities are stored with the rows. Each chunk is committed. After a crash the next start
continues with the remaining rows. If none remain, the model is not loaded.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from trinity_db.store import payloads, scores, workers
from trinity_db.trainer.checkpoints import run_files, starting_model
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.memory import rows_have_to_fit
from trinity_db.trainer.learner.micro_batches import Abandoned
from trinity_db.trainer.learner.starting_scores import StartingScores

logger = logging.getLogger(__name__)

CHUNK_ROWS = 256  # rows per transaction; a crash loses at most this much work


def score_adopted(
    files: run_files.RunFiles,
    config: TrainerConfig,
    load: Callable[[Path], StartingScores],
    should_stop: Callable[[], bool],
) -> None:
    """Store the starting model's log-probabilities of every adopted row that has tokens and no scores yet.

    Args:
        load: Loads the starting model from its folder, on all ranks.
        should_stop: Called between two chunks of rows. If it returns True, the next start processes the rest.

    Raises:
        ConfigError: if rows remain to be scored, and the starting model has changed or is gone.
        LeaseLost: if another trainer has taken over, and scores the rest.
        TrinityError: if the model or a row does not fit into memory.
    """
    database, run = files.database, files.run
    model = scores.Model("reference", starting_model.first_digest(database, run))
    with database.transaction() as tx:
        total = scores.count_unscored(tx, run.id, model)
    done = after = 0
    if total:
        starting = load(starting_model.first_model(files))
    while done < total and not should_stop():
        with database.transaction() as tx:
            ids = scores.unscored(tx, run.id, model, after, CHUNK_ROWS)
        payload_of = payloads.read(database, ids)
        rows = [payload_of[experience_id] for experience_id in ids]
        try:
            with rows_have_to_fit(config, rows, ranks=starting.ranks.size, keys=("sharding", "offload")):
                scored = starting.of(rows)
        except Abandoned:
            return
        with database.transaction() as tx:
            workers.hold_place(tx, files.worker_id)
            scores.write(
                tx, [scores.scored(ids[index], model, rows[index], logprobs) for index, logprobs in scored]
            )
        after, done = ids[-1], done + len(ids)
        logger.info("the starting model scored %d of %d rows", done, total)
