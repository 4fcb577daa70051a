"""Waiting for a condition, never for a time."""

import asyncio
import threading
import time
from collections.abc import Callable

WAIT_SECONDS = 90.0  # a role loads torch and transformers in 5 s, on a busy machine in 20
POLL_SECONDS = 0.02


def wait_until(
    condition: Callable[[], object],
    what: str,
    poll_seconds: float = POLL_SECONDS,
    seconds: float = WAIT_SECONDS,
) -> None:
    """Look again and again; fails when it takes too long."""
    deadline, tick = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}"
        tick.wait(poll_seconds)  # not time.sleep, in whose place some tests put another


async def until(condition: Callable[[], object], what: str = "what the test waits for") -> None:
    """As `wait_until`, while the other tasks of the event loop go on."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not in {WAIT_SECONDS:.0f} s: {what}"
        await asyncio.sleep(POLL_SECONDS / 4)
