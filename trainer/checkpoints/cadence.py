"""Decides when `trainer.checkpoint_every: auto` writes the next checkpoint.

A checkpoint costs time, and without one a crash repeats steps. With one crash a day the sum is least if
sqrt(2 * cost * 24 h) pass between two checkpoints (Young, CACM 17(9), 1974).
"""

import math
import time

SHARE = 20  # waits at least this many times the cost, so checkpoints take below 5 % of the wall time
CRASH_SECONDS = 86_400.0  # mean time between two crashes
MOST_SECONDS = 600.0  # no crash repeats more than this, unless a checkpoint costs more than a twentieth of it


class Cadence:
    """The time since the latest checkpoint, and what a checkpoint costs.

    Args:
        age: seconds since the latest checkpoint, or since version 0 before the first.
    """

    def __init__(self, age: float) -> None:
        self._last = time.monotonic() - age
        self._cost: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether to write a checkpoint now, if none is being written."""
        return time.monotonic() - self._last >= interval(self._cost)

    def written(self, cost: float) -> None:
        """A checkpoint is complete.

        Args:
            cost: seconds that its writing took.
        """
        self._last = time.monotonic()
        self._cost = cost


def interval(cost: float | None) -> float:
    """Seconds from the end of a checkpoint to the next one.

    Args:
        cost: seconds that a checkpoint takes. None: not measured yet.
    """
    if cost is None:
        return MOST_SECONDS
    return max(SHARE * cost, min(math.sqrt(2 * cost * CRASH_SECONDS), MOST_SECONDS))
