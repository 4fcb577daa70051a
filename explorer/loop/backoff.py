"""Backoff for attempts that do not start in this explorer: others may take them meanwhile."""

import logging
import time
from collections.abc import Callable, Collection, Sequence

from trinity_db.store.groups import Rollout

logger = logging.getLogger(__name__)

PAUSE_SECONDS = (1.0, 60.0)  # initial and maximum delay


class GivenBack:
    """Tracks groups with attempts that did not start here, and the backoff before claiming more."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pause = 0.0
        self._until = -float("inf")
        self._groups: set[int] = set()

    @property
    def is_in_trouble(self) -> bool:
        """Whether the latest attempts did not start: then a single group is claimed as a probe."""
        return self._pause > 0

    @property
    def pauses(self) -> bool:
        """Whether this explorer claims nothing, to leave such groups to other explorers."""
        return self._clock() < self._until

    def note(self, ended: Sequence[Rollout]) -> None:
        """Record ended attempts: attempts that did not start, and others, which reset the backoff."""
        given_back = [rollout for rollout in ended if rollout.given_back]
        self._groups |= {rollout.group.id for rollout in given_back}
        has_begun = any(not rollout.given_back and not rollout.was_cancelled for rollout in ended)
        first, most = PAUSE_SECONDS
        if not given_back:
            self._pause = 0.0 if has_begun else self._pause
        elif not self.pauses:  # double once for all that ended together
            self._pause = first if has_begun else min(max(first, 2 * self._pause), most)
            self._until = self._clock() + self._pause
            logger.warning(
                "attempts do not start here and are released; the next try is in %g s: %s",
                self._pause,
                given_back[0].error,
            )

    def at_rest(self, busy: Collection[int]) -> list[int]:
        """Return released groups without attempts in progress here, for other explorers; each once."""
        resting = self._groups.difference(busy)
        self._groups -= resting
        return sorted(resting)
