"""Runs SELECTs of a program, each in one read-only transaction with one snapshot.

The rows are read completely before the caller gets the first one, so that no transaction waits for the
caller. `spool.record_batches` writes them to a temporary file.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.rows import tuple_row

from trinity_db.api.conditions import Bound
from trinity_db.errors import MissingExtra, TrinityError, WrongSelect
from trinity_db.insight.columns import Column
from trinity_db.insight.statements import columns_of
from trinity_db.postgres.connection import Database, Transaction, first_line

ARRAYS = {"token_ids": "int32", "action_mask": "bool", "logprobs": "float32", "versions": "int32"}
"""Columns with an experience's arrays, and the Arrow type of their numbers."""
CHUNK_ROWS = 4_096  # rows in memory at a time; a row has kilobytes of text

Result = TypeVar("Result")
Rows = Sequence[tuple[Any, ...]]


class Answer(NamedTuple):
    """The rows of a SELECT, within its transaction."""

    tx: Transaction
    columns: Sequence[Column]
    fetch: Callable[[int], Rows]
    """Returns at most so many further rows; none after the last."""


def read(database: Database, statement: Bound, seconds: float, consume: Callable[[Answer], Result]) -> Result:
    """Run a SELECT, and pass its rows to `consume`, which is called again if the connection is lost.

    Args:
        seconds: how long to wait for a database that does not answer.

    Raises:
        WrongSelect: if the statement is wrong.
        DatabaseUnavailable: if no database answers.
    """
    deadline = time.monotonic() + seconds

    def attempt() -> Result:
        with database.transaction() as tx, _explained():
            tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            tx.execute("SET LOCAL search_path TO trinity, public")
            with tx.cursor(name="trinity_db_api", row_factory=tuple_row) as cursor:
                cursor.execute(statement.text.encode(), dict(statement.values))
                assert cursor.pgresult is not None
                columns = columns_of(cursor.pgresult)
                return consume(Answer(tx, columns, cursor.fetchmany))

    return database.retry(attempt, give_up=lambda: time.monotonic() > deadline)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors of the caller's SQL into one line."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege:
        raise
    except psycopg.errors.ReadOnlySqlTransaction as error:
        raise WrongSelect(f"A query of the store cannot write: {first_line(error)}") from error
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as error:
        hint = f" ({error.diag.message_hint})" if error.diag.message_hint else ""
        raise WrongSelect(
            f"The SELECT fails: {error.diag.message_primary or first_line(error)}{hint}"
        ) from error


@contextmanager
def arrow_needed() -> Iterator[None]:
    """Name the extra if pyarrow is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise MissingExtra("arrow", "pyarrow") from error


def needs(package: str, method: str) -> TrinityError:
    """Return the error about a library of the user's choice that is not installed."""
    return TrinityError(f"{method} needs the package {package}: pip install {package}")
