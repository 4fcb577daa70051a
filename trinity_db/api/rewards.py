"""Rewards that people and programs give to experiences."""

import time
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from trinity_db.data.records.records import Unfit, number, text
from trinity_db.errors import ConfigError
from trinity_db.postgres.connection import Database
from trinity_db.store import rewards
from trinity_db.store.rewards import MAX_REWARD, Change, Judgement, check_words

RETRY_SECONDS = 10  # enough for a deadlock or a server restart; then recording fails
KEYS = ("experience", "value", "name", "source", "by", "weight")


def record(database: Database, judgements: Sequence[Judgement]) -> list[Change]:
    """Write the judgements in one transaction, with retries; return what changed."""
    deadline = time.monotonic() + RETRY_SECONDS

    def attempt() -> list[Change]:
        # A row written twice because a commit was unclear counts once: the latest of each name counts.
        with database.transaction() as tx:
            return rewards.judge(tx, judgements)

    return database.retry(attempt, give_up=lambda: time.monotonic() > deadline)


def judgement(row: Mapping[str, Any]) -> Judgement:
    """Validate a judgement.

    Raises:
        ConfigError: if a key is unknown or missing, or its value is invalid.
    """
    for key in row:
        if key not in KEYS:
            raise ConfigError(f"unknown key '{key}'; known: {', '.join(KEYS)}")
    for key in ("experience", "value"):
        if key not in row:
            raise ConfigError(f"'{key}' is missing")
    experience, by = _plain(row["experience"]), row["by"]
    if type(experience) is not int:
        raise ConfigError("'experience' must be the id of an experience, a whole number")
    try:
        value, weight = (number(_plain(row[key]), key) for key in ("value", "weight"))
        words = [text(row[key], key) for key in ("name", "source")]
        words += [] if by is None else [text(by, "by")]
    except Unfit as error:
        raise ConfigError(str(error)) from None
    if abs(value) * max(abs(weight), 1.0) > MAX_REWARD:
        raise ConfigError(f"'value' times 'weight' exceeds {MAX_REWARD:g}")
    check_words(words, "'name', 'source' and 'by'")
    return Judgement(experience, value, row["name"], row["source"], by, weight)


def _plain(value: Any) -> Any:
    """Return a number of another type, such as of a column of pandas, as Python's own."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value
