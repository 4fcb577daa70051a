"""Judges stored rows of a run again, by steps that are newer than those that judged them.

It is a worker of the run beside the others, and any number may work at once. It takes whole rollout groups,
and writes what the steps say as new reward events. It ends when every group that was there at its start has
been judged by these steps, or has failed.
"""

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from trinity_db.database import Database
from trinity_db.errors import TrinityError
from trinity_db.processors.changed_files import ChangedFiles
from trinity_db.processors.due_steps import LOOK_SECONDS, DueSteps
from trinity_db.processors.service import FAILURES_IN_A_ROW
from trinity_db.processors.step import Step
from trinity_db.schema.states import Outcome, WorkerRole
from trinity_db.service import Service
from trinity_db.store import rescore, runs
from trinity_db.store.processing import Verdict

logger = logging.getLogger(__name__)

LONGEST_REST = 1.0  # seconds between two chunks while new rows wait for a processor
SUSPECT = 2  # claims without a verdict, after which a group is claimed alone


@dataclass(frozen=True)
class Work:
    """What is to be judged, and by what."""

    steps: Sequence[Step]
    """Ready to be called."""
    is_whole: bool
    """Whether these are all steps of the run, so that what others said counts no more."""
    among: Sequence[int] | None = None
    """Groups to look at; None: all of the run."""
    rate: float | None = None
    """Rows a second, at most; None: as fast as it goes."""


class Rescorer(Service):
    """One process that judges rows again. `counted` says what it has done."""

    role = WorkerRole.PROCESS

    def __init__(self, database: Database, run: runs.Run, work: Work) -> None:
        super().__init__(database, run)
        self.counted = rescore.Counted()
        self.total = 0
        """Rows that were due at the start."""
        self._work = work
        self._steps = DueSteps(database, work.steps, lambda: self.stopping)
        self._changed = ChangedFiles(work.steps)
        self._plan: rescore.Plan
        self._until = 0
        self._due: dict[int, int] = {}
        """Groups that were due at the last look, with the number of their rows."""
        self._queue: deque[int] = deque()
        """Those that it has not tried to claim since."""
        self._has_claimed = False
        """Whether it claimed a group since the last look. If not, others hold all, or the rest is suspect."""
        self._is_alone = False
        """Whether the next claim is of a single group, a suspect too."""
        self._failed: set[int] = set()
        self._failures_in_a_row = 0

    @property
    def steps(self) -> Sequence[Step]:
        """By which it judges."""
        return self._work.steps

    @property
    def list_version(self) -> int | None:
        """Of the list of these steps in this run."""
        return self._plan.version

    def start(self) -> None:
        """Record the steps, and look what is due. Groups that explorers start later are left out."""
        records = [step.record() for step in self._work.steps]
        with self.database.transaction() as tx:
            self._plan = rescore.plan(tx, self.run.id, records, self._work.is_whole)
            self._until = rescore.last_group(tx, self.run.id)
            self._due = rescore.due_groups(tx, self._plan, self._until, self._work.among)
        self._queue = deque(self._due)
        self._has_claimed = False
        self.total = sum(self._due.values())

    def work(self) -> bool:
        """Judge the rows of some groups; whether there may be more to do at once."""
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
        """Whether nothing is due. What others hold is due until their verdicts are written."""
        return not self._due

    def release(self) -> None:
        """Stop the coroutines. The groups in hand are given back with the goodbye."""
        self._steps.close()

    def _look_again(self) -> bool:
        with self.database.transaction() as tx:
            found = rescore.due_groups(tx, self._plan, self._until, list(self._due))
        self._due = {id: rows for id, rows in found.items() if id not in self._failed}
        self._queue = deque(self._due)
        self._is_alone = not self._has_claimed
        self._has_claimed = False
        return bool(self._queue) and not self._is_alone

    def _claim(self) -> list[rescore.Claim]:
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
        """The next groups of the queue, with about a chunk of rows."""
        room = self._steps.room
        if self._work.rate is not None:
            room = min(room, math.ceil(self._work.rate))
        groups: list[int] = []
        while self._queue and (not groups or room >= self._due[self._queue[0]]):
            groups.append(self._queue.popleft())
            room -= self._due[groups[-1]]
        return groups

    def _judge(self, claimed: Sequence[rescore.Claim]) -> None:
        """Write the verdicts on each group as soon as all its rows have one."""
        found: dict[int, list[Verdict]] = defaultdict(list)
        waiting = {group.group_id: group for group in claimed}
        with closing(self._steps.verdicts(claimed)) as judged:
            for some in judged:
                for group_id, verdict in some:
                    found[group_id].append(verdict)
                whole = [group for id, group in waiting.items() if len(found[id]) == len(group.due)]
                if whole:
                    self._finish(whole, found)
                for group in whole:
                    del waiting[group.group_id]

    def _finish(self, groups: Sequence[rescore.Claim], verdicts: dict[int, list[Verdict]]) -> None:
        with self.database.transaction() as tx:
            done = rescore.finish(tx, self._plan, self.worker_id, groups, verdicts)
        self.counted.add(done)
        self._failed |= done.failed_groups
        if done.refused:
            logger.warning("rescore: %d groups were taken over by another worker", done.refused)
        for group in groups:
            for verdict in verdicts[group.group_id]:
                self._watch_failures(verdict)

    def _watch_failures(self, verdict: Verdict) -> None:
        """Log a failure, and notice that no row can be judged.

        Raises:
            TrinityError: so many failed in a row that the steps are at fault.
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
        """Keep to the rate, and let new rows be judged first.

        Args:
            seconds: for which these rows were worked on.
        """
        pause = 0.0 if self._work.rate is None else rows / self._work.rate - seconds
        with self.database.transaction() as tx:
            if rescore.processors_are_behind(tx, self.run.id):
                pause = max(pause, min(seconds, LONGEST_REST))
        deadline = time.monotonic() + pause
        while not self.stopping and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
