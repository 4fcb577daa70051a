"""What people are asked about: the queue of rows and pairs that wait for verdicts.

`verdicts` says how people judge them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import DictRow

from trinity_db.database import PASSING, Transaction, storable
from trinity_db.errors import ConfigError
from trinity_db.schema.queries import query
from trinity_db.schema.states import RunKind
from trinity_db.store import runs


@dataclass(frozen=True)
class Question:
    """What people are asked about rows or pairs."""

    verdicts: int = 1
    """How many each is to have, each by another person."""
    lowest: int = 0
    highest: int = 1
    name: str = "human"
    """What is judged: the name of the reward events."""
    source: str = "human"
    """Their source, and that of preferences."""
    weight: float = 1.0
    """Factor of the verdicts in the reward; 0: they stand beside it."""


@dataclass(frozen=True)
class Progress:
    """How far a person is with a queue."""

    open: int
    """Reviews that lack a verdict."""
    waiting: int
    """Those of them that this person may judge."""
    given: int
    """Verdicts that this person gave."""


def find_rows(tx: Transaction, run: runs.Run, condition: str) -> list[int]:
    """The rows of a run that meet a condition in SQL on the columns of experience_view.

    Raises:
        ConfigError: the condition is none that the server understands.
    """
    rows = f"SELECT id FROM ({query('askable_rows')}) AS experience_view"
    where = f"({condition.replace('%', '%%')}\n)"
    try:
        statement = storable(f"{rows} WHERE {where} ORDER BY id").encode()
        found = tx.execute(statement, {"run": run.name})
    except psycopg.Error as error:
        if error.sqlstate is None or error.sqlstate.startswith((*PASSING, "53", "58")):
            raise  # the server's own trouble
        raise ConfigError(f"--ask {condition}: {error.diag.message_primary}") from None
    return [row["id"] for row in found]


def ask_rows(tx: Transaction, run_id: int, experience_ids: Sequence[int], question: Question) -> int:
    """Ask people about rows of a run or data set; returns how many were not asked about before."""
    values = _question(run_id, question) | {"ids": list(experience_ids)}
    return tx.execute(query("ask_about_rows"), values).rowcount


def ask_awaited(tx: Transaction, run_id: int, question: Question, limit: int | None = None) -> int:
    """Ask people about rows that the run waits for, as `requires_reward` says; returns how many are new."""
    values = _question(run_id, question) | {"limit": limit}
    return tx.execute(query("ask_about_awaited"), values).rowcount


def ask_pairs(tx: Transaction, run: runs.Run, question: Question, limit: int | None = None) -> int:
    """Ask people to compare two rows of each group: the best with the worst; returns how many are new.

    Raises:
        ConfigError: the run is a data set, whose pairs belong to no run that draws them.
    """
    if run.kind != RunKind.TRAIN:
        raise ConfigError(f"'{run.name}' is a data set: compare its rows in a run that has them under data.")
    values = _question(run.id, question) | {"limit": limit}
    return tx.execute(query("ask_about_pairs"), values).rowcount


def progress(tx: Transaction, run_id: int, author: str, pairs: bool) -> Progress:
    """How far a person is with a queue."""
    values = {"run_id": run_id, "author": author, "pairs": pairs}
    row = tx.execute(query("count_queue"), values).fetchone()
    assert row is not None
    return Progress(row["open"], row["waiting"], row["given"])


def open_reviews(tx: Transaction, run_id: int, pairs: bool) -> list[DictRow]:
    """The rows or pairs that wait for verdicts, with their texts, the oldest first."""
    return tx.execute(query("list_reviews"), {"run_id": run_id, "pairs": pairs}).fetchall()


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
