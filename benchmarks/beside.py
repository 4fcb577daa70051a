"""What other work costs a run: how long its verbs take beside that work, and undisturbed, in turns."""

from collections.abc import Mapping

from benchmarks.claims import FLOOR
from benchmarks.hour import Flow
from benchmarks.measure import OURS, Bar, Result, figure, percentile

QUIET = "quiet"
TIMED = ((OURS, "claim"), (OURS, "finish"), (OURS, "draw"), (FLOOR, "claim"))

Seconds = dict[tuple[str, str], list[float]]
"""By who and verb."""


def keep(flow: Flow, seconds: Seconds) -> None:
    """Take what a flow's verbs took in a turn."""
    for timed in TIMED:
        seconds.setdefault(timed, []).extend(flow.seconds[timed])
    flow.seconds.clear()


def latencies(
    measure: str, beside: str, seconds: Mapping[str, Seconds], bar: Bar | None = None
) -> list[Result]:
    """p99 of each verb in both, and their ratio; `bar` is of our claims."""
    found = []
    for who, verb in TIMED:
        p99 = {phase: percentile(of[who, verb], 99) for phase, of in seconds.items()}
        for phase, value in p99.items():
            found.append(figure(measure, who, f"{verb}, {phase}", "ms p99", [1e3 * value]))
        times = [p99[beside] / p99[QUIET]]
        limit = bar if (who, verb) == (OURS, "claim") else None
        found.append(figure(measure, who, f"{verb}, {beside}", "× quiet p99", times, limit))
    return found
