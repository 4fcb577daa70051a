"""Attempts that wait: what a workflow is given when it goes on, and how its call ends when it parks."""

from dataclasses import dataclass
from typing import Any

from trinity_db.store import parks

MAX_SECONDS = 1e9  # that an attempt may wait for an answer: 31 years


class AttemptParked(BaseException):
    """The attempt is parked, and this call of its workflow ends. `except Exception` lets it pass."""


@dataclass(frozen=True)
class Parked:
    """What an attempt goes on from."""

    state: Any
    """What the workflow gave to `policy.park`, as JSON."""
    answer: Any
    """As JSON; None if the time came first."""
    is_answered: bool
    """Whether there is an answer, which may be null."""


def check(state: Any, seconds: float | None) -> None:
    """Refuse a park that could not be stored.

    Raises:
        TypeError: the state is no JSON.
        ValueError: the store does not take a part of the state, or `seconds` is out of range.
    """
    parks.check(state, "The state of a parked attempt")
    if seconds is not None and not 0 <= seconds <= MAX_SECONDS:
        raise ValueError(f"seconds is {seconds}; it is a number from 0 to {MAX_SECONDS:g}, or None.")
