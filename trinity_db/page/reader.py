"""Runs the pages' queries on the database."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from threading import Event, Lock
from typing import Generic, TypeVar

import psycopg
from psycopg.errors import QueryCanceled

from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.page.rights import Visitor
from trinity_db.page.shares import Shares
from trinity_db.page.threads import THREADS, Threads
from trinity_db.postgres.connection import Database, Transaction

Result = TypeVar("Result")

STATEMENT_SECONDS = 10.0  # people do not wait longer, and other visitors need the thread
SEARCHES = THREADS // 2  # concurrent searches of all visitors: the other threads serve fast pages
CANCEL_SECONDS = 2.0  # limit of a cancellation
FIRST_PAUSE_SECONDS = 0.1  # before a cancellation is sent again; the pause doubles
LONGEST_PAUSE_SECONDS = 1.0


class Reader(Threads):
    """Runs queries of pages on a few threads. Further queries wait their turn."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._shares = Shares()
        self._searches = asyncio.Semaphore(SEARCHES)

    @property
    def url(self) -> str:
        """URL of the store, with the reader's login."""
        return self.database.url

    def turn(self, visitor: Visitor | None) -> AbstractAsyncContextManager[None]:
        """Context that holds a place in a visitor's share of the threads.

        Raises:
            TrinityError: if the visitor has too many queries in progress.
        """
        return self._shares.turn(visitor)

    async def ask(self, read: Callable[[Database], Result], visitor: Visitor | None = None) -> Result:
        """Run a query. If the waiting task is cancelled, so is the statement.

        Args:
            visitor: whose share of the threads the query takes; None: it runs for several visitors and takes
            none.

        Raises:
            DatabaseUnavailable: if no database answers.
            TrinityError: if the query failed or took too long, or the visitor has too many in progress.
        """
        async with self.turn(visitor):
            return await self._answered(_Question(self.database, read))

    async def search(self, read: Callable[[Database], Result], visitor: Visitor | None = None) -> Result:
        """Run a query that may take long, such as one with a condition that a person wrote."""
        async with self.turn(visitor), self._searches:
            return await self._answered(_Question(self.database, read))

    async def _answered(self, question: "_Question[Result]") -> Result:
        try:
            return await self.run(question.answer)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.to_thread(question.cancel))
            raise


class _Question(Generic[Result]):
    """A query that runs in one thread, and can be cancelled from another."""

    def __init__(self, database: Database, read: Callable[[Database], Result]) -> None:
        self._database, self._read = database, read
        self._lock = Lock()
        self._connection: Transaction | None = None
        self._is_cancelled = Event()
        self._has_ended = Event()

    def answer(self) -> Result:
        """Run the query, in a thread of the reader."""
        try:
            return self._ask()
        except DatabaseUnavailable as error:
            if isinstance(error.__cause__, QueryCanceled):
                raise TrinityError(
                    f"The store did not answer in {STATEMENT_SECONDS:.0f} s: narrow it down, e.g. to one run."
                ) from error
        return self._ask()  # the connection was lost: a new one may work at once

    def _ask(self) -> Result:
        connection = self._database.connection()
        with self._lock:
            if self._is_cancelled.is_set():
                raise TrinityError("The query was cancelled.")
            self._connection = connection
            self._has_ended.clear()
        try:
            return self._read(self._database)
        finally:
            with self._lock:
                self._connection = None
                self._has_ended.set()
                if self._is_cancelled.is_set():
                    self._database.close()  # a late cancellation would end another statement

    def cancel(self) -> None:
        """Cancel the statement on the server, or prevent it from starting.

        A cancellation that arrives between two statements of the query has no effect, so it is repeated until
        the query has ended.
        """
        self._is_cancelled.set()
        pause = FIRST_PAUSE_SECONDS
        while self._cancel_statement() and not self._has_ended.wait(pause):
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _cancel_statement(self) -> bool:
        """Send a cancellation; False if the query is not running."""
        with self._lock:
            if self._connection is None:
                return False
            with suppress(psycopg.Error):  # without a server there is nothing to end
                self._connection.cancel_safe(timeout=CANCEL_SECONDS)
            return True
