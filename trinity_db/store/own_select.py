"""A SELECT of a user's: it runs in a read-only savepoint, within a limit of time, and fails in one line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from trinity_db.database import Transaction
from trinity_db.errors import ConfigError, TrinityError, WrongSelect
from trinity_db.schema.queries import query

TOO_MUCH = "54"  # class of the errors by which the server says that a statement passes a limit of its own


@dataclass(frozen=True)
class OwnSelect:
    """A SELECT of the user's, or a condition of one."""

    text: str
    seconds: float
    """How long it may take."""
    key: str
    """Where it stands in the configuration. Messages begin with it."""
    limit_key: str | None = None
    """The key that sets `seconds`; None: none does."""


@dataclass(frozen=True)
class Answer:
    """What a SELECT yields."""

    columns: Sequence[str]
    types: Sequence[int]
    """The server's number for the type of each column."""
    rows: Sequence[tuple[Any, ...]]


def read(text: str, key: str) -> str:
    """The SELECT that a configuration names: the text itself, or the content of a file with the ending .sql.

    Raises:
        ConfigError: the file cannot be read.
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
    """The text as it stands between brackets in a larger statement."""
    return f"(\n{text.strip().rstrip(';')}\n)"


def answer(tx: Transaction, own: OwnSelect, statement: str, values: Mapping[str, Any]) -> Answer:
    """What a statement yields that holds the user's text. It may write nothing.

    Raises:
        WrongSelect: it fails.
        TrinityError: it takes too long, which may be the server's fault.
    """
    try:
        with tx.transaction(force_rollback=True):  # so what guards the SELECT ends with the savepoint
            tx.execute(query("guard_select"), {"seconds": own.seconds})
            with tx.cursor(row_factory=tuple_row) as cursor:
                rows = cursor.execute(statement.encode(), values).fetchall()
                described = cursor.description or []
                return Answer([one.name for one in described], [one.type_code for one in described], rows)
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
