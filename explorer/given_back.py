"""Attempts that do not begin here are left to other explorers, and tried again after a growing pause."""

import logging
import time
from collections.abc import Callable, Collection, Sequence

from trinity_db.store.groups import Rollout

logger = logging.getLogger(__name__)

PAUSE_SECONDS = (1.0, 60.0)  # after the first attempt that did not begin, and at most


class GivenBack:
    """Groups with attempts that did not begin here, and how long this explorer claims nothing therefore."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pause = 0.0
        self._until = -float("inf")
        self._groups: set[int] = set()

    @property
    def is_in_trouble(self) -> bool:
        """Whether the latest attempts did not begin: one more group shows whether the next ones do."""
        return self._pause > 0

    @property
    def pauses(self) -> bool:
        """Whether other explorers have the first claim of what did not begin here."""
        return self._clock() < self._until

    def note(self, ended: Sequence[Rollout]) -> None:
        """Note attempts that ended: those that did not begin, and others, by which the trouble is over."""
        given_back = [rollout for rollout in ended if rollout.given_back]
        self._groups |= {rollout.group.id for rollout in given_back}
        has_begun = any(not rollout.given_back and not rollout.was_cancelled for rollout in ended)
        first, most = PAUSE_SECONDS
        if not given_back:
            self._pause = 0.0 if has_begun else self._pause
        elif not self.pauses:  # one growth for all that ended together
            self._pause = first if has_begun else min(max(first, 2 * self._pause), most)
            self._until = self._clock() + self._pause
            logger.warning(
                "attempts do not begin here and go back to the store; the next try is in %g s: %s",
                self._pause,
                given_back[0].error,
            )

    def at_rest(self, busy: Collection[int]) -> list[int]:
        """Groups that nothing here works on any more, for other explorers to take; each is named once."""
        resting = self._groups.difference(busy)
        self._groups -= resting
        return sorted(resting)
