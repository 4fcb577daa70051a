"""How much of its time an explorer waits for training."""

import time
from collections.abc import Callable


class EmptyPlaces:
    """How long the places of an explorer stand empty because no group may be started.

    An explorer has a place for each attempt that it may have under way.

    Args:
        places: how many there are.
    """

    def __init__(self, places: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_held_back = False
        """Whether the explorer got fewer groups than it asked for when it last asked."""
        self._places = places
        self._clock = clock
        self._looked_at = self._measured_at = clock()
        self._waited = 0.0

    def look(self, free: int) -> None:
        """Count the time since the last look, in which so many places were free."""
        now = self._clock()
        if self.is_held_back:
            self._waited += (now - self._looked_at) * free / self._places
        self._looked_at = now

    def measure(self) -> dict[str, float]:
        """Metrics of the time since the last call. They are in seconds, and pauses count."""
        now = self._clock()
        metrics = {
            "explore/wait_for_training": self._waited,
            "explore/time": now - self._measured_at,
        }
        self._waited, self._measured_at = 0.0, now
        return metrics
