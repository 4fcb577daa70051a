"""Run a user's SELECT in a read-only savepoint with a time limit; errors are reported in one line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from trinity_db.errors import ConfigError, TrinityError, WrongSelect
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query

TOO_MUCH = "54"  # SQLSTATE class: a server limit is exceeded


@dataclass(frozen=True)
class OwnSelect:
    """A user's SELECT, or a condition."""

    text: str
    seconds: float
    """Time limit in seconds."""
    key: str
    """Configuration key of the SELECT; messages begin with it."""
    limit_key: str | None = None
    """Configuration key that sets `seconds`; None if no key does."""


@dataclass(frozen=True)
class Answer:
    """Result of a SELECT."""

    columns: Sequence[str]
    types: Sequence[int]
    """Type oid of each column."""
    rows: Sequence[tuple[Any, ...]]


def read(text: str, key: str) -> str:
    """Return the SELECT of a configuration: the text itself, or the content of a .sql file.

    Raises:
        ConfigError: if the file cannot be read.
    """
    if not text.endswith(".sql"):
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{key}: there is no file {text}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}: {text} cannot be read: {error}") from error


def within(text: str) -> str:
    """Wrap the text in brackets for use in a larger statement."""
    return f"(\n{text.strip().rstrip(';')}\n)"


def answer(tx: Transaction, own: OwnSelect, statement: str, values: Mapping[str, Any]) -> Answer:
    """Run a statement that contains the user's text, and return its result. It cannot write.

    Raises:
        WrongSelect: if it fails.
        TrinityError: if it exceeds the time limit, which may be the server's fault.
    """
    try:
        with tx.transaction(force_rollback=True):  # the guards end with the savepoint
            tx.execute(query("guard_select"), {"seconds": own.seconds})
            with tx.cursor(row_factory=tuple_row) as cursor:
                rows = cursor.execute(statement.encode(), values).fetchall()
                described = cursor.description or []
                return Answer(
                    [column.name for column in described], [column.type_code for column in described], rows
                )
    except psycopg.errors.QueryCanceled as error:
        more = f", or raise {own.limit_key}" if own.limit_key else ""
        raise TrinityError(
            f"{own.key}: the SELECT took longer than {own.seconds:g} s; make it faster{more}."
        ) from error
    except psycopg.DatabaseError as error:
        is_its_fault = not isinstance(error, psycopg.OperationalError) or (error.sqlstate or "").startswith(
            TOO_MUCH
        )
        if tx.closed or tx.broken or not is_its_fault:
            raise
        reason = str(error).strip().splitlines()[0]
        hint = f" {error.diag.message_hint}" if error.diag.message_hint else ""
        raise WrongSelect(
            f"{own.key}: the SELECT fails: {reason}{hint} (write %% for a percent sign)"
        ) from error
