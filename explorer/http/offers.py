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
    request: str | None = None
    """Idempotency key of the request that took it."""
    is_taken: asyncio.Event = field(default_factory=asyncio.Event)
    agent: "asyncio.Future[Agent]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """The program's agent, once the attempt is taken."""

    @property
    def has_ended(self) -> bool:
        return self.agent.done() and (self.agent.cancelled() or self.agent.result().finished.done())


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
        self._taken: dict[str, _Offer] = {}
        """Attempts by the idempotency key of the request that took them, until their end."""
        self._news = asyncio.Event()

    async def __call__(self, task: Mapping[str, Any], policy: Policy) -> None:
        """Wait for a program to take the attempt, and for its end.

        Raises:
            AttemptFailed: if the program reports a failure.
            TookTooLong: if it did not end in time, or is gone.
        """
        agent = cast("Agent | None", await policy.resumed_address())
        if agent is not None:
            await self._end_of(agent)
            return
        offer = _Offer(task)
        try:
            await self._end_of(await self._given_out(offer, policy))
        finally:
            if offer.request is not None and self._taken[offer.request] is offer:
                del self._taken[offer.request]

    async def _end_of(self, agent: "Agent") -> None:
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
        self, seconds: float, is_wanted: Callable[[], bool], request: str | None = None
    ) -> "tuple[Agent, Mapping[str, Any]] | None":
        """Return the next attempt's agent and task; None if none is offered in time, or no longer wanted.

        Args:
            request: idempotency key. The attempt that was taken with it is returned again until its end, as
                the answer may have been lost on its way.
        """
        try:
            async with asyncio.timeout(seconds):
                while (taken := self._in_progress(request)) is None and not self._offered:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return None
        if not is_wanted():
            return None
        offer = taken or self._offered.popleft()
        if request is not None:
            offer.request, self._taken[request] = request, offer
            self._news.set()  # a repetition may wait already
        offer.is_taken.set()
        return await asyncio.shield(offer.agent), offer.task

    def _in_progress(self, request: str | None) -> _Offer | None:
        offer = None if request is None else self._taken.get(request)
        return None if offer is None or offer.has_ended else offer

    async def _given_out(self, offer: _Offer, policy: Policy) -> "Agent":
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
