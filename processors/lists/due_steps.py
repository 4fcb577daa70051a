"""Rescoring: steps of `score` judge stored rows, each row by the steps that have not judged it yet."""

import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace

from psycopg.rows import DictRow

from trinity_db.errors import NotFound
from trinity_db.postgres.connection import Database
from trinity_db.processors.lists.async_judging import Flow
from trinity_db.processors.lists.judge import Row, judge
from trinity_db.processors.lists.lists import LISTS, stages
from trinity_db.processors.lists.step import Step
from trinity_db.schema.states import Outcome
from trinity_db.store import payloads, processing
from trinity_db.store.processing import StepVerdict
from trinity_db.store.rescore import RescoreClaim

READING = LISTS["score"].reading
CHUNK = 256  # rows leased at a time; a crash repeats their steps
AHEAD = 4  # rows leased per row that asynchronous steps may have in flight, which keeps them busy
MAX_CLAIMS = 3  # claims without a verdict after which the rows of a group fail
LOOK_SECONDS = 0.1  # between checks for a request to stop

Judged = list[tuple[int, StepVerdict]]
"""Verdicts with the group IDs of their rows."""


class DueSteps:
    """Steps that judge claimed groups."""

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
        # Shared by all rows: the steps are bound to its event loop, and their limits apply to the process.
        self._flow = Flow(self._slow, READING, self._answered.set)

    @property
    def room(self) -> int:
        """Approximate number of rows to lease at a time."""
        slow = [step.limits.in_flight for step in self._slow if step.limits is not None]
        return AHEAD * min(slow) if slow else CHUNK

    def close(self) -> None:
        """Cancel and discard unfinished work."""
        self._flow.close()

    def verdicts(self, claimed: Sequence[RescoreClaim]) -> Generator[Judged]:
        """Yield the verdicts on all rows of these groups as they become available; fewer after a request to
        stop."""
        groups: dict[int, RescoreClaim] = {}
        for group in claimed:
            if group.attempt > MAX_CLAIMS:
                yield [(group.group_id, _given_up(id, group.attempt)) for id in group.due]
                continue
            # A row without due steps needs no call: only the results of removed steps are withdrawn.
            yield [
                (group.group_id, StepVerdict(id, group.attempt)) for id, due in group.due.items() if not due
            ]
            groups.update({id: group for id, due in group.due.items() if due})
        try:
            yield from self._ask(groups)
        except BaseException:  # rows in flight would return verdicts for lost leases
            self.close()
            raise

    def _ask(self, groups: Mapping[int, RescoreClaim]) -> Generator[Judged]:
        rows, failed = self._read(groups)
        yield failed
        # Sorted by their steps, so that a step with `batch` gets as many rows as possible in one call.
        rows.sort(key=lambda row: sorted(row.due or ()))
        judged = list(judge(rows, self._quick, READING, self._stopping))
        awaiting = {row.verdict.id for row in judged if any(map(row.awaits, self._slow))}
        yield [_judged(row) for row in judged if row.verdict.id not in awaiting]
        yield from self._await([row for row in judged if row.verdict.id in awaiting])

    def _await(self, rows: Sequence[Row]) -> Generator[Judged]:
        self._flow.take(rows)
        waiting = len(rows)
        while waiting and not self._stopping():
            self._answered.wait(LOOK_SECONDS)
            self._answered.clear()
            done = self._flow.done()
            waiting -= len(done)
            yield [_judged(row) for row in done]

    def _read(self, groups: Mapping[int, RescoreClaim]) -> tuple[list[Row], Judged]:
        """Return the rows with their columns, and failures of rows whose arrays are gone."""
        with self._database.transaction() as tx:
            rows = processing.read(tx, self._columns, list(groups))
        rows = [
            row if self._reads_arrays(groups[row["id"]].due[row["id"]]) else _unpacked(row) for row in rows
        ]
        arrays, gone = self._away([row["id"] for row in rows if "data" in row and row["data"] is None])
        read, failed = [], []
        for row in rows:
            id, group = row["id"], groups[row["id"]]
            if id in gone:
                failed.append((group.group_id, _failed(id, group.attempt, gone[id])))
            else:
                read.append(Row({**row, **arrays.get(id, {})}, StepVerdict(id, group.attempt), group.due[id]))
        return read, failed

    def _reads_arrays(self, due: Collection[str]) -> bool:
        """Whether one of these steps reads arrays. Without arrays, a row is still judged by the other
        steps."""
        return not self._of_arrays.isdisjoint(due)

    def _away(self, ids: Sequence[int]) -> tuple[dict[int, DictRow], dict[int, str]]:
        """Return arrays that Postgres no longer has, by row, and the reason for each row without any."""
        try:
            return self._stored(ids), {}
        except NotFound:  # one row or several
            pass
        arrays: dict[int, DictRow] = {}
        gone: dict[int, str] = {}
        for id in ids:
            try:
                arrays |= self._stored([id])
            except NotFound as error:
                gone[id] = str(error)
        return arrays, gone

    def _stored(self, ids: Sequence[int]) -> dict[int, DictRow]:
        """Return the arrays of these rows, from Postgres or the archive.

        Raises:
            NotFound: if some were pruned, or the archive does not contain them.
        """
        rows = payloads.packed(self._database, ids) if ids else []
        arrays = {row["experience_id"]: {name: row[name] for name in processing.PACKED} for row in rows}
        if missing := [id for id in ids if id not in arrays]:
            raise NotFound(f"Experience {missing[0]} has no arrays.")
        return arrays


def _unpacked(row: DictRow) -> DictRow:
    return {name: value for name, value in row.items() if name not in processing.PACKED}


def _judged(row: Row) -> tuple[int, StepVerdict]:
    """Return a verdict that a rescore can write: it drops no row."""
    verdict = row.verdict
    if verdict.outcome == Outcome.DROPPED:
        error = f"{verdict.step} wants to drop it ({verdict.reason}), and rescore drops no rows"
        verdict = replace(_failed(verdict.id, verdict.attempt, error), step=verdict.step)
    return row.columns["group_id"], verdict


def _given_up(id: int, attempt: int) -> StepVerdict:
    return _failed(id, attempt, f"{attempt - 1} times in a row rescore ended before its verdict")


def _failed(id: int, attempt: int, error: str) -> StepVerdict:
    return StepVerdict(id, attempt, Outcome.FAILED, detail={"error": error})
