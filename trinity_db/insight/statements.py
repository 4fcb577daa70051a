"""SQL statements of people: their columns, and their errors in one line."""

from collections.abc import Mapping
from dataclasses import dataclass

import psycopg
from psycopg import errors
from psycopg.pq.abc import PGresult

from trinity_db.insight.columns import Column
from trinity_db.postgres.connection import Transaction

LINE_LENGTH = 120  # characters quoted of the wrong line; generated queries have lines of kilobytes


@dataclass(frozen=True)
class Place:
    """Position of an error in a statement."""

    character: int
    """Offset in the whole statement, from 0."""
    number: int
    """Line number, from 1."""
    line: str


def described(connection: Transaction, statement: str) -> list[Column]:
    """Return the columns of a statement without running it; none if it returns no rows.

    Afterwards it is the session's unnamed statement.

    Raises:
        psycopg.Error: if the server rejects it.
    """
    result = connection.pgconn.prepare(b"", statement.encode())
    if result.status == psycopg.pq.ExecStatus.COMMAND_OK:
        result = connection.pgconn.describe_prepared(b"")
    if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
        raise errors.error_from_result(result)
    return columns_of(result)


def columns_of(result: PGresult) -> list[Column]:
    """Return the columns of a result. A repeated name gets a number: count, count_2."""
    columns: dict[str, Column] = {}
    for index in range(result.nfields):
        name = original = (result.fname(index) or b"").decode()
        number = 1
        while name in columns:
            number += 1
            name = f"{original}_{number}"
        columns[name] = _column(name, result.ftype(index), result.fmod(index))
    return list(columns.values())


def explain(error: psycopg.Error, statement: str, hints: Mapping[type[psycopg.Error], str]) -> str:
    """Format an error in one line, with a hint for its kind, or with the wrong line of the statement."""
    message = error.diag.message_primary or str(error).partition("\n")[0]
    for kind, hint in hints.items():
        if isinstance(error, kind):
            return f"{message} ({hint})"
    if isinstance(error, errors.SyntaxError) and error.diag.source_function == "exec_parse_message":
        return "The query contains several statements; run them one at a time."
    position = place_of(error, statement)
    if position is None:
        return message
    quoted = position.line if len(position.line) <= LINE_LENGTH else f"{position.line[:LINE_LENGTH]}..."
    return f"{message} (line {position.number}: {quoted})"


def place_of(error: psycopg.Error, statement: str) -> Place | None:
    """Position of the error; None if the server does not report one."""
    if error.diag.statement_position is None:
        return None
    character = int(error.diag.statement_position) - 1
    number = statement.count("\n", 0, character)
    return Place(character, number + 1, statement.split("\n")[number].strip())


def _column(name: str, oid: int, modifier: int) -> Column:
    kind = psycopg.adapters.types.get(oid)
    if kind is None:
        return Column(name, "unknown")
    if kind.name != "numeric" or modifier < 0:
        return Column(name, kind.name, is_array=oid == kind.array_oid)
    # Postgres packs precision into the upper half and scale into the lower half, and adds a header of 4.
    return Column(name, kind.name, oid == kind.array_oid, (modifier - 4) >> 16, (modifier - 4) & 0x7FF)
