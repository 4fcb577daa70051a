"""Threads for database work, with a connection each, so that the event loop never blocks."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

from trinity_db.postgres.connection import Database

Result = TypeVar("Result")

THREADS = 4  # each with a connection; the reader login allows 20


class Threads:
    """Runs database work on a few threads. Further work waits its turn."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="page")

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run a piece of work in a thread, and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Close the connection of each thread after its remaining work."""
        together = Barrier(THREADS)

        def leave() -> None:
            if together.wait() == 0:
                self.finish()
            self.database.close()

        for _ in range(THREADS):
            self._threads.submit(leave)
        self._threads.shutdown()

    def finish(self) -> None:
        """Hook for final work, called in one of the threads."""
