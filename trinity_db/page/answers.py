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


class Answers:
    """Asks a reader each question once for all who ask it at about the same time.

    A visitor waits for the database only where others did not look at the same a moment ago.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._answers: dict[Hashable, _Answer] = {}
        self._under_way: dict[Hashable, asyncio.Task[Any]] = {}

    async def ask(self, read: Callable[[Database], Result], visitor: Visitor | None = None) -> Result:
        """What a question finds, a function or a part of one, whose arguments tell it from others.

        It takes no visitor's share of the threads: it is asked for all.

        Raises:
            TrinityError: as Reader.ask does.
        """
        same = (read.func, read.args, *sorted(read.keywords.items())) if isinstance(read, partial) else read
        answer = self._answers.get(same)
        if answer is None or answer.age > 2:
            found: Result = await asyncio.shield(self._asked(same, read))
            return found
        if answer.age > 1:
            self._asked(same, read)
        kept: Result = answer.found
        return kept

    def _asked(self, same: Hashable, read: Callable[[Database], Any]) -> asyncio.Task[Any]:
        """The question on its way, begun here unless it is."""
        if same not in self._under_way:
            task = self._under_way[same] = asyncio.create_task(self._ask(same, read))
            task.add_done_callback(_heard)
        return self._under_way[same]

    async def _ask(self, same: Hashable, read: Callable[[Database], Any]) -> Any:
        begun = time.monotonic()
        try:
            found = await self._reader.ask(read)
        finally:
            del self._under_way[same]
            self._answers.pop(same, None)
        came = time.monotonic()
        self._answers[same] = _Answer(found, came - begun, came)
        while len(self._answers) > KEPT:
            del self._answers[next(iter(self._answers))]
        return found


def _heard(done: asyncio.Task[Any]) -> None:
    """Take note of an error: those who wait are told, and if none does, those who ask next."""
    if not done.cancelled():
        done.exception()
