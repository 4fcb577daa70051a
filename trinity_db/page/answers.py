"""Shared query results: a query that several visitors follow runs once for all of them."""

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from trinity_db.page.reader import Reader
from trinity_db.page.rights import Visitor
from trinity_db.postgres.connection import Database

Result = TypeVar("Result")

PAUSES = 10  # pause in multiples of a query's duration, so that visitors do not keep a large store busy
KEPT = 50  # results; that of a run with long curves takes about a megabyte


@dataclass(frozen=True)
class _Answer:
    result: Any
    seconds: float
    """Duration of the query."""
    ended: float

    @property
    def age(self) -> float:
        """Age in pauses: up to 1 the result is fresh, up to 2 it is returned while the query runs again."""
        return (time.monotonic() - self.ended) / (PAUSES * self.seconds)


class _UnderWay:
    """A query that is running, and how many visitors wait for its result."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.waiting = 0

    async def answer(self) -> Any:
        """Wait for the result. The query is cancelled when the last waiting visitor leaves."""
        self.waiting += 1
        try:
            return await asyncio.shield(self.task)
        finally:
            self.waiting -= 1
            if not self.waiting and not self.task.done():
                self.task.cancel()


class Answers:
    """Runs each query once for all visitors who need it at about the same time.

    A visitor waits for the database only if no other visitor has read the same recently.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._answers: dict[Hashable, _Answer] = {}
        self._under_way: dict[Hashable, _UnderWay] = {}
        self._renewals: dict[Hashable, asyncio.Task[None]] = {}

    async def ask(self, read: Callable[[Database], Result], visitor: Visitor | None = None) -> Result:
        """Return the result of a query. A query is identified by its function and arguments.

        A visitor who waits for the database takes a place in the visitor's share of the threads, even if
        others wait for the same query. The same applies to a visitor who gets an old result while its query
        runs again. So the limit of queries per visitor is that of `Reader.ask`.

        Raises:
            TrinityError: if `Reader.ask` raises it.
        """
        key = (read.func, read.args, *sorted(read.keywords.items())) if isinstance(read, partial) else read
        if (answer := self._cached(key)) is None:
            async with self._reader.turn(visitor):
                if (answer := self._cached(key)) is None:  # others may have asked while this visitor waited
                    result: Result = await self._running(key, read).answer()
                    return result
        if answer.age > 1 and key not in self._under_way and key not in self._renewals:
            task = self._renewals[key] = asyncio.create_task(self._renew(key, read, visitor))
            task.add_done_callback(partial(self._renewed, key))
        cached: Result = answer.result
        return cached

    async def _renew(self, key: Hashable, read: Callable[[Database], Any], visitor: Visitor | None) -> None:
        """Run the query of a visitor's result again."""
        async with self._reader.turn(visitor):
            await self._running(key, read).answer()

    def _renewed(self, key: Hashable, task: asyncio.Task[None]) -> None:
        """Retrieve a task's error, so that asyncio does not log it; the next request gets the error."""
        del self._renewals[key]
        if not task.cancelled():
            task.exception()

    def _cached(self, key: Hashable) -> _Answer | None:
        """Return a stored result that is recent enough to be shown."""
        answer = self._answers.get(key)
        return None if answer is None or answer.age > 2 else answer

    def _running(self, key: Hashable, read: Callable[[Database], Any]) -> _UnderWay:
        """Return the running query; start it if it is not running."""
        under_way = self._under_way.get(key)
        if under_way is None or under_way.task.cancelling():
            task = asyncio.create_task(self._ask(key, read))
            under_way = self._under_way[key] = _UnderWay(task)
            task.add_done_callback(partial(self._ended, key, under_way))
        return under_way

    async def _ask(self, key: Hashable, read: Callable[[Database], Any]) -> Any:
        begun = time.monotonic()
        try:
            result = await self._reader.ask(read)
        finally:
            self._answers.pop(key, None)
        ended = time.monotonic()
        self._answers[key] = _Answer(result, ended - begun, ended)
        while len(self._answers) > KEPT:
            del self._answers[next(iter(self._answers))]
        return result

    def _ended(self, key: Hashable, under_way: _UnderWay, task: asyncio.Task[Any]) -> None:
        """Forget a finished query, and retrieve its error; the waiting visitors get the error too."""
        if self._under_way.get(key) is under_way:
            del self._under_way[key]
        if not task.cancelled():
            task.exception()
