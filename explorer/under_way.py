"""The attempts that one explorer has under way, those that ended and are not written, and those that wait."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from trinity_db.explorer.parking import AttemptParked
from trinity_db.store.groups import ClaimedGroup, Rollout

MakeAttempt = Callable[[ClaimedGroup, int], Coroutine[Any, Any, Rollout]]
Attempt = asyncio.Task[Rollout | None]
Member = tuple[int, int]
"""A group, and which of its members."""


class UnderWay:
    """What one explorer has in hand.

    Args:
        places: how many attempts may be under way.
        note_end: called when an attempt ended.
    """

    def __init__(self, places: int, note_end: Callable[[], None]) -> None:
        self.places = places
        self.evaluating: set[Attempt] = set()
        """Attempts of evaluations that are under way: while there is one, its version stays loaded."""
        self.parked: dict[int, MakeAttempt] = {}
        """Groups that the explorer holds and that have parked members, and what makes their attempts."""
        self._note_end = note_end
        self._attempts: dict[Attempt, Member] = {}
        self._ended: dict[Attempt, Member] = {}
        """Attempts that are not written yet."""

    def __bool__(self) -> bool:
        """Whether an attempt is under way."""
        return bool(self._attempts)

    @property
    def free(self) -> int:
        """How many more attempts may be under way."""
        return self.places - len(self._attempts)

    @property
    def has_ended(self) -> bool:
        """Whether an attempt ended that is not written yet."""
        return bool(self._ended)

    @property
    def busy(self) -> set[Member]:
        """The members with attempts that are under way or not written yet."""
        return {*self._attempts.values(), *self._ended.values()}

    @property
    def busy_groups(self) -> set[int]:
        """The groups of these members."""
        return {group_id for group_id, _ in self.busy}

    def begin(self, claimed: Sequence[ClaimedGroup], make: MakeAttempt) -> None:
        """Start the attempts of claimed groups."""
        self.parked |= {group.id: make for group in claimed if group.waits or group.parked}
        for group in claimed:
            for member in group.members:
                attempt = asyncio.create_task(self._made(make, group, member))
                attempt.add_done_callback(self._note)
                self._attempts[attempt] = group.id, member
                if group.is_evaluation:
                    self.evaluating.add(attempt)

    def take_ended(self) -> Collection[Attempt]:
        """The attempts that ended since the last call, for their rollouts to be written."""
        ended, self._ended = self._ended, {}
        return ended

    def end_spare(self, complete: set[int]) -> None:
        """Cancel attempts at members that complete groups do not need; they are written as such."""
        for attempt, (group_id, _) in self._attempts.items():
            if group_id in complete and not attempt.cancelling():
                attempt.cancel()

    async def cancel(self) -> None:
        """Give up what is under way. Other explorers attempt it when this worker has gone."""
        attempts = list(self._attempts)
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        self._attempts.clear()
        self.evaluating.clear()
        self._ended.clear()
        self.parked.clear()

    async def _made(self, make: MakeAttempt, group: ClaimedGroup, member: int) -> Rollout | None:
        try:
            return await make(group, member)
        except AttemptParked:
            self.parked[group.id] = make
            return None

    def _note(self, ended: Attempt) -> None:
        member = self._attempts.pop(ended, None)
        self.evaluating.discard(ended)
        if member is not None and not ended.cancelled():
            self._ended[ended] = member
            self._note_end()
