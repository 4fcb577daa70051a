"""Stores the calls of agents before they are answered: one transaction takes all that came since the last."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from trinity_db.database import Database, Transaction
from trinity_db.errors import LeaseLost
from trinity_db.store import calls
from trinity_db.store.calls import Call
from trinity_db.store.groups import ClaimedGroup

Result = TypeVar("Result")

InStore = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a verb in the thread that has the connection, and awaits its result."""


class CallLog:
    """What an explorer stores of its agents.

    Args:
        worker_id: gives the explorer's number, which it has once it serves.
        give_up: whether the explorer stops, and waits for no database any more.
    """

    def __init__(
        self,
        database: Database,
        in_store: InStore,
        worker_id: Callable[[], int],
        give_up: Callable[[], bool],
    ) -> None:
        self._database = database
        self._in_store = in_store
        self._worker_id = worker_id
        self._give_up = give_up
        self._waiting: list[tuple[Call, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def begin(self, group: ClaimedGroup, member: int, retry: int, key: str) -> int:
        """Let a program in by its key; the agent's id.

        Raises:
            LeaseLost: another explorer has the group by now.
        """
        return await self._decide(lambda tx: calls.begin(tx, self._worker_id(), group, member, retry, key))

    async def add(self, call: Call) -> None:
        """Store a call. It is durable when this returns.

        Raises:
            LeaseLost: the agent has ended, or another explorer has its group by now. Nothing is stored.
        """
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, stored))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        await stored

    async def _write(self) -> None:
        while self._waiting:
            taken, self._waiting = self._waiting, []
            ended = LeaseLost("The attempt has ended.")
            problems: list[Exception | None]
            try:
                known = await self._record([call for call, _ in taken])
                problems = [None if (call.agent_id, call.number) in known else ended for call, _ in taken]
            except Exception as error:
                problems = [error] * len(taken)
            for (_, stored), problem in zip(taken, problems, strict=True):
                if stored.done():  # its attempt was cancelled meanwhile
                    continue
                if problem is not None:
                    stored.set_exception(problem)
                else:
                    stored.set_result(None)

    async def _record(self, taken: list[Call]) -> set[tuple[int, int]]:
        return await self._decide(lambda tx: calls.record(tx, self._worker_id(), taken))

    async def _decide(self, verb: Callable[[Transaction], Result]) -> Result:
        def decide() -> Result:
            with self._database.transaction() as tx:
                return verb(tx)

        result: Result = await self._in_store(lambda: self._database.retry(decide, self._give_up))
        return result
