"""Durations in the form 30d, 12h or 90m, which Postgres also reads as intervals."""

import re
from datetime import timedelta

MOST_DAYS = 36_500
UNITS = {"d": "days", "h": "hours", "m": "minutes"}


def parse(text: str) -> timedelta:
    """Parse a duration.

    Raises:
        ValueError: if it is invalid, or longer than MOST_DAYS.
    """
    match = re.fullmatch(r"(\d{1,8})([dhm])", text, re.ASCII)
    age = timedelta(**{UNITS[match[2]]: int(match[1])}) if match else None
    if age is None or age > timedelta(days=MOST_DAYS):
        raise ValueError(f"{text!a:.40} is not a duration; write it as 30d, 12h or 90m, up to {MOST_DAYS}d")
    return age


def words(age: timedelta) -> str:
    """Format a duration in the largest unit that divides it."""
    for letter, unit in UNITS.items():
        if not age % timedelta(**{unit: 1}):
            return f"{age // timedelta(**{unit: 1})}{letter}"
    raise ValueError(f"{age} has a part of a minute")
