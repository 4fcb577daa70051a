"""Asks the database for pages."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from threading import Event, Lock
from typing import Generic, TypeVar

import psycopg
from psycopg.errors import QueryCanceled

from trinity_db.database import Database, Transaction
from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.page.rights import Visitor
from trinity_db.page.shares import Shares
from trinity_db.page.threads import THREADS, Threads

Result = TypeVar("Result")

STATEMENT_SECONDS = 10.0  # people wait no longer, and other visitors wait for the thread
SEARCHES = THREADS // 2  # at a time, of all visitors: the other threads are for pages that answer at once
CANCEL_SECONDS = 2.0  # that a cancellation may take
FIRST_PAUSE_SECONDS = 0.1  # before a cancellation is sent again; the pause doubles
LONGEST_PAUSE_SECONDS = 1.0


class Reader(Threads):
    """Answers questions of pages, some at a time. Others wait for their turn."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._shares = Shares()
        self._searches = asyncio.Semaphore(SEARCHES)

    @property
    def url(self) -> str:
        """Of the store, with the reader's login."""
        return self.database.url

    def turn(self, visitor: Visitor | None) -> AbstractAsyncContextManager[None]:
        """A place in a visitor's share of the threads.

        Raises:
            TrinityError: the visitor has too many questions under way.
        """
        return self._shares.turn(visitor)

    async def ask(self, read: Callable[[Database], Result], visitor: Visitor | None = None) -> Result:
        """What a question finds. If the task that waits for it is cancelled, its statement is too.

        Args:
            visitor: whose share of the threads it takes; None: it is asked for several, and takes none.

        Raises:
            DatabaseUnavailable: no database answers.
            TrinityError: the question failed, took too long, or the visitor has too many under way.
        """
        async with self.turn(visitor):
            return await self._answered(_Question(self.database, read))

    async def search(self, read: Callable[[Database], Result], visitor: Visitor | None = None) -> Result:
        """The same for a question that may take long, such as one with a condition that a person wrote."""
        async with self.turn(visitor), self._searches:
            return await self._answered(_Question(self.database, read))

    async def _answered(self, question: "_Question[Result]") -> Result:
        try:
            return await self.run(question.answer)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.to_thread(question.cancel))
            raise


class _Question(Generic[Result]):
    """A question that is asked in one thread, and may be cancelled from another."""

    def __init__(self, database: Database, read: Callable[[Database], Result]) -> None:
        self._database, self._read = database, read
        self._lock = Lock()
        self._connection: Transaction | None = None
        self._is_cancelled = Event()
        self._has_ended = Event()

    def answer(self) -> Result:
        """What it finds; in a thread of the reader."""
        try:
            return self._ask()
        except DatabaseUnavailable as error:
            if isinstance(error.__cause__, QueryCanceled):
                raise TrinityError(
                    f"The store did not answer in {STATEMENT_SECONDS:.0f} s: ask for less, as for one run."
                ) from error
        return self._ask()  # the connection was lost: a new one may be had at once

    def _ask(self) -> Result:
        connection = self._database.connection()
        with self._lock:
            if self._is_cancelled.is_set():
                raise TrinityError("The question was cancelled.")
            self._connection = connection
            self._has_ended.clear()
        try:
            return self._read(self._database)
        finally:
            with self._lock:
                self._connection = None
                self._has_ended.set()
                if self._is_cancelled.is_set():
                    self._database.close()  # a cancellation that comes late would end another statement

    def cancel(self) -> None:
        """End its statement on the server, or see to it that it is not asked.

        A cancellation that arrives between two statements of the question ends neither, so it is sent again
        until the question has ended.
        """
        self._is_cancelled.set()
        pause = FIRST_PAUSE_SECONDS
        while self._cancel_statement() and not self._has_ended.wait(pause):
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _cancel_statement(self) -> bool:
        """Send a cancellation; False if the question is not being asked."""
        with self._lock:
            if self._connection is None:
                return False
            with suppress(psycopg.Error):  # without a server there is nothing to end
                self._connection.cancel_safe(timeout=CANCEL_SECONDS)
            return True
