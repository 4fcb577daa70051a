"""How much an asynchronous step may ask: of itself for one row, and of the server behind it."""

import asyncio
import math
import time
from collections import deque

from pydantic import Field

from trinity_db.settings import Settings

MINUTE = 60.0  # seconds


class Limits(Settings):
    """Of an asynchronous step, in each process that judges rows."""

    seconds: float = Field(120.0, gt=0, le=86_400)
    """Longest time of one row, over all its tries. A row that takes longer fails, and gets no reward of 0."""
    in_flight: int = Field(16, ge=1, le=4096)
    """Rows that the step is asked about at the same time. So many are leased, and done again after a
    crash."""
    requests_per_minute: int | None = Field(None, ge=1)
    """Calls of the step that begin in any minute; each try is one. None: any number."""
    tokens_per_minute: int | None = Field(None, ge=1)
    """Calls wait while the answers of the last minute, as the step's `Answer.tokens` says, cost as many.
    None: any number."""
    retries: int = Field(2, ge=0, le=100)
    """Calls after the first one that raises an exception. The pauses before them grow from about a second to
    half a minute, and last as long as the server asks for. After the last one the row fails, and is claimed
    again, up to max_attempts."""
    cache: int = Field(10_000, ge=0)
    """Answers that the process keeps, the latest ones. A row with the same columns gets the same answer
    without a call. 0: each row is asked about anew."""


class Gate:
    """Lets calls begin, in the order in which they come, as the rates of the last minute allow it."""

    def __init__(self, limits: Limits) -> None:
        self._requests = limits.requests_per_minute or math.inf
        self._tokens = limits.tokens_per_minute or math.inf
        self._begun: deque[float] = deque()
        self._spent: deque[tuple[float, int]] = deque()
        self._closed_until = -math.inf
        self._turn = asyncio.Lock()

    async def enter(self) -> None:
        """Wait until one more call may begin."""
        async with self._turn:
            while (wait := self._wait()) > 0:
                await asyncio.sleep(wait)
            if self._requests < math.inf:
                self._begun.append(time.monotonic())

    def spend(self, tokens: int) -> None:
        """Count what an answer cost."""
        if tokens and self._tokens < math.inf:
            self._spent.append((time.monotonic(), tokens))

    def close(self, seconds: float) -> bool:
        """Let no call begin for so long, as the server wants it; whether any could before."""
        now = time.monotonic()
        was_open = self._closed_until <= now
        self._closed_until = max(self._closed_until, now + seconds)
        return was_open

    def _wait(self) -> float:
        """Seconds until it is worth looking again; 0 if a call may begin."""
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
