"""Statements that people write: which columns they have, and what is wrong with them in one line."""

from collections.abc import Mapping
from dataclasses import dataclass

import psycopg
from psycopg import errors

from trinity_db.database import Transaction
from trinity_db.inspection.formats import Column

LINE_LENGTH = 120  # of an offending line that is quoted; generated queries have lines of kilobytes


@dataclass(frozen=True)
class Place:
    """Where in a statement an error lies."""

    character: int
    """Of the whole statement, from 0."""
    number: int
    """Of the line, from 1."""
    line: str


def described(connection: Transaction, statement: str) -> list[Column]:
    """The columns of a statement's rows, without running it; none where it returns no rows.

    The session has it as its unnamed statement afterwards.

    Raises:
        psycopg.Error: the server does not understand it.
    """
    found = connection.pgconn.prepare(b"", statement.encode())
    if found.status == psycopg.pq.ExecStatus.COMMAND_OK:
        found = connection.pgconn.describe_prepared(b"")
    if found.status != psycopg.pq.ExecStatus.COMMAND_OK:
        raise errors.error_from_result(found)
    columns: dict[str, Column] = {}
    for index in range(found.nfields):
        name = original = (found.fname(index) or b"").decode()
        number = 1
        while name in columns:
            number += 1
            name = f"{original}_{number}"
        columns[name] = _column(name, found.ftype(index), found.fmod(index))
    return list(columns.values())


def explain(error: psycopg.Error, statement: str, hints: Mapping[type[psycopg.Error], str]) -> str:
    """The error in one line, with the hint of its kind, or with the line of the statement that has it."""
    message = error.diag.message_primary or str(error).partition("\n")[0]
    for kind, hint in hints.items():
        if isinstance(error, kind):
            return f"{message} ({hint})"
    if isinstance(error, errors.SyntaxError) and error.diag.source_function == "exec_parse_message":
        return "The query holds several statements; give them one at a time."
    place = place_of(error, statement)
    if place is None:
        return message
    quoted = place.line if len(place.line) <= LINE_LENGTH else f"{place.line[:LINE_LENGTH]}..."
    return f"{message} (line {place.number}: {quoted})"


def place_of(error: psycopg.Error, statement: str) -> Place | None:
    """Where the error lies; None where the server does not say."""
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
    # As Postgres packs it: precision in the upper half, scale in the lower, both above a header of 4.
    return Column(name, kind.name, oid == kind.array_oid, (modifier - 4) >> 16, (modifier - 4) & 0x7FF)
