"""Limits of an asynchronous step: time and concurrency per row, and request rates of its server."""

import asyncio
import math
import time
from collections import deque

from pydantic import Field

from trinity_db.config.base import Settings

MINUTE = 60.0  # seconds


class Limits(Settings):
    """Limits of an asynchronous step, in each process that judges rows."""

    seconds: float = Field(120.0, gt=0, le=86_400)
    """Time limit of one row, including all retries. A row that exceeds it fails, instead of getting a reward
    of 0."""
    in_flight: int = Field(16, ge=1, le=4096)
    """Rows judged concurrently by the step. As many are leased, and repeated after a crash."""
    requests_per_minute: int | None = Field(None, ge=1)
    """Maximum number of calls started within any minute, including retries. None: no limit."""
    tokens_per_minute: int | None = Field(None, ge=1)
    """Maximum sum of `Answer.tokens` of the last minute; further calls wait. None: no limit."""
    retries: int = Field(2, ge=0, le=100)
    """Retries of a call that raises an exception. Pauses grow from about a second to half a minute, or last
    as long as the server asks. After the last retry the row fails, and is claimed again, up to
    max_attempts."""
    cache: int = Field(10_000, ge=0)
    """Number of latest answers cached in the process. A row with the same columns gets the same answer
    without a call. 0: no cache."""


class Gate:
    """Lets calls start in order of arrival, within the rates of the last minute."""

    def __init__(self, limits: Limits) -> None:
        self._requests = limits.requests_per_minute or math.inf
        self._tokens = limits.tokens_per_minute or math.inf
        self._begun: deque[float] = deque()
        self._spent: deque[tuple[float, int]] = deque()
        self._closed_until = -math.inf
        self._turn = asyncio.Lock()

    async def enter(self) -> None:
        """Wait until the next call may start."""
        async with self._turn:
            while (wait := self._wait()) > 0:
                await asyncio.sleep(wait)
            if self._requests < math.inf:
                self._begun.append(time.monotonic())

    def spend(self, tokens: int) -> None:
        """Count the tokens of an answer."""
        if tokens and self._tokens < math.inf:
            self._spent.append((time.monotonic(), tokens))

    def close(self, seconds: float) -> bool:
        """Let no call start for some seconds, as the server asks; return whether calls could start before."""
        now = time.monotonic()
        was_open = self._closed_until <= now
        self._closed_until = max(self._closed_until, now + seconds)
        return was_open

    def _wait(self) -> float:
        """Return the seconds to wait before checking again; 0 if a call may start."""
        now = time.monotonic()
        if now < self._closed_until:
            return self._closed_until - now
        while self._begun and self._begun[0] <= now - MINUTE:
            self._begun.popleft()
        while self._spent and self._spent[0][0] <= now - MINUTE:
            self._spent.popleft()
        if len(self._begun) >= self._requests:
            return self._begun[0] + MINUTE - now
        if sum(tokens for _, tokens in self._spent) >= self._tokens:
            return self._spent[0][0] + MINUTE - now
        return 0.0
