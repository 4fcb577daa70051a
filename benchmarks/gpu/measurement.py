"""Measurements of `make gpu`: rows of its tables, a separate process for each, and a clock of the device."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks import trained
from benchmarks.context import Context
from benchmarks.measure import OURS
from benchmarks.processes import at_once

OUT_OF_MEMORY, FAILED = "out of memory", "failed"


@dataclass(frozen=True)
class Row:
    """Row of a table: figures, or the reason why there are none."""

    size: str
    """Model size; empty for the device alone."""
    what: str
    who: str = OURS
    measured: dict[str, float] = field(default_factory=dict)
    """Figures by name with unit."""
    note: str = ""
    stage: str = ""
    """Title of the row's table."""


def alone(
    context: Context,
    size: str,
    title: str,
    work: Callable[[Any], dict[str, float]],
    argument: Any,
    who: str = OURS,
) -> Row:
    """Call `work(asked)` in a new process, so that running out of memory does not affect other rows."""
    try:
        return Row(size, title, who, at_once(partial(partial, work), [argument])[0].value)
    except RuntimeError as error:
        return Row(size, title, who, note=why(context, str(error)))


def why(context: Context, complaint: str) -> str:
    """Return the reason for the table; print unknown errors to stderr."""
    reason = reason_of(complaint)
    if reason == FAILED:
        context.say(complaint)
    return reason


def reason_of(complaint: str) -> str:
    """Return a short reason why something was not measured."""
    if "OutOfMemoryError" in complaint or "out of memory" in complaint.lower():
        return OUT_OF_MEMORY
    return complaint if complaint.startswith(("not installed", "unsupported")) else FAILED


def milliseconds(call: Callable[[], object], device: str, repeats: int = 5) -> float:
    """Return the median of repeated calls after a warm-up."""
    call()
    times = []
    for _ in range(repeats):
        trained.synchronize(device)
        start = time.perf_counter()
        call()
        trained.synchronize(device)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)
