"""Stores the calls of agents before they are answered: one transaction takes all that came since the last."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from trinity_db.database import Database, Transaction
from trinity_db.errors import LeaseLost
from trinity_db.store import calls
from trinity_db.store.calls import Call
from trinity_db.store.groups import ClaimedGroup
from trinity_db.store.rewards import RewardEvent, record

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

    async def resume(self, group: ClaimedGroup, member: int) -> calls.Resumed | None:
        """Take over the agent that an explorer before this one let in for a member, if there is one."""
        return await self._decide(lambda tx: calls.resume(tx, self._worker_id(), group, member))

    async def reward(self, agent_id: int, rewards: dict[str, float]) -> None:
        """Store what an agent says to have earned.

        Raises:
            LeaseLost: the agent has ended, or another explorer has its group by now.
        """
        if not await self._decide(lambda tx: calls.reward(tx, self._worker_id(), agent_id, rewards)):
            raise LeaseLost("The attempt has ended.")

    async def dismiss(self, agent_id: int) -> None:
        """Take no more calls of an agent."""
        await self._decide(lambda tx: calls.dismiss(tx, self._worker_id(), agent_id))

    async def fate(self, key: str) -> calls.Fate | None:
        """What became of the agent with a key; None: there is none."""
        return await self._decide(lambda tx: calls.fate(tx, calls.hash_of(key)))

    async def judge(self, fate: calls.Fate, rewards: dict[str, float]) -> None:
        """Reward the rollout of an agent that has ended."""
        events = [RewardEvent(fate.rollout_id, name, value) for name, value in rewards.items()]
        await self._decide(lambda tx: record(tx, fate.run_id, "explore", events))

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
