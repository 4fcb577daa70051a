"""Ages as people write them: 30d, 12h or 90m. Postgres reads the same words as intervals."""

import re
from datetime import timedelta

MOST_DAYS = 36_500
UNITS = {"d": "days", "h": "hours", "m": "minutes"}


def parse(text: str) -> timedelta:
    """The age that a text gives.

    Raises:
        ValueError: it gives none, or one of more than MOST_DAYS.
    """
    found = re.fullmatch(r"(\d{1,8})([dhm])", text, re.ASCII)
    age = timedelta(**{UNITS[found[2]]: int(found[1])}) if found else None
    if age is None or age > timedelta(days=MOST_DAYS):
        raise ValueError(f"{text!a:.40} is no age; say it as 30d, 12h or 90m, up to {MOST_DAYS}d")
    return age


def words(age: timedelta) -> str:
    """The text of an age, in the largest unit without a rest."""
    for letter, unit in UNITS.items():
        if not age % timedelta(**{unit: 1}):
            return f"{age // timedelta(**{unit: 1})}{letter}"
    raise ValueError(f"{age} has a part of a minute")
