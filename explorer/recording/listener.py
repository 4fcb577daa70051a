"""What an explorer and its policies need of the endpoint before there is one. It loads no HTTP server."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trinity_db.explorer.policy import Policy
from trinity_db.explorer.recording.offers import Offers
from trinity_db.store.groups import ClaimedGroup

if TYPE_CHECKING:
    from trinity_db.explorer.recording.agents import Agent
    from trinity_db.explorer.recording.endpoint import Endpoint


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


@dataclass(frozen=True)
class AttemptListener:
    """Lets programs ask the policy of one attempt. The first one makes the endpoint."""

    endpoint: "Callable[[], Endpoint]"
    group: ClaimedGroup
    member: int
    retry: int

    async def open(self, policy: Policy) -> "Agent":
        """By a new key."""
        return await self.endpoint().open(self.group, self.member, self.retry, policy)

    async def resume(self, policy: Policy) -> "Agent | None":
        """By the key that a program of the same attempt has of an explorer that is gone; None: none has."""
        if self.retry:  # an agent that is there made the attempt that failed
            return None
        return await self.endpoint().resume(self.group, self.member, policy)
