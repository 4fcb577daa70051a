"""The thread of an explorer that speaks to the store, so that attempts go on while a transaction waits."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from trinity_db.database import Transaction
from trinity_db.service import Service

Result = TypeVar("Result")


class StoreThread:
    """Runs an explorer's transactions, one after the other, on a connection of its own."""

    def __init__(self, explorer: Service) -> None:
        self.run_id = explorer.run.id
        self._explorer = explorer
        self._database = explorer.database
        self._thread = ThreadPoolExecutor(1, "store")

    @property
    def worker_id(self) -> int:
        """The explorer's number. It has one once it serves."""
        return self._explorer.worker_id

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run a function in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def wait(self, work: Callable[[], Result]) -> Result:
        """Run a function in the thread, for a caller in another thread that has nothing else to do."""
        return self._thread.submit(work).result()

    async def once(self, verb: Callable[[Transaction], Result]) -> Result:
        """Run a verb in one transaction, which is not repeated. For claims: a claim may take other groups.

        Raises:
            DatabaseUnavailable: the transaction may be committed or not.
        """
        return await self.run(lambda: self._in_transaction(verb))

    async def decide(self, verb: Callable[[Transaction], Result]) -> Result:
        """Run a verb in one transaction, and repeat it until the database answers.

        The verb must be harmless when it is repeated after a commit without an answer.

        Raises:
            DatabaseUnavailable: the explorer stops, and the database did not answer.
        """

        def decide() -> Result:
            return self._in_transaction(verb)

        return await self.run(lambda: self._database.retry(decide, lambda: self._explorer.stopping))

    def close(self) -> None:
        """Close the connection; the next transaction opens another one."""
        self._thread.submit(self._database.close).result()

    def _in_transaction(self, verb: Callable[[Transaction], Result]) -> Result:
        with self._database.transaction() as tx:
            return verb(tx)
