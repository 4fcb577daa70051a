"""Rescores stored rows of a run with newer steps than the ones that judged them.

A rescorer is a worker of the run; any number can run concurrently. It processes whole rollout groups and
writes the results as new reward events. It ends when every group that existed at its start has been judged by
these steps, or has failed.
"""

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from trinity_db.errors import TrinityError
from trinity_db.postgres.connection import Database
from trinity_db.processors.lists.changed_files import ChangedFiles
from trinity_db.processors.lists.due_steps import LOOK_SECONDS, DueSteps
from trinity_db.processors.lists.step import Step
from trinity_db.processors.service import FAILURES_IN_A_ROW
from trinity_db.schema.states import Outcome, WorkerRole
from trinity_db.store import rescore, runs
from trinity_db.store.processing import StepVerdict
from trinity_db.worker.service import Service

logger = logging.getLogger(__name__)

LONGEST_REST = 1.0  # seconds between two chunks while new rows wait for a processor
SUSPECT = 2  # claims without a verdict after which a group is claimed alone


@dataclass(frozen=True)
class Work:
    """Steps, scope and rate of a rescore."""

    steps: Sequence[Step]
    """Prepared steps."""
    is_whole: bool
    """Whether these are all steps of the run, so that results of other steps are withdrawn."""
    among: Sequence[int] | None = None
    """Groups to rescore; None: all groups of the run."""
    rate: float | None = None
    """Maximum number of rows per second; None: no limit."""


class Rescorer(Service):
    """One process that rescores rows. `counted` has its progress."""

    role = WorkerRole.PROCESS

    def __init__(self, database: Database, run: runs.Run, work: Work) -> None:
        super().__init__(database, run)
        self.counted = rescore.Counted()
        self.total = 0
        """Number of rows that were due at the start."""
        self._work = work
        self._steps = DueSteps(database, work.steps, lambda: self.stopping)
        self._changed = ChangedFiles(work.steps)
        self._plan: rescore.Plan
        self._until = 0
        self._due: dict[int, int] = {}
        """Groups that were due at the last check, with their numbers of rows."""
        self._queue: deque[int] = deque()
        """Due groups that it has not yet tried to claim since the last check."""
        self._has_claimed = False
        """Whether it claimed a group since the last check. If not, the rest is held by others or suspect."""
        self._is_alone = False
        """Whether the next claim is of a single group, which may be suspect."""
        self._failed: set[int] = set()
        self._failures_in_a_row = 0

    @property
    def steps(self) -> Sequence[Step]:
        """Steps of the rescore."""
        return self._work.steps

    @property
    def list_version(self) -> int | None:
        """Version of this list of steps in the run."""
        return self._plan.version

    def start(self) -> None:
        """Record the steps and find due groups. Groups that explorers start later are left out."""
        records = [step.record() for step in self._work.steps]
        with self.database.transaction() as tx:
            self._plan = rescore.plan(tx, self.run.id, records, self._work.is_whole)
            self._until = rescore.last_group(tx, self.run.id)
            self._due = rescore.due_groups(tx, self._plan, self._until, self._work.among)
        self._queue = deque(self._due)
        self._has_claimed = False
        self.total = sum(self._due.values())

    def work(self) -> bool:
        """Judge the rows of some groups; return whether more work may be available immediately."""
        self._changed.say()
        if not self._queue:
            return self._look_again()
        begun = time.monotonic()
        claimed = self._claim()
        if claimed:
            self._has_claimed = True
            self._judge(claimed)
            self._rest(sum(len(group.due) for group in claimed), time.monotonic() - begun)
        return bool(self._queue) or self._has_claimed

    def is_done(self) -> bool:
        """Whether nothing is due. Groups held by others stay due until their verdicts are written."""
        return not self._due

    def release(self) -> None:
        """Stop the coroutines. Signing off releases the groups in hand."""
        self._steps.close()

    def _look_again(self) -> bool:
        with self.database.transaction() as tx:
            groups = rescore.due_groups(tx, self._plan, self._until, list(self._due))
        self._due = {id: rows for id, rows in groups.items() if id not in self._failed}
        self._queue = deque(self._due)
        self._is_alone = not self._has_claimed
        self._has_claimed = False
        return bool(self._queue) and not self._is_alone

    def _claim(self) -> list[rescore.RescoreClaim]:
        if self._is_alone:
            groups = list(self._queue)
            self._queue.clear()
        else:
            groups = self._next()
        with self.database.transaction() as tx:
            if self._is_alone:
                return rescore.claim(tx, self._plan, self.worker_id, groups, limit=1)
            return rescore.claim(tx, self._plan, self.worker_id, groups, len(groups), SUSPECT)

    def _next(self) -> list[int]:
        """Return the next groups of the queue, with about one chunk of rows."""
        room = self._steps.room
        if self._work.rate is not None:
            room = min(room, math.ceil(self._work.rate))
        groups: list[int] = []
        while self._queue and (not groups or room >= self._due[self._queue[0]]):
            groups.append(self._queue.popleft())
            room -= self._due[groups[-1]]
        return groups

    def _judge(self, claimed: Sequence[rescore.RescoreClaim]) -> None:
        """Write the verdicts on each group once all its rows have one."""
        verdicts: dict[int, list[StepVerdict]] = defaultdict(list)
        waiting = {group.group_id: group for group in claimed}
        with closing(self._steps.verdicts(claimed)) as judged:
            for some in judged:
                for group_id, verdict in some:
                    verdicts[group_id].append(verdict)
                whole = [group for id, group in waiting.items() if len(verdicts[id]) == len(group.due)]
                if whole:
                    self._finish(whole, verdicts)
                for group in whole:
                    del waiting[group.group_id]

    def _finish(self, groups: Sequence[rescore.RescoreClaim], verdicts: dict[int, list[StepVerdict]]) -> None:
        with self.database.transaction() as tx:
            done = rescore.finish(tx, self._plan, self.worker_id, groups, verdicts)
        self.counted.add(done)
        self._failed |= done.failed_groups
        if done.refused:
            logger.warning("rescore: %d groups were taken over by another worker", done.refused)
        for group in groups:
            for verdict in verdicts[group.group_id]:
                self._watch_failures(verdict)

    def _watch_failures(self, verdict: StepVerdict) -> None:
        """Log a failure, and stop if no row can be judged.

        Raises:
            TrinityError: if FAILURES_IN_A_ROW rows failed in a row.
        """
        if verdict.outcome == Outcome.PASSED:
            self._failures_in_a_row = 0
            return
        self._failures_in_a_row += 1
        logger.warning("rescore: experience %d: %s", verdict.id, verdict.error)
        if self._failures_in_a_row == FAILURES_IN_A_ROW:
            raise TrinityError(
                f"rescore: {FAILURES_IN_A_ROW} rows failed in a row, the last with: {verdict.error}"
            )

    def _rest(self, rows: int, seconds: float) -> None:
        """Sleep to keep the rate, and to let new rows be judged first.

        Args:
            seconds: Time that these rows took.
        """
        pause = 0.0 if self._work.rate is None else rows / self._work.rate - seconds
        with self.database.transaction() as tx:
            if rescore.processors_are_behind(tx, self.run.id):
                pause = max(pause, min(seconds, LONGEST_REST))
        deadline = time.monotonic() + pause
        while not self.stopping and (remaining := deadline - time.monotonic()) > 0:
            time.sleep(min(remaining, LOOK_SECONDS))
