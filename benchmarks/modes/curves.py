"""Curves of the modes: mean reward of a batch over time and over steps, by `trinity-db sql --format svg`."""

import os
import statistics
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.modes.runs import Outcome

POINTS = 60
WINDOW = 10  # steps whose mean is one point


def smoothed(outcome: Outcome, steps: int) -> float | None:
    """Mean reward of the last steps of so many; None before the first window is full."""
    return None if steps < WINDOW else statistics.fmean(outcome.rewards[steps - WINDOW : steps])


def at_time(outcome: Outcome, seconds: float) -> float | None:
    """`smoothed` of the steps that were committed by then. None before the first window and after the run."""
    if seconds > outcome.seconds[-1]:
        return None
    return smoothed(outcome, bisect_right(outcome.seconds, seconds))


def latest(outcome: Outcome, seconds: float) -> float:
    """Mean reward of the last steps that were committed by then: a window of them, or all there are."""
    steps = max(1, bisect_right(outcome.seconds, seconds))
    return statistics.fmean(outcome.rewards[max(0, steps - WINDOW) : steps])


def draw(url: str, found: Mapping[str, Sequence[Outcome]], over_time: Path, over_steps: Path) -> None:
    """Write two pictures, each with a panel for each mode: the mean over its seeds.

    Args:
        url: of any store: the statement names no table.
        found: by mode.
    """
    longest = max(one.seconds[-1] for outcomes in found.values() for one in outcomes)
    steps = max(len(one.rewards) for outcomes in found.values() for one in outcomes)
    _draw(
        url, found, over_time, "seconds", [longest * point / POINTS for point in range(POINTS + 1)], at_time
    )
    _draw(
        url,
        found,
        over_steps,
        "steps",
        range(WINDOW, steps + 1),
        lambda one, place: smoothed(one, int(place)),
    )


def _draw(
    url: str,
    found: Mapping[str, Sequence[Outcome]],
    path: Path,
    axis: str,
    places: Sequence[float],
    value: Callable[[Outcome, float], float | None],
) -> None:
    rows = []
    for place in places:
        means = []
        for outcomes in found.values():
            values = [one for outcome in outcomes if (one := value(outcome, place)) is not None]
            means.append(str(statistics.fmean(values)) if len(values) == len(outcomes) else "NULL")
        rows.append(f"({place}, {', '.join(means)})")
    names = ", ".join(f'"{name}"' for name in (axis, *found))
    casts = ", ".join(f'"{name}"::float8' for name in (axis, *found))
    statement = f"SELECT {casts} FROM (VALUES {', '.join(rows)}) AS v ({names})"
    path.parent.mkdir(parents=True, exist_ok=True)
    # The server of a benchmark has one login, which may write.
    sql = [sys.executable, "-m", "trinity_db", "sql", "-", "--write"]
    command = [*sql, "--format", "svg", "--output", str(path)]
    subprocess.run(command, input=statement, text=True, check=True, env=os.environ | {"TRINITY_DB_URL": url})
