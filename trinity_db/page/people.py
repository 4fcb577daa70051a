"""Queries of the page about people's verdicts; schema/queries/people.sql has the statements."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psycopg.rows import DictRow

from trinity_db.postgres.connection import Database
from trinity_db.schema.queries import query
from trinity_db.schema.states import RunKind
from trinity_db.store import reviews, runs

COUNTED = 5_000  # limit up to which rows, pairs or verdicts are counted: about 0.2 s
DRAWN = 2_000  # verdicts of a person whose batches are looked up: about 0.1 s
VERDICTS = 10_000  # newest verdicts, which are counted by person: about 0.1 s
SHOWN = 50  # people, questions or disputes shown


@dataclass(frozen=True)
class Queue:
    """Progress of people on the rows (or pairs) of a run."""

    is_data: bool
    """Whether it belongs to a data set, which has no pairs to compare."""
    progress: reviews.Progress
    unasked: int
    drawn: DictRow | None
    """Use of the visitor's verdicts in batches; None without a visitor who may label."""
    people: list[DictRow]


@dataclass(frozen=True)
class Agreement:
    """Agreement of the people of a run, and their disputes."""

    alphas: list[DictRow]
    disputes: list[DictRow]


def queues(database: Database) -> list[DictRow]:
    """Return the runs and data sets, with the number of rows and pairs that wait for verdicts."""
    with database.transaction() as tx:
        return tx.execute(query("people_queues"), {"limit": COUNTED}).fetchall()


def queue(name: str, author: str | None, pairs: bool) -> Callable[[Database], Queue]:
    """Return the query for a queue of a run.

    Raises:
        NotFound: by the query, if the run does not exist.
    """

    def read(database: Database) -> Queue:
        with database.transaction() as tx:
            run = runs.find(tx, name, "run or data set")
            values: dict[str, Any] = {
                "run": run.name,
                "run_id": run.id,
                "author": author or "",
                "pairs": pairs,
            }
            counted = values | {"limit": COUNTED}
            progress = tx.execute(query("people_progress"), counted).fetchone()
            unasked = tx.execute(query("people_unasked"), counted).fetchone()
            assert progress is not None
            assert unasked is not None
            some = values | {"limit": SHOWN, "verdicts": VERDICTS}
            verdicts = tx.execute(query("people_verdicts"), some).fetchall()
            drawn = None
            if author is not None:
                drawn = tx.execute(query("people_drawn"), values | {"limit": DRAWN}).fetchone()
        is_data = run.kind == RunKind.DATA
        return Queue(
            is_data, reviews.Progress(**progress), 0 if pairs else unasked["unasked"], drawn, verdicts
        )

    return read


def agreement(name: str, author: str | None) -> Callable[[Database], Agreement]:
    """Return the query for the agreement of a run's people. It reads all verdicts, which may take seconds."""

    def read(database: Database) -> Agreement:
        values = {"run": name, "author": author, "limit": SHOWN}
        with database.transaction() as tx:
            alphas = tx.execute(query("people_agreement"), values).fetchall()
            disputes = tx.execute(query("people_disputes"), values).fetchall()
        return Agreement(alphas, disputes)

    return read
