"""Evidence that training text overlaps with evaluation tasks; a person judges it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from psycopg.rows import DictRow

from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.typed_rows import OverlapRow

CHUNK = 1000  # rows read at a time


@dataclass(frozen=True)
class Overlap:
    """Share of an evaluation task's text found in another text."""

    task_id: int
    share: float
    """Share of its word sequences, above 0."""
    text: str
    """The first of these sequences."""
    of_task_id: int | None = None
    """Task that contains the text; None for a response."""
    experience_id: int | None = None


def tasks(database: Database, taskset_id: int) -> Iterator[list[DictRow]]:
    """Read all tasks of a taskset (ids and payloads) in chunks."""
    yield from _pages(database, "tasks_after", {"taskset_id": taskset_id})


def responses(database: Database, run_id: int) -> Iterator[list[DictRow]]:
    """Read the responses of a run's own rows, with their ids, in chunks."""
    yield from _pages(database, "responses_after", {"run_id": run_id})


def write(tx: Transaction, measure: str, overlaps: Sequence[Overlap]) -> int:
    """Record evidence; returns the number of new records."""
    values = {
        "measure": measure,
        "task_ids": [overlap.task_id for overlap in overlaps],
        "of_task_ids": [overlap.of_task_id for overlap in overlaps],
        "experience_ids": [overlap.experience_id for overlap in overlaps],
        "shares": [overlap.share for overlap in overlaps],
        "texts": [overlap.text for overlap in overlaps],
    }
    return tx.execute(query("write_overlaps"), values).rowcount if overlaps else 0


def strongest(
    tx: Transaction, with_id: int, taskset_id: int | None, run_id: int | None, measure: str, limit: int
) -> list[OverlapRow]:
    """Read the evidence about a taskset's tasks and a run's rows, largest shares first."""
    values = {"with_id": with_id, "taskset_id": taskset_id, "run_id": run_id, "measure": measure}
    return cast(
        list[OverlapRow], tx.execute(query("strongest_overlaps"), values | {"limit": limit}).fetchall()
    )


def _pages(database: Database, name: str, values: dict[str, Any]) -> Iterator[list[DictRow]]:
    after = 0
    while True:
        with database.transaction(read_only=True) as tx:
            rows = tx.execute(query(name), {**values, "after": after, "limit": CHUNK}).fetchall()
        if not rows:
            return
        yield rows
        after = rows[-1]["id"]
