"""What the starting model says of adopted rows: asked once, before the first step, and stored with them.

What was stored stays stored: after a crash the next start goes on with the rows that are left, and where
none is, the model is not even loaded.
"""

import logging
from collections.abc import Callable

from trinity_db.models.frozen_model import FrozenModel
from trinity_db.store import payloads, scores, workers
from trinity_db.trainer.checkpoints import recovery
from trinity_db.trainer.config import TrainerConfig

logger = logging.getLogger(__name__)

CHUNK_ROWS = 256  # a transaction; a crash loses so much work at most


def score_adopted(begin: recovery.Beginning, config: TrainerConfig, should_stop: Callable[[], bool]) -> None:
    """Ask the run's starting model about every adopted row that has tokens and of which it has said nothing.

    It ends early, between two micro-batches, when it should stop.

    Raises:
        ConfigError: there is something to ask, and the starting model has changed or is gone.
        LeaseLost: another trainer has this one's place; it does the rest.
    """
    database, run = begin.database, begin.run
    model = scores.Model("reference", recovery.first_digest(database, run))
    with database.transaction() as tx:
        total = scores.count_unscored(tx, run.id, model)
    done = after = 0
    frozen = FrozenModel(recovery.first_model(begin), config) if total else None
    while frozen and done < total:
        with database.transaction() as tx:
            ids = scores.unscored(tx, run.id, model, after, CHUNK_ROWS)
        found = payloads.read(database, ids)
        said = []
        for place, logprobs in frozen.scores([found[experience_id] for experience_id in ids]):
            said.append(scores.scored(ids[place], model, found[ids[place]], logprobs))
            if should_stop():
                return
        with database.transaction() as tx:
            workers.hold_place(tx, begin.worker_id)
            scores.write(tx, said)
        after, done = ids[-1], done + len(ids)
        logger.info("the starting model was asked about %d of %d rows", done, total)
