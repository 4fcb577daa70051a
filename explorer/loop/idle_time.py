"""Measures how much of its time an explorer waits for training."""

import time
from collections.abc import Callable


class EmptyPlaces:
    """Measures how long slots of an explorer are empty because no group may be started.

    Args:
        places: number of slots: attempts that may be in progress at once.
    """

    def __init__(self, places: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_held_back = False
        """Whether the latest claim returned fewer groups than requested."""
        self._places = places
        self._clock = clock
        self._looked_at = self._measured_at = clock()
        self._waited = 0.0

    def look(self, free: int) -> None:
        """Count the time since the last call, during which this many slots were free."""
        now = self._clock()
        if self.is_held_back:
            self._waited += (now - self._looked_at) * free / self._places
        self._looked_at = now

    def measure(self) -> dict[str, float]:
        """Return metrics since the last call, in seconds, including idle times."""
        now = self._clock()
        metrics = {
            "explore/wait_for_training": self._waited,
            "explore/time": now - self._measured_at,
        }
        self._waited, self._measured_at = 0.0, now
        return metrics
