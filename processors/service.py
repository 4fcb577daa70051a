"""The processor daemon: claim, work, finish, for each processor in turn.

It owns the moves raw → clean → scored → ready, and preferences out of groups. It reads what
explorers wrote and never speaks to them or to the trainer. Any number may run at once.
"""

import logging
from collections.abc import Sequence

from trinity_db.database import Database
from trinity_db.processors import clean
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.score import Scorer
from trinity_db.schema.queries import query
from trinity_db.schema.states import Outcome, WorkerRole
from trinity_db.service import Service
from trinity_db.store import rewards, rows, runs

logger = logging.getLogger(__name__)


class Processors(Service):
    """All configured processors of a run in one process."""

    role = WorkerRole.PROCESS

    def __init__(
        self, database: Database, run: runs.Run, config: ProcessorsConfig, drain: bool = False
    ) -> None:
        super().__init__(database, run)
        self._config = config
        self._scorer = Scorer(config.score)
        self._drain = drain

    def work(self) -> bool:
        """One round over all processors; whether any had something to do."""
        # Not `or`: each gets its turn in every round.
        return any([self._clean(), self._score(), self._settle(), self._pair()])

    def is_done(self) -> bool:
        """A drain ends when nothing is left to move; a daemon with the run."""
        if not self._drain:
            return super().is_done()
        with self.database.transaction() as tx:
            left = tx.execute(query("count_unprocessed"), {"run_id": self.run.id}).fetchone()
        return left is None or not left["rows"]

    def _clean(self) -> bool:
        with self.database.transaction() as tx:
            claimed = rows.claim(tx, rows.CLEAN, self.run.id, self.worker_id, self._config.claim_size)
        if claimed:
            self._finish(rows.CLEAN, [clean.judge(row, self._config.clean) for row in claimed], [])
        return bool(claimed)

    def _score(self) -> bool:
        with self.database.transaction() as tx:
            claimed = rows.claim(tx, rows.SCORE, self.run.id, self.worker_id, self._config.claim_size)
        if not claimed:
            return False
        verdicts, events = [], []
        for row in claimed:
            verdict, about = self._scorer.judge(row)
            verdicts.append(verdict)
            events.append((row["id"], about))
        self._finish(rows.SCORE, verdicts, events)
        return True

    def _finish(
        self,
        stage: rows.Stage,
        verdicts: list[rows.Verdict],
        events: list[tuple[int, Sequence[rewards.RewardEvent]]],
    ) -> None:
        with self.database.transaction() as tx:
            held = rows.finish(tx, stage, self.run.id, self.worker_id, verdicts, self._config.max_attempts)
            about_held = [event for row_id, about in events if row_id in held for event in about]
            rewards.record(tx, self.run.id, stage.processor, about_held)
        lost = len(verdicts) - len(held)
        if lost:
            logger.warning(
                "%s: %d rows were taken over by another worker; their results are left out",
                stage.processor,
                lost,
            )
        for verdict in verdicts:
            if verdict.outcome == Outcome.FAILED:
                logger.warning("%s: experience %d: %s", stage.processor, verdict.id, verdict.error)

    def _settle(self) -> bool:
        with self.database.transaction() as tx:
            return bool(
                rows.settle_groups(tx, self.run.id, self._config.group.min_size, self._config.claim_size)
            )

    def _pair(self) -> bool:
        if self._config.pair is None:
            return False
        with self.database.transaction() as tx:
            made = rows.pair_groups(tx, self.run.id, self._config.pair.margin)
        if made:
            logger.info("paired: %d preferences", made)
        return bool(made)
