"""Attempts for external agents: each waits until a program takes it, and then until it ends."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from trinity_db.explorer.attempt.policy import Policy

if TYPE_CHECKING:
    from trinity_db.explorer.http.agents import Agent


SILENT_SECONDS = 3600.0  # without requests, after which an agent without a time limit counts as gone


class TookTooLong(Exception):
    """The agent exceeded its time limit, or is gone."""


@dataclass(eq=False)
class _Offer:
    """An attempt offered to programs."""

    task: Mapping[str, Any]
    is_taken: asyncio.Event = field(default_factory=asyncio.Event)
    agent: "asyncio.Future[Agent]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """The program's agent, once the attempt is taken."""


class Offers:
    """A workflow that offers each attempt to the next program that asks for one.

    Args:
        seconds: timeout from when a program takes an attempt to its end; None: no limit, and the attempt ends
            when the program has sent no request for `SILENT_SECONDS`.
        needs_reward: whether an attempt cannot be finished without a reward, because nothing else gives one.
    """

    def __init__(self, seconds: float | None, needs_reward: bool = False) -> None:
        self.needs_reward = needs_reward
        self._seconds = seconds
        self._offered: deque[_Offer] = deque()
        """Offers, oldest first."""
        self._news = asyncio.Event()

    async def __call__(self, task: Mapping[str, Any], policy: Policy) -> None:
        """Wait for a program to take the attempt, and for its end.

        Raises:
            AttemptFailed: if the program reports a failure.
            TookTooLong: if it did not end in time, or is gone.
        """
        agent = cast("Agent | None", await policy.resumed_address())
        if agent is None:
            agent = await self._given_out(task, policy)
        if self._seconds is None:
            await _end_or_silence(agent)
            return
        seconds = max(0.0, self._seconds - (datetime.now(UTC) - agent.started_at).total_seconds())
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(agent.finished)
        except TimeoutError:
            raise TookTooLong(f"took longer than {self._seconds:g} s") from None

    async def take(
        self, seconds: float, is_wanted: Callable[[], bool]
    ) -> "tuple[Agent, Mapping[str, Any]] | None":
        """Return the next attempt's agent and task; None if none is offered in time, or no longer wanted."""
        try:
            async with asyncio.timeout(seconds):
                while not self._offered:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return None
        if not is_wanted():
            return None
        offer = self._offered.popleft()
        offer.is_taken.set()
        return await offer.agent, offer.task

    async def _given_out(self, task: Mapping[str, Any], policy: Policy) -> "Agent":
        offer = _Offer(task)
        self._offered.append(offer)
        self._news.set()
        try:
            await offer.is_taken.wait()
            agent = cast("Agent", await policy.address())
        except BaseException:
            offer.agent.cancel()
            if offer in self._offered:
                self._offered.remove(offer)
            raise
        offer.agent.set_result(agent)
        return agent


async def _end_or_silence(agent: "Agent") -> None:
    """Wait for the end of an agent's attempt, while the agent sends requests.

    Raises:
        TookTooLong: if it sent none for too long.
    """
    while not agent.finished.done():
        left = SILENT_SECONDS - agent.silent_seconds
        if left <= 0:
            raise TookTooLong(f"the agent sent no request for {SILENT_SECONDS:g} s")
        await asyncio.wait([agent.finished], timeout=left)
    await agent.finished
