"""Evidence that training text has text of tasks that are kept for evaluation; a person judges it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.rows import DictRow

from trinity_db.database import Database, Transaction
from trinity_db.schema.queries import query

CHUNK = 1000  # rows read at a time


@dataclass(frozen=True)
class Overlap:
    """A task that is kept for evaluation, and how much of it a text has."""

    task_id: int
    share: float
    """Of its runs of words, above 0."""
    text: str
    """The first of these runs."""
    of_task_id: int | None = None
    """The task whose text it is; None where it is a response."""
    experience_id: int | None = None


def tasks(database: Database, taskset_id: int) -> Iterator[list[DictRow]]:
    """All tasks of a taskset, as ids and payloads, some at a time."""
    yield from _pages(database, "tasks_after", {"taskset_id": taskset_id})


def responses(database: Database, run_id: int) -> Iterator[list[DictRow]]:
    """The responses of all rows that are a run's own, with their ids, some at a time."""
    yield from _pages(database, "responses_after", {"run_id": run_id})


def write(tx: Transaction, measure: str, found: Sequence[Overlap]) -> int:
    """Record evidence; returns how many are new."""
    values = {
        "measure": measure,
        "task_ids": [one.task_id for one in found],
        "of_task_ids": [one.of_task_id for one in found],
        "experience_ids": [one.experience_id for one in found],
        "shares": [one.share for one in found],
        "texts": [one.text for one in found],
    }
    return tx.execute(query("write_overlaps"), values).rowcount if found else 0


def strongest(
    tx: Transaction, with_id: int, taskset_id: int | None, run_id: int | None, measure: str, limit: int
) -> list[DictRow]:
    """Evidence about a taskset's tasks and a run's rows, the largest shares first."""
    values = {"with_id": with_id, "taskset_id": taskset_id, "run_id": run_id, "measure": measure}
    return tx.execute(query("strongest_overlaps"), values | {"limit": limit}).fetchall()


def _pages(database: Database, name: str, values: dict[str, Any]) -> Iterator[list[DictRow]]:
    after = 0
    while True:
        with database.transaction(read_only=True) as tx:
            rows = tx.execute(query(name), {**values, "after": after, "limit": CHUNK}).fetchall()
        if not rows:
            return
        yield rows
        after = rows[-1]["id"]
