"""Evaluates the held-out rows of an offline run. Explorers evaluate an online run."""

import logging
from collections.abc import Sequence

from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import offline, runs, scores
from trinity_db.store.metrics import record_metrics
from trinity_db.trainer.learner.learner import Learner
from trinity_db.trainer.learner.micro_batches import Abandoned
from trinity_db.trainer.loop.setup import TrainerSetup
from trinity_db.trainer.rows import batch_from_store
from trinity_db.trainer.rows.step_metrics import short

logger = logging.getLogger(__name__)


class HeldOut:
    """The held-out rows of one run, and the last step at which they were evaluated.

    Args:
        score_names: Stored scores to read with the rows.
        total_steps: Steps of the whole run.
    """

    def __init__(
        self,
        database: Database,
        run: runs.Run,
        setup: TrainerSetup,
        learner: Learner,
        score_names: Sequence[scores.Name],
        *,
        total_steps: int,
    ) -> None:
        self._database = database
        self._run = run
        self._setup = setup
        self._learner = learner
        self._score_names = score_names
        self._total_steps = total_steps
        self._evaluated_step = -1

    def is_due(self) -> bool:
        """Whether to evaluate now: before the first step, and every `eval_every` steps.

        A step is evaluated again after a start, because a crash may have prevented the measurement, or the
        server may have lost it.
        """
        step, every = self._learner.steps_done, self._setup.trainer.eval_every
        if step == self._evaluated_step or step >= self._total_steps:
            return False
        return step == 0 or (every is not None and step % every == 0)

    def evaluate(self) -> bool:
        """Evaluate the held-out rows, if there are any. Return False if a stop ended the evaluation."""
        step = self._learner.steps_done
        if not self._setup.is_online:
            pairs = self._setup.algorithm.draws == "pairs"
            ids = offline.held_out(self._database, self._run.id, pairs, batch_from_store.HELD_OUT_ROWS)
            if ids:
                with self._database.transaction() as tx:
                    rows = batch_from_store.held_out_batch(tx, ids, self._score_names)
                try:
                    measured = self._learner.evaluate(rows)
                except Abandoned:
                    return False
                metrics = {f"eval/{name}": value for name, value in measured.items()}
                logger.info("held out, step %d: %s", step, short(metrics))
                with self._database.transaction() as tx:
                    record_metrics(tx, self._run.id, WorkerRole.TRAIN, step, metrics)
        self._evaluated_step = step
        return True
