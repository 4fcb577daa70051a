"""Decides when `trainer.checkpoint_every: auto` writes the next checkpoint.

A checkpoint costs time, and without one a crash repeats steps. With one crash a day the sum is minimal if
sqrt(2 * cost * 24 h) pass between two checkpoints (Young, CACM 17(9), 1974).
"""

import math
import time

SHARE = 20  # waits at least this many times the cost, so checkpoints take less than 5 % of the wall time
CRASH_SECONDS = 86_400.0  # mean time between two crashes
MOST_SECONDS = 600.0  # maximum time repeated after a crash, unless a checkpoint costs over a twentieth of it


class Cadence:
    """Tracks the time since the latest checkpoint, and the cost of a checkpoint.

    Args:
        age: Seconds since the latest checkpoint, or since version 0 before the first.
    """

    def __init__(self, age: float) -> None:
        self._last = time.monotonic() - age
        self._cost: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint is due, unless one is being written."""
        return time.monotonic() - self._last >= interval(self._cost)

    def written(self, cost: float) -> None:
        """Record that a checkpoint is complete.

        Args:
            cost: Seconds that it took to write.
        """
        self._last = time.monotonic()
        self._cost = cost


def interval(cost: float | None) -> float:
    """Return the seconds from the end of a checkpoint to the next one.

    Args:
        cost: Seconds that a checkpoint takes. None: not measured yet.
    """
    if cost is None:
        return MOST_SECONDS
    return max(SHARE * cost, min(math.sqrt(2 * cost * CRASH_SECONDS), MOST_SECONDS))
