"""The thread in which an explorer accesses the store, so that attempts continue during transactions."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from trinity_db.postgres.connection import Transaction
from trinity_db.worker.service import Service

Result = TypeVar("Result")


class StoreThread:
    """Runs an explorer's transactions sequentially, on a separate connection."""

    def __init__(self, explorer: Service) -> None:
        self.run_id = explorer.run.id
        self._explorer = explorer
        self._database = explorer.database
        self._thread = ThreadPoolExecutor(1, "store")

    @property
    def worker_id(self) -> int:
        """Worker id of the explorer, available while it is serving."""
        return self._explorer.worker_id

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run a function in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def wait(self, work: Callable[[], Result]) -> Result:
        """Run a function in the thread, blocking the caller."""
        return self._thread.submit(work).result()

    async def once(self, verb: Callable[[Transaction], Result]) -> Result:
        """Run a function in one transaction, without retries. For claims: a retry could claim further groups.

        Raises:
            DatabaseUnavailable: if the outcome is unknown: the transaction may have been committed or not.
        """
        return await self.run(lambda: self._in_transaction(verb))

    async def decide(self, verb: Callable[[Transaction], Result]) -> Result:
        """Run a function in one transaction, retrying until the database answers.

        The function must be idempotent: it may be repeated after a commit without a response.

        Raises:
            DatabaseUnavailable: if the explorer is stopping, and the database did not answer.
        """

        def decide() -> Result:
            return self._in_transaction(verb)

        return await self.run(lambda: self._database.retry(decide, lambda: self._explorer.stopping))

    def close(self) -> None:
        """Close the connection; the next transaction opens a new one."""
        self._thread.submit(self._database.close).result()

    def _in_transaction(self, verb: Callable[[Transaction], Result]) -> Result:
        with self._database.transaction() as tx:
            return verb(tx)
