"""The result of a measurement: a median with its spread, or a ratio of two, and the bar it has to meet."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

OURS = "trinity-db"


@dataclass(frozen=True)
class Bar:
    """The limit that a figure must reach: at least, or at most."""

    limit: float
    at_most: bool = False

    def is_met(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.limit:g}"


@dataclass(frozen=True)
class Result:
    """One line of a table."""

    measure: str
    who: str
    """trinity-db, a bare way to do the same, or a peer's name and version."""
    variant: str
    """The circumstances, as the table names them: `4 writers, 64 rows a commit`."""
    unit: str
    median: float | None
    """None: it could not be measured; the note says why."""
    low: float | None = None
    high: float | None = None
    repetitions: int = 0
    against: str = ""
    """For a ratio: the peer or floor that trinity-db is compared with."""
    bar: Bar | None = None
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the bar is met; None without one, or without a figure."""
        return None if self.bar is None or self.median is None else self.bar.is_met(self.median)


def figure(
    measure: str,
    who: str,
    variant: str,
    unit: str,
    values: Sequence[float],
    bar: Bar | None = None,
    note: str = "",
) -> Result:
    """The median of repeated measurements, with the lowest and the highest."""
    return Result(
        measure,
        who,
        variant,
        unit,
        statistics.median(values),
        min(values),
        max(values),
        len(values),
        "",
        bar,
        note,
    )


def ratio(
    measure: str,
    variant: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    against: str,
    bar: Bar | None = None,
    alternated: bool = False,
    note: str = "",
) -> Result:
    """Ours divided by theirs: pair by pair where both were measured in turns, so that noise hits both."""
    middle = statistics.median(theirs)
    divisors = theirs if alternated else [middle] * len(ours)
    values = [our / their for our, their in zip(ours, divisors, strict=True)]
    return Result(
        measure,
        OURS,
        variant,
        "×",
        statistics.median(values),
        min(values),
        max(values),
        len(values),
        against,
        bar,
        note,
    )


def absent(measure: str, who: str, variant: str, reason: str) -> Result:
    """That something could not be measured, and why."""
    return Result(measure, who, variant, "", None, note=reason)


def in_turns(ways: Mapping[str, Callable[[], float]], repetitions: int) -> dict[str, list[float]]:
    """Measure each way once in a repetition, another one first each time."""
    names = list(ways)
    values: dict[str, list[float]] = {name: [] for name in names}
    for repetition in range(repetitions):
        for name in names[repetition % len(names) :] + names[: repetition % len(names)]:
            values[name].append(ways[name]())
    return values


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(0, int(rank) - 1)]
