"""Steps of `score` that judge stored rows again: each row is asked only of those that have not judged it."""

import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace

from psycopg.rows import DictRow

from trinity_db.database import Database
from trinity_db.errors import NotFound
from trinity_db.processors.flow import Flow
from trinity_db.processors.judge import Row, judge
from trinity_db.processors.lists import LISTS, stages
from trinity_db.processors.step import Step
from trinity_db.schema.states import Outcome
from trinity_db.store import payloads, processing
from trinity_db.store.processing import Verdict
from trinity_db.store.rescore import Claim

READING = LISTS["score"].reading
CHUNK = 256  # rows that are leased at a time; they are judged once more after a crash
AHEAD = 4  # rows leased for each that asynchronous steps may have in flight, so that few of these places idle
MAX_CLAIMS = 3  # claims without a verdict, after which the rows of a group have failed
LOOK_SECONDS = 0.1  # between two looks at whether to stop

Judged = list[tuple[int, Verdict]]
"""Verdicts with the groups of their rows."""


class DueSteps:
    """The steps at work."""

    def __init__(self, database: Database, steps: Sequence[Step], stopping: Callable[[], bool]) -> None:
        self._database = database
        self._stopping = stopping
        *_, score = stages({"clean": [], "score": steps})
        self._columns = score.columns
        self._of_arrays = {
            step.name for step in steps if not processing.ARRAYS.keys().isdisjoint(step.columns)
        }
        self._quick = [step for step in steps if not step.is_async]
        self._slow = [step for step in steps if step.is_async]
        self._answered = threading.Event()
        # One for all rows: the steps belong to its event loop, and their limits hold for the process.
        self._flow = Flow(self._slow, READING, self._answered.set)

    @property
    def room(self) -> int:
        """About how many rows to lease at a time."""
        slow = [step.limits.in_flight for step in self._slow if step.limits is not None]
        return AHEAD * min(slow) if slow else CHUNK

    def close(self) -> None:
        """Stop what is under way, and forget it."""
        self._flow.close()

    def verdicts(self, claimed: Sequence[Claim]) -> Generator[Judged]:
        """The verdicts on all rows of these groups, as they come; on fewer once stopping."""
        groups: dict[int, Claim] = {}
        for group in claimed:
            if group.attempt > MAX_CLAIMS:
                yield [(group.group_id, _given_up(id, group.attempt)) for id in group.due]
                continue
            # A row without steps is asked of none: only what steps that are gone said is withdrawn.
            yield [(group.group_id, Verdict(id, group.attempt)) for id, due in group.due.items() if not due]
            groups.update({id: group for id, due in group.due.items() if due})
        try:
            yield from self._ask(groups)
        except BaseException:  # what is still in flight would answer for leases that are lost
            self.close()
            raise

    def _ask(self, groups: Mapping[int, Claim]) -> Generator[Judged]:
        rows, failed = self._read(groups)
        yield failed
        # Rows with the same steps stand together, so that a step with `batch` gets as many as it may.
        rows.sort(key=lambda row: sorted(row.due or ()))
        judged = list(judge(rows, self._quick, READING, self._stopping))
        awaiting = {row.verdict.id for row in judged if any(map(row.awaits, self._slow))}
        yield [_judged(row) for row in judged if row.verdict.id not in awaiting]
        yield from self._await([row for row in judged if row.verdict.id in awaiting])

    def _await(self, rows: Sequence[Row]) -> Generator[Judged]:
        self._flow.take(rows)
        left = len(rows)
        while left and not self._stopping():
            self._answered.wait(LOOK_SECONDS)
            self._answered.clear()
            done = self._flow.done()
            left -= len(done)
            yield [_judged(row) for row in done]

    def _read(self, groups: Mapping[int, Claim]) -> tuple[list[Row], Judged]:
        """The rows with what the steps read, and the failures of rows whose arrays are gone."""
        with self._database.transaction() as tx:
            rows = processing.read(tx, self._columns, list(groups))
        rows = [
            row if self._reads_arrays(groups[row["id"]].due[row["id"]]) else _unpacked(row) for row in rows
        ]
        found, gone = self._away([row["id"] for row in rows if "data" in row and row["data"] is None])
        read, failed = [], []
        for row in rows:
            id, group = row["id"], groups[row["id"]]
            if id in gone:
                failed.append((group.group_id, _failed(id, group.attempt, gone[id])))
            else:
                read.append(Row({**row, **found.get(id, {})}, Verdict(id, group.attempt), group.due[id]))
        return read, failed

    def _reads_arrays(self, due: Collection[str]) -> bool:
        """Whether one of these steps does. A row whose arrays are gone is still judged by the other steps."""
        return not self._of_arrays.isdisjoint(due)

    def _away(self, ids: Sequence[int]) -> tuple[dict[int, DictRow], dict[int, str]]:
        """The arrays that Postgres has no more, by row, and why other rows have none."""
        try:
            return self._stored(ids), {}
        except NotFound:  # of one row or of several
            pass
        found: dict[int, DictRow] = {}
        gone: dict[int, str] = {}
        for id in ids:
            try:
                found |= self._stored([id])
            except NotFound as error:
                gone[id] = str(error)
        return found, gone

    def _stored(self, ids: Sequence[int]) -> dict[int, DictRow]:
        """The arrays of these rows, which may be in the archive.

        Raises:
            NotFound: some were pruned, or the archive does not have them.
        """
        rows = payloads.packed(self._database, ids) if ids else []
        found = {row["experience_id"]: {name: row[name] for name in processing.PACKED} for row in rows}
        if missing := [id for id in ids if id not in found]:
            raise NotFound(f"Experience {missing[0]} has no arrays.")
        return found


def _unpacked(row: DictRow) -> DictRow:
    return {name: value for name, value in row.items() if name not in processing.PACKED}


def _judged(row: Row) -> tuple[int, Verdict]:
    """A verdict that a rescore can write: it drops no row."""
    verdict = row.verdict
    if verdict.outcome == Outcome.DROPPED:
        error = f"{verdict.step} wants to drop it ({verdict.reason}), and rescore drops no rows"
        verdict = replace(_failed(verdict.id, verdict.attempt, error), step=verdict.step)
    return row.columns["group_id"], verdict


def _given_up(id: int, attempt: int) -> Verdict:
    return _failed(id, attempt, f"{attempt - 1} times in a row rescore ended before its verdict")


def _failed(id: int, attempt: int, error: str) -> Verdict:
    return Verdict(id, attempt, Outcome.FAILED, detail={"error": error})
