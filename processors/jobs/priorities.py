"""Computes priorities of ready groups with the steps of the list `priority`."""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from trinity_db.errors import TrinityError
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.processors.lists.judge import Row, judge
from trinity_db.processors.lists.lists import LISTS, columns_of
from trinity_db.processors.lists.step import Step
from trinity_db.schema.states import Outcome
from trinity_db.store import policies, priorities, processing
from trinity_db.store.priorities import ComputedPriorities, DuePriority, PriorityFailure, Taken
from trinity_db.store.processing import StepVerdict
from trinity_db.worker.service import LEASE_SECONDS

logger = logging.getLogger(__name__)

PROCESSOR = "priority"
MOVING = "staleness"  # a column that changes with each policy version
SIZE = 64  # groups per batch
FAILURES_IN_A_ROW = 64  # groups, after which the steps are considered broken


class Prioritiser:
    """Runs the list in one process.

    Args:
        max_attempts: Attempts after which a priority is given up.
    """

    def __init__(
        self,
        database: Database,
        run_id: int,
        steps: Sequence[Step],
        max_attempts: int,
        stopping: Callable[[], bool],
    ) -> None:
        self.steps = steps
        self._database = database
        self._run_id = run_id
        self._max_attempts = max_attempts
        self._stopping = stopping
        self._columns = columns_of(PROCESSOR, steps)
        self._version = 0
        self._renewed_at: int | None = None
        self._failures_in_a_row = 0

    def start(self) -> None:
        """Record the steps."""
        record = [step.record() for step in self.steps]
        with self._database.transaction() as tx:
            self._version = processing.record_steps(tx, self._run_id, PROCESSOR, record)

    def work(self) -> bool:
        """Compute some priorities that are due; return whether there were any."""
        with self._database.transaction() as tx:
            if MOVING in self._columns:
                self._renew_at(policies.latest_version(tx, self._run_id), tx)
            taken = priorities.take(tx, self._run_id, self._columns, SIZE, LEASE_SECONDS)
        if not taken.due:
            return False
        outcome = self._ask(taken)
        with self._database.transaction() as tx:
            priorities.finish(tx, self._run_id, taken, outcome, self._version, self._max_attempts)
        self._watch_failures(taken, outcome)
        return True

    def is_done(self) -> bool:
        """Whether no priority is due."""
        with self._database.transaction() as tx:
            return not priorities.count_due(tx, self._run_id)

    def _renew_at(self, version: int | None, tx: Transaction) -> None:
        if version is not None and version != self._renewed_at:
            priorities.renew(tx, self._run_id, version)
            self._renewed_at = version

    def _ask(self, taken: Taken) -> ComputedPriorities:
        crashed = {group.group_id: group for group in taken.due if group.attempt > self._max_attempts}
        rows = [Row(row, StepVerdict(row["id"], 1)) for row in taken.rows if row["group_id"] not in crashed]
        by_row: dict[int, dict[int, float]] = defaultdict(dict)
        errors: dict[int, StepVerdict] = {}
        for row in judge(rows, self.steps, LISTS[PROCESSOR].reading, self._stopping):
            group_id, verdict = row.columns["group_id"], row.verdict
            if verdict.outcome == Outcome.PASSED and verdict.priority is not None:
                by_row[group_id][verdict.id] = verdict.priority
            else:
                errors.setdefault(group_id, verdict)
        failures = [
            _failure(group, errors[group.group_id]) for group in taken.due if group.group_id in errors
        ]
        failures += [_crashed(group) for group in crashed.values()]
        # A group with rows left unjudged after a signal stays due.
        sizes = Counter(row["group_id"] for row in taken.rows)
        return ComputedPriorities(
            {
                id: priorities_of_rows
                for id, priorities_of_rows in by_row.items()
                if len(priorities_of_rows) == sizes[id]
            },
            failures,
        )

    def _watch_failures(self, taken: Taken, outcome: ComputedPriorities) -> None:
        """Log failures, and stop if no priority can be computed.

        Raises:
            TrinityError: if FAILURES_IN_A_ROW groups failed in a row.
        """
        for failure in outcome.failures:
            logger.warning("priority: group %d: %s", failure.due.group_id, failure.error)
        firsts = sum(failure.due.attempt == 1 for failure in outcome.failures)
        self._failures_in_a_row = 0 if outcome.by_row else self._failures_in_a_row + firsts
        if self._failures_in_a_row >= FAILURES_IN_A_ROW:
            raise TrinityError(
                f"priority: {FAILURES_IN_A_ROW} groups failed in a row, the last with: "
                f"{outcome.failures[-1].error}"
            )


def _failure(due: DuePriority, verdict: StepVerdict) -> PriorityFailure:
    if verdict.outcome == Outcome.FAILED:
        return PriorityFailure(due, verdict.error or "", verdict.id, verdict.step)
    error = f"{verdict.step} dropped the row ({verdict.reason}); a step of priority returns a number"
    return PriorityFailure(due, error, verdict.id, verdict.step)


def _crashed(due: DuePriority) -> PriorityFailure:
    error = f"the priority processor ended before its answer {due.attempt - 1} times in a row"
    return PriorityFailure(due, error)
