"""Rows on their way through a list of steps."""

import logging
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from trinity_db import arrays
from trinity_db.functions import describe_error
from trinity_db.processors.results import Reading, dropped, failed
from trinity_db.processors.step import Drop, NotAnswered, Step
from trinity_db.schema.states import Outcome
from trinity_db.store.processing import ARRAYS, PACKED, Verdict

logger = logging.getLogger(__name__)

Columns = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A row, and the verdict on it so far."""

    columns: Columns
    verdict: Verdict
    due: Collection[str] | None = None
    """Names of the steps that are to judge it; None: all of the list."""

    @property
    def passes(self) -> bool:
        return self.verdict.outcome == Outcome.PASSED

    def awaits(self, step: Step) -> bool:
        """Whether this step is to be asked about it."""
        return self.passes and (self.due is None or step.name in self.due)


def judge(
    rows: Iterable[Row],
    steps: Sequence[Step],
    reading: Reading,
    stopping: Callable[[], bool],
) -> Iterator[Row]:
    """Ask the steps in turn about each row; yield it when all have spoken.

    A row that a step drops or cannot judge is not shown to the next, and no row to a step that is not among
    its due ones. Once `stopping`, no further row is judged, but the first one always is.
    """
    on_the_way: Iterator[Row] = (
        replace(row, columns=_decoded(row.columns)) if "data" in row.columns else row
        for row in _until(stopping, rows)
    )
    for step in steps:
        on_the_way = (_ask_at_once if step.batch else _ask)(step, reading, on_the_way)
    for row in on_the_way:
        yield row
        if stopping():
            return


def _until(stopping: Callable[[], bool], rows: Iterable[Row]) -> Iterator[Row]:
    for number, row in enumerate(rows):
        if number and stopping():
            return
        yield row


def _decoded(columns: Columns) -> Columns:
    payload = arrays.decode(columns["codec"], columns["data"], columns["num_tokens"])
    found = {name: getattr(payload, name) for name in ARRAYS if name != "payload"}
    rest = {name: value for name, value in columns.items() if name not in PACKED}
    return {**rest, **found, "payload": payload}


def _ask(step: Step, reading: Reading, rows: Iterable[Row]) -> Iterator[Row]:
    """Ask a step about each row that awaits it."""
    for row in rows:
        yield _asked(step, reading, row) if row.awaits(step) else row


def _asked(step: Step, reading: Reading, row: Row) -> Row:
    try:
        result = step(row.columns)
    except Exception as error:  # a user's function may raise anything; the row keeps the error
        return raised(step, row, error)
    return heard(step, reading, row, result)


def _ask_at_once(step: Step, reading: Reading, rows: Iterable[Row]) -> Iterator[Row]:
    """Ask a step about several rows at once; where it fails, about each alone, so that one fails alone."""
    rows = iter(rows)
    while taken := list(islice(rows, step.batch)):
        waiting = dict(enumerate(row for row in taken if row.awaits(step)))
        yield from (row for row in taken if not row.awaits(step))
        try:
            for place, result in _answers(step, list(waiting.values())):
                yield heard(step, reading, waiting.pop(place), result)
        except Exception as error:  # what it raises for a row alone is that row's error
            what = describe_error(error)
            rest = len(waiting)
            logger.warning("%s raised %s; it is asked about %d rows one by one", step.name, what, rest)
        for row in waiting.values():
            yield _asked_alone(step, reading, row)


def _asked_alone(step: Step, reading: Reading, row: Row) -> Row:
    try:
        for _, result in _answers(step, [row]):
            return heard(step, reading, row, result)
    except Exception as error:  # as in _asked
        return raised(step, row, error)
    return replace(row, verdict=failed(row.verdict, step, f"{step.name} gave no result"))


def _answers(step: Step, rows: Sequence[Row]) -> Iterable[tuple[int, Any]]:
    if not rows:
        return ()
    answers: Iterable[tuple[int, Any]] = step(
        {name: [row.columns[name] for row in rows] for name in step.columns}
    )
    return answers


def heard(step: Step, reading: Reading, row: Row, result: Any) -> Row:
    """The row after a step's result. A result that cannot be read fails the row."""
    try:
        if isinstance(result, Drop):
            return replace(row, verdict=dropped(row.verdict, step, result))
        if isinstance(result, Exception):
            return replace(row, verdict=failed(row.verdict, step, str(result)))
        return replace(row, verdict=reading(step, row.columns, row.verdict, result))
    except Exception as error:  # a result may hold anything
        what = f"{step.name} returned {reprlib.repr(result)}, which cannot be read: {describe_error(error)}"
        return replace(row, verdict=failed(row.verdict, step, what))


def raised(step: Step, row: Row, error: BaseException) -> Row:
    """The row after a step's exception, with the place of the error in the user's file."""
    if isinstance(error, NotAnswered):
        return replace(row, verdict=failed(row.verdict, step, f"{step.name}: {error}"))
    return replace(row, verdict=failed(row.verdict, step, f"{step.name} raised {describe_error(error)}"))
