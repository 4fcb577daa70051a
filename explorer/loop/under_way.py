"""The attempts of one explorer: in progress, finished but not written, and parked."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from trinity_db.explorer.attempt.parking import AttemptParked
from trinity_db.store.groups import ClaimedGroup, Rollout

MakeAttempt = Callable[[ClaimedGroup, int], Coroutine[Any, Any, Rollout]]
Attempt = asyncio.Task[Rollout | None]
Member = tuple[int, int]
"""Id of a group, and the member's number in it."""


class UnderWay:
    """The attempts of one explorer.

    Args:
        places: maximum number of attempts in progress (slots).
        note_end: called when an attempt ends.
    """

    def __init__(self, places: int, note_end: Callable[[], None]) -> None:
        self.places = places
        self.evaluating: set[Attempt] = set()
        """Attempts of evaluations in progress; while there are any, their version stays loaded."""
        self.parked: dict[int, MakeAttempt] = {}
        """Claimed groups with parked members, with the function that makes their attempts."""
        self._note_end = note_end
        self._attempts: dict[Attempt, Member] = {}
        self._ended: dict[Attempt, Member] = {}
        """Finished attempts that are not written yet."""

    def __bool__(self) -> bool:
        """Whether an attempt is in progress."""
        return bool(self._attempts)

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self.places - len(self._attempts)

    @property
    def has_ended(self) -> bool:
        """Whether a finished attempt is not written yet."""
        return bool(self._ended)

    @property
    def busy(self) -> set[Member]:
        """Members whose attempts are in progress or not written yet."""
        return {*self._attempts.values(), *self._ended.values()}

    @property
    def busy_groups(self) -> set[int]:
        """Groups of these members."""
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
        """Return the attempts that ended since the last call, for their rollouts to be written."""
        ended, self._ended = self._ended, {}
        return ended

    def end_spare(self, complete: set[int]) -> None:
        """Cancel attempts that complete groups do not need; their rollouts are written as cancelled."""
        for attempt, (group_id, _) in self._attempts.items():
            if group_id in complete and not attempt.cancelling():
                attempt.cancel()

    async def cancel(self) -> None:
        """Cancel all attempts. Other explorers make them again after this worker is gone."""
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
