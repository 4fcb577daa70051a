"""Results of measurements: medians with their spread, ratios, and the bars they must meet."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

OURS = "trinity-db"


@dataclass(frozen=True)
class Bar:
    """Limit of a figure: a minimum, or a maximum with `at_most`."""

    limit: float
    at_most: bool = False

    def is_met(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.limit:g}"


@dataclass(frozen=True)
class Result:
    """Figure of one store, or ratio of ours to that of a peer or floor."""

    measure: str
    who: str
    """trinity-db, or the name of a peer or floor."""
    variant: str
    """Circumstances, for example `4 writers, 64 rows a commit`."""
    unit: str
    """Unit of the figure; for a ratio that of both its sides."""
    median: float | None
    """None if it could not be measured; the note gives the reason."""
    low: float | None = None
    high: float | None = None
    against: str = ""
    """Peer or floor of a ratio."""
    sides: tuple[float, float] | None = None
    """Medians of ours and of the peer or floor of a ratio."""
    bar: Bar | None = None
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the bar is met; None without a bar or a figure."""
        return None if self.bar is None or self.median is None else self.bar.is_met(self.median)


def figure(
    measure: str, who: str, variant: str, unit: str, values: Sequence[float], bar: Bar | None = None
) -> Result:
    """Return the median of repeated measurements with the minimum and the maximum."""
    return Result(measure, who, variant, unit, statistics.median(values), min(values), max(values), bar=bar)


def ratio(
    measure: str,
    variant: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    against: str,
    bar: Bar | None = None,
    alternated: bool = False,
) -> Result:
    """Return ours divided by theirs.

    Args:
        alternated: Divide pair by pair, for sides measured in turns: noise affects both. Else divide by the
            median of theirs.
    """
    middle = statistics.median(theirs)
    divisors = theirs if alternated else [middle] * len(ours)
    values = [our / their for our, their in zip(ours, divisors, strict=True)]
    low, high, sides = min(values), max(values), (statistics.median(ours), middle)
    return Result(measure, OURS, variant, unit, statistics.median(values), low, high, against, sides, bar)


def absent(measure: str, who: str, variant: str, reason: str) -> Result:
    """Return a result without a figure and the reason why it was not measured."""
    return Result(measure, who, variant, "", None, note=reason)


def in_turns(ways: Mapping[str, Callable[[], float]], repetitions: int) -> dict[str, list[float]]:
    """Measure each way once per repetition, starting with a different one each time."""
    names = list(ways)
    values: dict[str, list[float]] = {name: [] for name in names}
    for repetition in range(repetitions):
        for name in names[repetition % len(names) :] + names[: repetition % len(names)]:
            values[name].append(ways[name]())
    return values


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that is at least as large as `percent` % of the values."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(0, int(rank) - 1)]
