"""Queues of rows and pairs that wait for verdicts from people.

`verdicts` handles the verdicts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import psycopg

from trinity_db.errors import ConfigError
from trinity_db.postgres.connection import PASSING, Transaction, storable
from trinity_db.schema.queries import query
from trinity_db.schema.states import RunKind
from trinity_db.schema.typed_rows import WaitingReview
from trinity_db.store import runs


@dataclass(frozen=True)
class Question:
    """Question to people about rows or pairs."""

    verdicts: int = 1
    """Number of verdicts per item, each from a different person."""
    lowest: int = 0
    highest: int = 1
    name: str = "human"
    """Name of the reward events."""
    source: str = "human"
    """Source of the reward events and preferences."""
    weight: float = 1.0
    """Factor of the verdicts in the reward; 0: recorded without changing it."""


@dataclass(frozen=True)
class Progress:
    """A person's progress in a queue."""

    open: int
    """Reviews that lack a verdict."""
    waiting: int
    """Open reviews that this person may judge."""
    verdicts: int
    """Verdicts from this person."""


def find_rows(tx: Transaction, run: runs.Run, condition: str) -> list[int]:
    """Return the rows of a run that meet an SQL condition on the columns of experience_view.

    Raises:
        ConfigError: if the server cannot evaluate the condition.
    """
    rows = f"SELECT id FROM ({query('askable_rows')}) AS experience_view"
    where = f"({condition.replace('%', '%%')}\n)"
    try:
        statement = storable(f"{rows} WHERE {where} ORDER BY id").encode()
        selected = tx.execute(statement, {"run": run.name})
    except psycopg.Error as error:
        if error.sqlstate is None or error.sqlstate.startswith((*PASSING, "53", "58")):
            raise  # a problem of the server
        raise ConfigError(f"--ask {condition}: {error.diag.message_primary}") from None
    return [row["id"] for row in selected]


def ask_rows(tx: Transaction, run_id: int, experience_ids: Sequence[int], question: Question) -> int:
    """Queue rows of a run or data set for verdicts; returns the number of rows not queued before."""
    values = _question(run_id, question) | {"ids": list(experience_ids)}
    return tx.execute(query("ask_about_rows"), values).rowcount


def ask_awaited(tx: Transaction, run_id: int, question: Question, limit: int | None = None) -> int:
    """Queue the rows whose verdicts the run waits for (`requires_reward`); returns the number of new ones."""
    values = _question(run_id, question) | {"limit": limit}
    return tx.execute(query("ask_about_awaited"), values).rowcount


def ask_pairs(tx: Transaction, run: runs.Run, question: Question, limit: int | None = None) -> int:
    """Queue pairs: the best and the worst row of each group; returns the number of new ones.

    Raises:
        ConfigError: if the run is a data set, whose pairs no run would draw.
    """
    if run.kind != RunKind.TRAIN:
        raise ConfigError(f"'{run.name}' is a data set: compare its rows in a run that has them under data.")
    values = _question(run.id, question) | {"limit": limit}
    return tx.execute(query("ask_about_pairs"), values).rowcount


def progress(tx: Transaction, run_id: int, author: str, pairs: bool) -> Progress:
    """Count a person's open, waiting and given verdicts in a queue."""
    values = {"run_id": run_id, "author": author, "pairs": pairs}
    row = tx.execute(query("count_queue"), values).fetchone()
    assert row is not None
    return Progress(row["open"], row["waiting"], row["verdicts"])


def open_reviews(tx: Transaction, run_id: int, pairs: bool) -> list[WaitingReview]:
    """List the rows or pairs that wait for verdicts, with their texts, oldest first."""
    return cast(
        list[WaitingReview], tx.execute(query("list_reviews"), {"run_id": run_id, "pairs": pairs}).fetchall()
    )


def _question(run_id: int, question: Question) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "wanted": question.verdicts,
        "lowest": question.lowest,
        "highest": question.highest,
        "name": question.name,
        "source": question.source,
        "weight": question.weight,
    }
