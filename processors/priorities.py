"""Computes the priorities of ready groups by the steps of the list `priority`."""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from trinity_db.database import Database, Transaction
from trinity_db.errors import TrinityError
from trinity_db.processors.judge import Row, judge
from trinity_db.processors.lists import LISTS, columns_of
from trinity_db.processors.step import Step
from trinity_db.schema.states import Outcome
from trinity_db.service import LEASE_SECONDS
from trinity_db.store import policies, priorities, processing
from trinity_db.store.priorities import Due, Failure, Found, Taken
from trinity_db.store.processing import Verdict

logger = logging.getLogger(__name__)

PROCESSOR = "priority"
MOVING = "staleness"  # a column that changes with each policy version
SIZE = 64  # groups that are taken at a time
FAILURES_IN_A_ROW = 64  # groups; by then the steps are at fault


class Prioritiser:
    """The list at work in one process.

    Args:
        max_attempts: after which a priority is given up.
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
        """Compute some that are due; whether there were any."""
        with self._database.transaction() as tx:
            if MOVING in self._columns:
                self._renew_at(policies.latest_version(tx, self._run_id), tx)
            taken = priorities.take(tx, self._run_id, self._columns, SIZE, LEASE_SECONDS)
        if not taken.due:
            return False
        found = self._ask(taken)
        with self._database.transaction() as tx:
            priorities.finish(tx, self._run_id, taken, found, self._version, self._max_attempts)
        self._watch_failures(taken, found)
        return True

    def is_done(self) -> bool:
        """Whether none is due."""
        with self._database.transaction() as tx:
            return not priorities.count_due(tx, self._run_id)

    def _renew_at(self, version: int | None, tx: Transaction) -> None:
        if version is not None and version != self._renewed_at:
            priorities.renew(tx, self._run_id, version)
            self._renewed_at = version

    def _ask(self, taken: Taken) -> Found:
        crashed = {one.group_id: one for one in taken.due if one.attempt > self._max_attempts}
        rows = [Row(row, Verdict(row["id"], 1)) for row in taken.rows if row["group_id"] not in crashed]
        by_row: dict[int, dict[int, float]] = defaultdict(dict)
        errors: dict[int, Verdict] = {}
        for row in judge(rows, self.steps, LISTS[PROCESSOR].reading, self._stopping):
            group_id, verdict = row.columns["group_id"], row.verdict
            if verdict.outcome == Outcome.PASSED and verdict.priority is not None:
                by_row[group_id][verdict.id] = verdict.priority
            else:
                errors.setdefault(group_id, verdict)
        failures = [_failure(one, errors[one.group_id]) for one in taken.due if one.group_id in errors]
        failures += [_crashed(one) for one in crashed.values()]
        # A group that a signal left with rows unasked stays due.
        sizes = Counter(row["group_id"] for row in taken.rows)
        return Found({id: of for id, of in by_row.items() if len(of) == sizes[id]}, failures)

    def _watch_failures(self, taken: Taken, found: Found) -> None:
        """Log failures, and notice that no priority can be computed.

        Raises:
            TrinityError: so many failed in a row that the steps are at fault.
        """
        for failure in found.failures:
            logger.warning("priority: group %d: %s", failure.due.group_id, failure.error)
        firsts = sum(one.due.attempt == 1 for one in found.failures)
        self._failures_in_a_row = 0 if found.by_row else self._failures_in_a_row + firsts
        if self._failures_in_a_row >= FAILURES_IN_A_ROW:
            raise TrinityError(
                f"priority: {FAILURES_IN_A_ROW} groups failed in a row, the last with: "
                f"{found.failures[-1].error}"
            )


def _failure(due: Due, verdict: Verdict) -> Failure:
    if verdict.outcome == Outcome.FAILED:
        return Failure(due, verdict.error or "", verdict.id, verdict.step)
    error = f"{verdict.step} dropped the row ({verdict.reason}); a step of priority returns a number"
    return Failure(due, error, verdict.id, verdict.step)


def _crashed(due: Due) -> Failure:
    error = f"{due.attempt - 1} times in a row the priority processor ended before its answer"
    return Failure(due, error)
