"""The parts of the endpoint that are needed before it starts. Does not import the HTTP server."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.http.offers import Offers
from trinity_db.store.calls import Call, Entered
from trinity_db.store.groups import ClaimedGroup
from trinity_db.store.parks import Point, ResumedAttempt

if TYPE_CHECKING:
    from trinity_db.explorer.http.agents import Agent
    from trinity_db.explorer.http.endpoint import Endpoint
    from trinity_db.explorer.http.log import CallLog


@dataclass(frozen=True)
class EndpointAddress:
    """Address of the endpoint, and which programs it serves."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port."""
    offers: Offers | None = None
    """Attempts offered to external agents; None: the explorer's workflow starts all programs."""
    key: str | None = None
    """Key that a program must present to take an attempt; None: no key required."""
    trace: Any = None
    """A middleware of aiohttp around each request; None: none."""


@dataclass
class AttemptListener:
    """Stores an attempt's state beyond its rollout: calls of programs over HTTP, and parks.

    The endpoint is started for the first program.
    """

    log: "CallLog"
    endpoint: "Callable[[], Endpoint]"
    group: ClaimedGroup
    member: int
    retry: int
    resumed: ResumedAttempt | None = None
    """Point from which the attempt resumes; None: it starts from the beginning."""
    _entered: Entered | None = field(default=None, init=False)
    _entering: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def open(self, policy: Policy) -> "Agent":
        """Start the endpoint if needed, and admit a program with a new key."""
        endpoint = self.endpoint()
        await endpoint.start()
        return endpoint.let_in(await self._agent(), self.group, self.member, policy)

    async def resume(self, policy: Policy) -> "Agent | None":
        """Readmit the attempt's program, with the key from an earlier explorer, or return None."""
        if self.retry:  # an existing agent belongs to the attempt that failed
            return None
        return await self.endpoint().resume(self.group, self.member, policy)

    async def ticket(self) -> int:
        """Return the ticket number that an answer to the attempt's next park must name."""
        return await self.log.ticket((await self._agent()).id)

    async def park(self, point: Point, calls: Sequence[Call]) -> None:
        """Park the attempt, with its unstored calls. It is durable when this returns."""
        agent = await self._agent()
        attempt = self.group.attempt if self.resumed is None else self.resumed.attempt
        calls = [replace(call, agent_id=agent.id) for call in calls]
        await self.log.park(agent.id, await self.log.ticket(agent.id), attempt, point, calls)

    async def _agent(self) -> Entered:
        """Return the attempt's agent in the store, registering it if needed."""
        async with self._entering:
            if self._entered is None:
                if self.resumed is not None:
                    self._entered = self.resumed.agent
                else:
                    self._entered = await self.log.begin(self.group, self.member, self.retry)
            return self._entered
