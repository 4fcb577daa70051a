"""Asks the database for pages, in threads: the event loop never waits for it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import TypeVar

from psycopg.errors import QueryCanceled

from trinity_db.database import Database
from trinity_db.errors import DatabaseUnavailable, TrinityError

Result = TypeVar("Result")

THREADS = 4  # each with a connection; a reader's login has 20
STATEMENT_SECONDS = 10.0  # people wait no longer, and other visitors wait for the thread


class Reader:
    """Answers questions of pages, some at a time. Others wait for their turn."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.url = database.url
        """Of the store, with the reader's login."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="page")

    async def ask(self, read: Callable[[Database], Result]) -> Result:
        """What a question finds.

        Raises:
            DatabaseUnavailable: no database answers.
            TrinityError: the question failed, or took too long; with what to do.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(self._read, read))

    def _read(self, read: Callable[[Database], Result]) -> Result:
        try:
            return read(self._database)
        except DatabaseUnavailable as error:
            if isinstance(error.__cause__, QueryCanceled):
                raise TrinityError(
                    f"The store did not answer in {STATEMENT_SECONDS:.0f} s: ask for less, as for one run."
                ) from error
        return read(self._database)  # the connection was lost: a new one may be had at once

    def close(self) -> None:
        """Close the connection of each thread."""
        together = Barrier(THREADS)

        def leave() -> None:
            together.wait()
            self._database.close()

        for _ in range(THREADS):
            self._threads.submit(leave)
        self._threads.shutdown()
