"""Stores the calls of agents before they are answered, batching all pending calls into one transaction."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from trinity_db.errors import LeaseLost
from trinity_db.explorer.loop.store_thread import StoreThread
from trinity_db.store import calls, parks
from trinity_db.store.calls import Call, new_key
from trinity_db.store.groups import ClaimedGroup
from trinity_db.store.rewards import RewardEvent, record


class CallLog:
    """Stores the calls, rewards and parks of an explorer's agents."""

    def __init__(self, store: StoreThread) -> None:
        self._store = store
        self._waiting: list[tuple[Call, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        self.has_agents = False
        """Whether an attempt of this explorer has stored calls or parks."""

    async def begin(self, group: ClaimedGroup, member: int, retry: int) -> calls.Entered:
        """Register a program for a member of a group, with a new key.

        Raises:
            LeaseLost: if another explorer has claimed the group.
        """
        self.has_agents = True
        key = new_key()
        id = await self._store.decide(
            lambda tx: calls.begin(tx, self._store.worker_id, group, member, retry, key)
        )
        return calls.Entered(id, key, retry, {}, datetime.now(UTC))

    async def resume(self, group: ClaimedGroup, member: int) -> calls.ResumedAgent | None:
        """Take over the agent that an earlier explorer registered for a member, or return None."""
        self.has_agents = True
        return await self._store.decide(lambda tx: calls.resume(tx, self._store.worker_id, group, member))

    async def ticket(self, agent_id: int) -> int:
        """Return the ticket number that an answer to the attempt's next park must name.

        Raises:
            LeaseLost: if the agent has ended, or another explorer has claimed its group.
        """
        return await self._store.decide(lambda tx: parks.ticket(tx, self._store.worker_id, agent_id))

    async def park(
        self, agent_id: int, ticket: int, attempt: int, point: parks.Point, calls: Sequence[Call]
    ) -> None:
        """Park an attempt. It is durable when this returns.

        Raises:
            LeaseLost: if the agent has ended, or another explorer has claimed its group. Nothing is stored.
        """
        await self._store.decide(
            lambda tx: parks.park(tx, self._store.worker_id, agent_id, ticket, attempt, point, calls)
        )

    async def go_on(self, group: ClaimedGroup, member: int) -> parks.ResumedAttempt | None:
        """Resume a parked member of a group that this explorer has claimed; None if it is not parked."""
        self.has_agents = True
        return await self._store.decide(
            # A new key for each try: the key of a try that committed without a response stays unused.
            lambda tx: parks.resume(tx, self._store.worker_id, group, member, new_key())
        )

    async def reward(self, agent_id: int, rewards: dict[str, float]) -> None:
        """Store rewards reported by an agent.

        Raises:
            LeaseLost: if the agent has ended, or another explorer has claimed its group.
        """
        if not await self._store.decide(
            lambda tx: calls.reward(tx, self._store.worker_id, agent_id, rewards)
        ):
            raise LeaseLost("The attempt has ended.")

    async def dismiss(self, agent_id: int) -> None:
        """Close an agent: its further calls are rejected."""
        await self._store.decide(lambda tx: calls.dismiss(tx, self._store.worker_id, agent_id))

    async def fate(self, key: str) -> calls.Fate | None:
        """Return the outcome of the agent with a key, or None."""
        return await self._store.decide(lambda tx: calls.fate(tx, calls.hash_of(key)))

    async def judge(self, fate: calls.Fate, rewards: dict[str, float]) -> None:
        """Add reward events to the rollout of an agent that has ended."""
        events = [RewardEvent(fate.rollout_id, name, value) for name, value in rewards.items()]
        await self._store.decide(lambda tx: record(tx, fate.run_id, "explore", events))

    async def add(self, call: Call) -> None:
        """Store a call. It is durable when this returns.

        Raises:
            LeaseLost: if the agent has ended, or another explorer has claimed its group. Nothing is stored.
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
                if stored.done():  # the attempt was cancelled
                    continue
                if problem is not None:
                    stored.set_exception(problem)
                else:
                    stored.set_result(None)

    async def _record(self, taken: list[Call]) -> set[tuple[int, int]]:
        return await self._store.decide(lambda tx: calls.record(tx, self._store.worker_id, taken))
