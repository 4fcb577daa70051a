"""What the page asks about people's verdicts; schema/queries/people.sql has the statements."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psycopg.rows import DictRow

from trinity_db.database import Database
from trinity_db.schema.queries import query
from trinity_db.schema.states import RunKind
from trinity_db.store import reviews, runs

COUNTED = 5_000  # rows, pairs or verdicts are counted up to here: about 0.2 s
DRAWN = 2_000  # of a person's verdicts, whose batches are looked for: about 0.1 s
VERDICTS = 10_000  # the newest; the page says who gave these: about 0.1 s
SHOWN = 50  # people, questions, or disputes


@dataclass(frozen=True)
class Queue:
    """How far people are with the rows (or pairs) of a run."""

    is_data: bool
    """Whether it is that of a data set, which has no pairs to compare."""
    progress: reviews.Progress
    unasked: int
    drawn: DictRow | None
    """What became of the verdicts of the page's person; None: it has none."""
    people: list[DictRow]


@dataclass(frozen=True)
class Agreement:
    """How far the people of a run agree, and where they do not."""

    alphas: list[DictRow]
    disputes: list[DictRow]


def queues(database: Database) -> list[DictRow]:
    """The runs and data sets, with how much of each waits for verdicts."""
    with database.transaction() as tx:
        return tx.execute(query("people_queues"), {"limit": COUNTED}).fetchall()


def queue(name: str, author: str | None, pairs: bool) -> Callable[[Database], Queue]:
    """The question for a queue of a run.

    Raises:
        NotFound: there is no such run.
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
            found = tx.execute(query("people_verdicts"), some).fetchall()
            drawn = None
            if author is not None:
                drawn = tx.execute(query("people_drawn"), values | {"limit": DRAWN}).fetchone()
        is_data = run.kind == RunKind.DATA
        return Queue(is_data, reviews.Progress(**progress), 0 if pairs else unasked["unasked"], drawn, found)

    return read


def agreement(name: str, author: str | None) -> Callable[[Database], Agreement]:
    """The question for the agreement of a run's people. It reads all verdicts: seconds if many."""

    def read(database: Database) -> Agreement:
        values = {"run": name, "author": author, "limit": SHOWN}
        with database.transaction() as tx:
            alphas = tx.execute(query("people_agreement"), values).fetchall()
            disputes = tx.execute(query("people_disputes"), values).fetchall()
        return Agreement(alphas, disputes)

    return read
