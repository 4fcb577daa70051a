"""Shares of the page's threads: the slow questions of one visitor leave threads to all others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trinity_db.errors import TrinityError
from trinity_db.page.rights import Visitor

AT_ONCE = 2  # questions of a visitor that the database answers at a time
WAITING = 20  # more questions of a visitor that wait for their turn: a few tabs have as many


class Shares:
    """Lets each visitor have some questions answered at a time. Further ones wait for these, in their order.

    The threads take questions first come, first served. A visitor has AT_ONCE of them there at most, so no
    visitor waits for more than that of each other one.
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._turns: dict[Visitor, asyncio.Semaphore] = {}
        self._asked: dict[Visitor, int] = {}

    @asynccontextmanager
    async def turn(self, visitor: Visitor | None) -> AsyncIterator[None]:
        """Wait until the visitor has a place; without a visitor there is nothing to wait for.

        Raises:
            TrinityError: too many questions of the visitor wait already.
        """
        if visitor is None:
            yield
            return
        asked = self._asked.get(visitor, 0)
        if asked >= self._at_once + WAITING:
            raise TrinityError(f"{asked} of your questions are under way: wait, or close other tabs.")
        self._asked[visitor] = asked + 1
        turns = self._turns.setdefault(visitor, asyncio.Semaphore(self._at_once))
        try:
            async with turns:
                yield
        finally:
            self._asked[visitor] -= 1
            if not self._asked[visitor]:
                del self._asked[visitor], self._turns[visitor]
