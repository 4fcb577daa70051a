"""Rows on their way through a list of steps."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from trinity_db import arrays
from trinity_db.functions import describe_error
from trinity_db.processors.results import Reading, dropped, failed
from trinity_db.processors.step import Drop, Step
from trinity_db.schema.states import Outcome
from trinity_db.store.processing import ARRAYS, Verdict

logger = logging.getLogger(__name__)

Columns = Mapping[str, Any]


@dataclass(frozen=True)
class _Row:
    """A row, and the verdict on it so far."""

    columns: Columns
    verdict: Verdict

    @property
    def passes(self) -> bool:
        return self.verdict.outcome == Outcome.PASSED


def judge(
    rows: Iterable[tuple[Columns, Verdict]],
    steps: Sequence[Step],
    reading: Reading,
    stopping: Callable[[], bool],
) -> Iterator[Verdict]:
    """Ask the steps in turn about each row; yield its verdict when it has one.

    A row that a step drops or cannot judge is not shown to the next. Once `stopping`, no further row
    is judged, but the first one always is.
    """
    has_arrays = any(name in ARRAYS for step in steps for name in step.columns)
    on_the_way: Iterator[_Row] = (
        _Row(_decoded(columns) if has_arrays else columns, verdict)
        for columns, verdict in _until(stopping, rows)
    )
    for step in steps:
        on_the_way = (_ask_at_once if step.batch else _ask)(step, reading, on_the_way)
    for row in on_the_way:
        yield row.verdict
        if stopping():
            return


def _until(
    stopping: Callable[[], bool], rows: Iterable[tuple[Columns, Verdict]]
) -> Iterator[tuple[Columns, Verdict]]:
    for number, row in enumerate(rows):
        if number and stopping():
            return
        yield row


def _decoded(columns: Columns) -> Columns:
    payload = arrays.decode(columns["codec"], columns["data"], columns["num_tokens"])
    found = {name: getattr(payload, name) for name in ARRAYS if name != "payload"}
    return {**columns, **found, "payload": payload}


def _ask(step: Step, reading: Reading, rows: Iterable[_Row]) -> Iterator[_Row]:
    """Ask a step about each row that passed so far."""
    for row in rows:
        yield _asked(step, reading, row) if row.passes else row


def _asked(step: Step, reading: Reading, row: _Row) -> _Row:
    try:
        result = step(row.columns)
    except Exception as error:  # a user's function may raise anything; the row keeps the error
        return _failed(step, row, error)
    return _read(step, reading, row, result)


def _ask_at_once(step: Step, reading: Reading, rows: Iterable[_Row]) -> Iterator[_Row]:
    """Ask a step about several rows at once; where it fails, about each alone, so that one fails alone."""
    rows = iter(rows)
    while taken := list(islice(rows, step.batch)):
        waiting = dict(enumerate(row for row in taken if row.passes))
        yield from (row for row in taken if not row.passes)
        try:
            for place, result in _answers(step, list(waiting.values())):
                yield _read(step, reading, waiting.pop(place), result)
        except Exception as error:  # what it raises for a row alone is that row's error
            what = describe_error(error)
            rest = len(waiting)
            logger.warning("%s raised %s; it is asked about %d rows one by one", step.name, what, rest)
        for row in waiting.values():
            yield _asked_alone(step, reading, row)


def _asked_alone(step: Step, reading: Reading, row: _Row) -> _Row:
    try:
        for _, result in _answers(step, [row]):
            return _read(step, reading, row, result)
    except Exception as error:  # as in _asked
        return _failed(step, row, error)
    return replace(row, verdict=failed(row.verdict, step, f"{step.name} gave no result"))


def _answers(step: Step, rows: Sequence[_Row]) -> Iterable[tuple[int, Any]]:
    if not rows:
        return ()
    answers: Iterable[tuple[int, Any]] = step(
        {name: [row.columns[name] for row in rows] for name in step.columns}
    )
    return answers


def _read(step: Step, reading: Reading, row: _Row, result: Any) -> _Row:
    if isinstance(result, Drop):
        return replace(row, verdict=dropped(row.verdict, step, result))
    if isinstance(result, Exception):
        return replace(row, verdict=failed(row.verdict, step, str(result)))
    return replace(row, verdict=reading(step, row.columns, row.verdict, result))


def _failed(step: Step, row: _Row, error: Exception) -> _Row:
    return replace(row, verdict=failed(row.verdict, step, f"{step.name} raised {describe_error(error)}"))
