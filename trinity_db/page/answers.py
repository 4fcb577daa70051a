"""Answers that visitors share: what several of them follow is asked once for all."""

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from trinity_db.database import Database
from trinity_db.page.reader import Reader
from trinity_db.page.rights import Visitor

Result = TypeVar("Result")

PAUSES = 10  # times as long as an answer took, so that visitors do not keep a large store busy
KEPT = 50  # answers; one about a run with long curves takes about a megabyte


@dataclass(frozen=True)
class _Answer:
    found: Any
    seconds: float
    """That it took."""
    came: float

    @property
    def age(self) -> float:
        """In pauses: up to one it is as good as new, up to two it is given while it is asked anew."""
        return (time.monotonic() - self.came) / (PAUSES * self.seconds)


class _UnderWay:
    """A question on its way to the database, and how many visitors wait for its answer."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.waiting = 0

    async def answer(self) -> Any:
        """Wait for the answer. The last visitor who leaves before it came ends the question."""
        self.waiting += 1
        try:
            return await asyncio.shield(self.task)
        finally:
            self.waiting -= 1
            if not self.waiting and not self.task.done():
                self.task.cancel()


class Answers:
    """Asks a reader each question once for all who ask it at about the same time.

    A visitor waits for the database only where others did not look at the same a moment ago.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._answers: dict[Hashable, _Answer] = {}
        self._under_way: dict[Hashable, _UnderWay] = {}
        self._renewals: dict[Hashable, asyncio.Task[None]] = {}

    async def ask(self, read: Callable[[Database], Result], visitor: Visitor | None = None) -> Result:
        """What a question finds, a function or a part of one, whose arguments tell it from others.

        A visitor who waits for the database takes a place of the visitor's share of the threads, also where
        others wait for the same. The same applies to a visitor who gets an old answer while its query runs
        again. So each visitor has as many questions under way as for `Reader.ask`.

        Raises:
            TrinityError: as Reader.ask does.
        """
        same = (read.func, read.args, *sorted(read.keywords.items())) if isinstance(read, partial) else read
        if (kept := self._kept(same)) is None:
            async with self._reader.turn(visitor):
                if (kept := self._kept(same)) is None:  # others may have asked while this visitor waited
                    found: Result = await self._asked(same, read).answer()
                    return found
        if kept.age > 1 and same not in self._under_way and same not in self._renewals:
            task = self._renewals[same] = asyncio.create_task(self._renew(same, read, visitor))
            task.add_done_callback(partial(self._renewed, same))
        answer: Result = kept.found
        return answer

    async def _renew(self, same: Hashable, read: Callable[[Database], Any], visitor: Visitor | None) -> None:
        """Run the query of a visitor's answer again."""
        async with self._reader.turn(visitor):
            await self._asked(same, read).answer()

    def _renewed(self, same: Hashable, task: asyncio.Task[None]) -> None:
        """Take note of an error. No visitor waits for the answer: the next request gets the error."""
        del self._renewals[same]
        if not task.cancelled():
            task.exception()

    def _kept(self, same: Hashable) -> _Answer | None:
        """An answer that is new enough to be given."""
        answer = self._answers.get(same)
        return None if answer is None or answer.age > 2 else answer

    def _asked(self, same: Hashable, read: Callable[[Database], Any]) -> _UnderWay:
        """The question on its way, begun here unless it is."""
        under_way = self._under_way.get(same)
        if under_way is None or under_way.task.cancelling():
            task = asyncio.create_task(self._ask(same, read))
            under_way = self._under_way[same] = _UnderWay(task)
            task.add_done_callback(partial(self._ended, same, under_way))
        return under_way

    async def _ask(self, same: Hashable, read: Callable[[Database], Any]) -> Any:
        begun = time.monotonic()
        try:
            found = await self._reader.ask(read)
        finally:
            self._answers.pop(same, None)
        came = time.monotonic()
        self._answers[same] = _Answer(found, came - begun, came)
        while len(self._answers) > KEPT:
            del self._answers[next(iter(self._answers))]
        return found

    def _ended(self, same: Hashable, under_way: _UnderWay, task: asyncio.Task[Any]) -> None:
        """Forget a question that has its answer, and take note of an error: those who wait are told."""
        if self._under_way.get(same) is under_way:
            del self._under_way[same]
        if not task.cancelled():
            task.exception()
