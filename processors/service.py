"""The processor daemon: claim, work, finish, for each processor in turn.

It owns the moves raw → clean → scored → ready, preferences out of groups, and payloads into the archive. It
reads what explorers wrote and never speaks to them or to the trainer. Any number may run at once.
"""

import logging
from collections.abc import Callable, Collection
from functools import partial

from psycopg.rows import DictRow

from trinity_db.database import Database
from trinity_db.errors import TrinityError
from trinity_db.processors import clean
from trinity_db.processors.archive import Archiver
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.front import Front, Sweep
from trinity_db.processors.score import Scorer
from trinity_db.processors.teacher import Teacher
from trinity_db.schema.states import Outcome, WorkerRole
from trinity_db.service import Service
from trinity_db.store import payloads, rows, runs

logger = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 256  # rows; by then it is not them but the function, or what all tasks lack
FIRST_TRY = 2  # claims of a row that is scored for the first time: one to clean it, and this one


class Processors(Service):
    """All configured processors of a run in one process."""

    role = WorkerRole.PROCESS

    def __init__(
        self,
        database: Database,
        run: runs.Run,
        config: ProcessorsConfig,
        drain: bool = False,
        requires_reward: str | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        super().__init__(database, run)
        self._config = config
        self._scorer = Scorer(config.score)
        self._teacher = teacher
        self._archiver = None
        if config.archive is not None:
            self._archiver = Archiver(database, run, config.archive, lambda: self.stopping)
        self._drain = drain
        self._requires_reward = requires_reward
        self._fronts = {stage.processor: Front() for stage in (rows.CLEAN, rows.SCORE)}
        self._all_groups = Sweep()
        self._judged_groups: set[int] = set()
        """Groups of rows that were judged since groups were last settled."""
        self._failures_in_a_row = 0

    def work(self) -> bool:
        """One round over all processors; whether any had something to do."""
        steps = (self._clean, self._score, self._settle, self._pair, self._archive)
        # A list, so that each gets its turn in every round, until a signal comes.
        moved = [not self.stopping and step() for step in steps]
        return any(moved)

    def is_done(self) -> bool:
        """A drain ends when nothing is left to move; a daemon with the run."""
        if self._drain:
            if self._settle_groups(None):  # also those that ended by what others did
                return False
            with self.database.transaction() as tx:
                is_done = not rows.count_unprocessed(tx, self.run.id, self._requires_reward)
        else:
            is_done = super().is_done()
        return is_done and (self._archiver is None or self._archiver.finish(self.worker_id))

    def _clean(self) -> bool:
        return self._judge(rows.CLEAN, lambda row: clean.judge(row, self._config.clean))

    def _score(self) -> bool:
        return self._judge(rows.SCORE, self._scorer.judge, self._ask_teacher)

    def _ask_teacher(self, verdicts: list[rows.Verdict]) -> list[rows.Verdict]:
        """The verdicts with what the teacher, if there is one, says of rows that pass."""
        if self._teacher is None:
            return verdicts
        ids = [verdict.id for verdict in verdicts if verdict.outcome == Outcome.PASSED]
        found = payloads.read(self.database, ids)
        return self._teacher.judge(verdicts, found, lambda: self.stopping)

    def _judge(
        self,
        stage: rows.Stage,
        judge: Callable[[DictRow], rows.Verdict],
        complete: Callable[[list[rows.Verdict]], list[rows.Verdict]] = list,
    ) -> bool:
        """Claim rows, judge them, finish. What a signal leaves unjudged is given back with the goodbye."""
        max_attempts = self._config.max_attempts
        claimed = self._fronts[stage.processor].look(partial(self._claim, stage))
        self._judged_groups.update(row["group_id"] for row in claimed)
        verdicts: list[rows.Verdict] = []
        for row in claimed:
            if self.stopping and verdicts:
                break
            verdicts.append(rows.give_up(stage, row, max_attempts) or judge(row))
        if verdicts:
            self._finish(stage, complete(verdicts))
        return bool(verdicts)

    def _claim(self, stage: rows.Stage, after: int) -> list[DictRow]:
        size, max_attempts = self._config.claim_size, self._config.max_attempts
        with self.database.transaction() as tx:
            return rows.claim(tx, stage, self.run.id, self.worker_id, size, max_attempts, after)

    def _finish(self, stage: rows.Stage, verdicts: list[rows.Verdict]) -> None:
        with self.database.transaction() as tx:
            held = rows.finish(tx, stage, self.run.id, self.worker_id, verdicts, self._config.max_attempts)
        lost = len(verdicts) - len(held)
        if lost:
            logger.warning(
                "%s: %d rows were taken over by another worker; their results are refused",
                stage.processor,
                lost,
            )
        for verdict in verdicts:
            if verdict.outcome == Outcome.FAILED:
                self._fronts[stage.processor].hasten()
            if verdict.detail and "error" in verdict.detail:
                logger.warning("%s: experience %d: %s", stage.processor, verdict.id, verdict.detail["error"])
        if stage is rows.SCORE:
            self._watch_failures(verdicts)

    def _watch_failures(self, verdicts: list[rows.Verdict]) -> None:
        """Notice that no row can be scored. Those that failed before, and come back together, do not count.

        Raises:
            TrinityError: in the same words for the same error, by which a supervisor sees that it stays so.
        """
        for verdict in verdicts:
            if verdict.outcome == Outcome.PASSED:
                self._failures_in_a_row = 0
            elif verdict.outcome == Outcome.FAILED and verdict.attempt <= FIRST_TRY:
                self._failures_in_a_row += 1
            if self._failures_in_a_row == FAILURES_IN_A_ROW:
                error = f"{FAILURES_IN_A_ROW} rows failed in a row, the last with: {verdict.error}"
                raise TrinityError(f"score: {error}")

    def _settle(self) -> bool:
        """Groups of rows that were just judged; now and then all, as some end by what others do."""
        if self._all_groups.is_due:
            with self._all_groups.timed():
                settled = self._settle_groups(None)
            if settled == self._config.claim_size:
                self._all_groups.hasten()  # there are more
        else:
            settled = bool(self._judged_groups) and self._settle_groups(self._judged_groups)
        self._judged_groups.clear()
        return bool(settled)

    def _settle_groups(self, group_ids: Collection[int] | None) -> int:
        with self.database.transaction() as tx:
            return rows.settle_groups(
                tx,
                self.run.id,
                self._config.group.min_size,
                self._config.claim_size,
                self._requires_reward,
                group_ids,
                self._config.group.drop_equal_rewards,
                self._config.group.solved_reward,
            )

    def _pair(self) -> bool:
        if self._config.pair is None:
            return False
        with self.database.transaction() as tx:
            made = rows.pair_groups(tx, self.run.id, self._config.pair.margin, self._config.claim_size)
        if made:
            logger.info("paired: %d preferences", made)
        return made is not None

    def _archive(self) -> bool:
        return self._archiver is not None and self._archiver.work(self.worker_id)
