"""Passes rows through the steps of a list."""

import logging
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from trinity_db.arrays import codec
from trinity_db.config.user_functions import describe_error
from trinity_db.processors.lists.results import Reading, dropped, failed
from trinity_db.processors.lists.step import Drop, NotAnswered, Step
from trinity_db.schema.states import Outcome
from trinity_db.store.processing import ARRAYS, PACKED, StepVerdict

logger = logging.getLogger(__name__)

Columns = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A row, and its verdict so far."""

    columns: Columns
    verdict: StepVerdict
    due: Collection[str] | None = None
    """Names of the steps that judge the row; None: all steps of the list."""

    @property
    def passes(self) -> bool:
        return self.verdict.outcome == Outcome.PASSED

    def awaits(self, step: Step) -> bool:
        """Whether this step judges the row."""
        return self.passes and (self.due is None or step.name in self.due)


def judge(
    rows: Iterable[Row],
    steps: Sequence[Step],
    reading: Reading,
    stopping: Callable[[], bool],
) -> Iterator[Row]:
    """Yield each row after all steps have judged it, in turn.

    A row that a step drops or fails to judge does not reach the next step. Steps that are not due for a row
    skip it. Once `stopping`, no further row is judged, except that the first row always is.
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
    payload = codec.decode(columns["codec"], columns["data"], columns["num_tokens"])
    arrays = {name: getattr(payload, name) for name in ARRAYS if name != "payload"}
    others = {name: value for name, value in columns.items() if name not in PACKED}
    return {**others, **arrays, "payload": payload}


def _ask(step: Step, reading: Reading, rows: Iterable[Row]) -> Iterator[Row]:
    """Call a step for each row that awaits it."""
    for row in rows:
        yield _run(step, reading, row) if row.awaits(step) else row


def _run(step: Step, reading: Reading, row: Row) -> Row:
    try:
        result = step(row.columns)
    except Exception as error:  # user code may raise anything; the row records the error
        return raised(step, row, error)
    return with_result(step, reading, row, result)


def _ask_at_once(step: Step, reading: Reading, rows: Iterable[Row]) -> Iterator[Row]:
    """Call a step with several rows at once; after an error, with each row alone, so that only one fails."""
    rows = iter(rows)
    while taken := list(islice(rows, step.batch)):
        waiting = dict(enumerate(row for row in taken if row.awaits(step)))
        yield from (row for row in taken if not row.awaits(step))
        try:
            for index, result in _answers(step, list(waiting.values())):
                yield with_result(step, reading, waiting.pop(index), result)
        except Exception as error:  # an error of the batch; the rows are tried one by one
            error_text = describe_error(error)
            remaining = len(waiting)
            logger.warning("%s raised %s; retrying %d rows one by one", step.name, error_text, remaining)
        for row in waiting.values():
            yield _run_alone(step, reading, row)


def _run_alone(step: Step, reading: Reading, row: Row) -> Row:
    try:
        for _, result in _answers(step, [row]):
            return with_result(step, reading, row, result)
    except Exception as error:  # see _run
        return raised(step, row, error)
    return replace(row, verdict=failed(row.verdict, step, f"{step.name} gave no result"))


def _answers(step: Step, rows: Sequence[Row]) -> Iterable[tuple[int, Any]]:
    if not rows:
        return ()
    answers: Iterable[tuple[int, Any]] = step(
        {name: [row.columns[name] for row in rows] for name in step.columns}
    )
    return answers


def with_result(step: Step, reading: Reading, row: Row, result: Any) -> Row:
    """Apply a step's result to the row. An invalid result fails the row."""
    try:
        if isinstance(result, Drop):
            return replace(row, verdict=dropped(row.verdict, step, result))
        if isinstance(result, Exception):
            return replace(row, verdict=failed(row.verdict, step, str(result)))
        return replace(row, verdict=reading(step, row.columns, row.verdict, result))
    except Exception as error:  # a result may contain anything
        message = (
            f"{step.name} returned {reprlib.repr(result)}, which cannot be read: {describe_error(error)}"
        )
        return replace(row, verdict=failed(row.verdict, step, message))


def raised(step: Step, row: Row, error: BaseException) -> Row:
    """Return the row after a step's exception, with the error's location in the user's file."""
    if isinstance(error, NotAnswered):
        return replace(row, verdict=failed(row.verdict, step, f"{step.name}: {error}"))
    return replace(row, verdict=failed(row.verdict, step, f"{step.name} raised {describe_error(error)}"))
