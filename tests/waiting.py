"""Waiting for a condition, never for a time."""

import threading
import time
from collections.abc import Callable

WAIT_SECONDS = 90.0  # a role loads torch and transformers in 5 s, on a busy machine in 20
POLL_SECONDS = 0.02


def wait_until(condition: Callable[[], bool], what: str, poll_seconds: float = POLL_SECONDS) -> None:
    """Look again and again; fails when it takes too long."""
    deadline, tick = time.monotonic() + WAIT_SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not in {WAIT_SECONDS:.0f} s: {what}"
        tick.wait(poll_seconds)  # not time.sleep, in whose place some tests put another
