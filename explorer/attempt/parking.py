"""Parked attempts: the state and answer that a workflow resumes with, and the exception that ends its
call."""

from dataclasses import dataclass
from typing import Any

from trinity_db.store import parks

MAX_SECONDS = 1e9  # maximum time to wait for an answer: 31 years


class AttemptParked(BaseException):
    """Ends the call of a workflow that parked its attempt. Not caught by `except Exception`."""


@dataclass(frozen=True)
class Parked:
    """The point from which an attempt resumes."""

    state: Any
    """State that the workflow passed to `policy.park`, as JSON."""
    answer: Any
    """Answer as JSON; None after a timeout."""
    is_answered: bool
    """Whether there is an answer, which may be null."""


def check(state: Any, seconds: float | None) -> None:
    """Check that a park can be stored.

    Raises:
        TypeError: if the state is not JSON.
        ValueError: if the store cannot hold a part of the state, or `seconds` is out of range.
    """
    parks.check(state, "The state of a parked attempt")
    if seconds is not None and not 0 <= seconds <= MAX_SECONDS:
        raise ValueError(f"seconds is {seconds}; it must be a number from 0 to {MAX_SECONDS:g}, or None.")
