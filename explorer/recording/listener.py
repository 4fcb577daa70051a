"""What an explorer and its policies need of the endpoint before there is one. It loads no HTTP server."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trinity_db.explorer.policy import Policy
from trinity_db.explorer.recording.offers import Offers
from trinity_db.store.calls import Call, Entered
from trinity_db.store.groups import ClaimedGroup
from trinity_db.store.parks import Point, Resumed

if TYPE_CHECKING:
    from trinity_db.explorer.recording.agents import Agent
    from trinity_db.explorer.recording.endpoint import Endpoint
    from trinity_db.explorer.recording.log import CallLog


@dataclass(frozen=True)
class Place:
    """Where the endpoint listens, and for which programs."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any that is free."""
    offers: Offers | None = None
    """Attempts for agents that other people start; None: the explorer's workflow starts all of them."""
    key: str | None = None
    """What a program must say to be given an attempt; None: any program is given one."""


@dataclass
class AttemptListener:
    """Stores what one attempt needs beyond its rollout: calls of programs over HTTP, and parks.

    The first program makes the endpoint.
    """

    log: "CallLog"
    endpoint: "Callable[[], Endpoint]"
    group: ClaimedGroup
    member: int
    retry: int
    resumed: Resumed | None = None
    """What the attempt goes on from; None: it begins."""
    _entered: Entered | None = field(default=None, init=False)
    _entering: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def open(self, policy: Policy) -> "Agent":
        """By a new key."""
        endpoint = self.endpoint()
        await endpoint.start()
        return endpoint.let_in(await self._agent(), self.group, self.member, policy)

    async def resume(self, policy: Policy) -> "Agent | None":
        """By the key that a program of the same attempt has of an explorer that is gone; None: none has."""
        if self.retry:  # an agent that is there made the attempt that failed
            return None
        return await self.endpoint().resume(self.group, self.member, policy)

    async def ticket(self) -> int:
        """The number by which the attempt's next park is answered."""
        return await self.log.ticket((await self._agent()).id)

    async def park(self, point: Point, said: Sequence[Call]) -> None:
        """Park the attempt, with the calls that are not stored yet. It is durable when this returns."""
        agent = await self._agent()
        attempt = self.group.attempt if self.resumed is None else self.resumed.attempt
        said = [replace(call, agent_id=agent.id) for call in said]
        await self.log.park(agent.id, await self.log.ticket(agent.id), attempt, point, said)

    async def _agent(self) -> Entered:
        """The attempt in the store."""
        async with self._entering:
            if self._entered is None:
                if self.resumed is not None:
                    self._entered = self.resumed.agent
                else:
                    self._entered = await self.log.begin(self.group, self.member, self.retry)
            return self._entered
