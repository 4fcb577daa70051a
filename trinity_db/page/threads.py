"""Threads that use a database, with a connection each: the event loop never waits for it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

from trinity_db.database import Database

Result = TypeVar("Result")

THREADS = 4  # each with a connection; a reader's login has 20


class Threads:
    """Does work on a database, some at a time. Other work waits for its turn."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="page")

    async def run(self, work: Callable[[], Result]) -> Result:
        """What a piece of work returns, or raises."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Close the connection of each thread, once it has done what it was given."""
        together = Barrier(THREADS)

        def leave() -> None:
            if together.wait() == 0:
                self.finish()
            self.database.close()

        for _ in range(THREADS):
            self._threads.submit(leave)
        self._threads.shutdown()

    def finish(self) -> None:
        """What is left to do at the end, in one of the threads."""
