"""Shares of the page's threads, so that slow queries of one visitor do not block other visitors."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trinity_db.errors import TrinityError
from trinity_db.page.rights import Visitor

AT_ONCE = 2  # queries of one visitor that run at a time
WAITING = 20  # queries of one visitor that may wait: enough for a few tabs


class Shares:
    """Limits each visitor to a few concurrent queries. Further ones wait, in order.

    Threads serve queries first come, first served. A visitor has at most AT_ONCE of them in that queue, so
    nobody waits for more than AT_ONCE queries of each other visitor.
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._turns: dict[Visitor, asyncio.Semaphore] = {}
        self._queries: dict[Visitor, int] = {}

    @asynccontextmanager
    async def turn(self, visitor: Visitor | None) -> AsyncIterator[None]:
        """Wait until the visitor has a free place; without a visitor, do not wait.

        Raises:
            TrinityError: if too many queries of the visitor wait already.
        """
        if visitor is None:
            yield
            return
        queries = self._queries.get(visitor, 0)
        if queries >= self._at_once + WAITING:
            raise TrinityError(f"{queries} of your queries are in progress: wait, or close other tabs.")
        self._queries[visitor] = queries + 1
        turns = self._turns.setdefault(visitor, asyncio.Semaphore(self._at_once))
        try:
            async with turns:
                yield
        finally:
            self._queries[visitor] -= 1
            if not self._queries[visitor]:
                del self._queries[visitor], self._turns[visitor]
