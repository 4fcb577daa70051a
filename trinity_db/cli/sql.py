"""`trinity-db sql`: one statement, by a login that may not write unless it is asked to.

A read-only transaction would not do: a superuser's statement may run a program on the server, which writes.

Rows are streamed, not fetched: a million of them need the memory of a thousand.
"""

import math
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trinity_db.cli import formats, output
from trinity_db.cli.formats import Format
from trinity_db.errors import ConfigError, TrinityError

if TYPE_CHECKING:
    import psycopg

    from trinity_db.database import Transaction

CHUNK = 1000  # rows that travel together; a round trip a row would take ten times as long

QueryArgument = Annotated[str, typer.Argument(metavar="QUERY", help="One statement; - reads it from stdin.")]
FormatOption = Annotated[Format, typer.Option(help="How rows are written.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Write to a file in place of stdout.")
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        min=0,
        max=1_000_000,
        metavar="SECONDS",
        help="Longest the statement may take, rows included; 0: any.",
    ),
]
WriteOption = Annotated[bool, typer.Option("--write", help="Let the statement change the store.")]


def sql(
    query: QueryArgument,
    format: FormatOption = Format.TABLE,
    file: OutputOption = None,
    timeout: TimeoutOption = 30,
    write: WriteOption = False,
) -> None:
    """Run one SQL statement and print its rows.

    Tables and views are found without their schema: experience_view, policy_progress, batch_view, drop_view,
    lease_view, reward_change_view, awaited_reward_view.

    Without --write the statement runs by a login that may only read: the embedded server has one, for another
    server TRINITY_DB_READ_URL names one.

    --format svg draws the rows: the first column is the x axis, each other one a line.

    Example:

        trinity-db sql "SELECT version, reward FROM policy_progress"
    """
    if format is Format.PARQUET and file is None and sys.stdout.isatty():
        raise typer.BadParameter("parquet is no text: give --output FILE or redirect stdout")
    if math.isnan(timeout):
        raise typer.BadParameter("--timeout is a number of seconds")
    import psycopg

    from trinity_db.database import connect
    from trinity_db.inspection.statements import explain
    from trinity_db.opening import open_database, open_reader
    from trinity_db.privileges import refuse_writer

    statement = sys.stdin.read() if query == "-" else query
    if not statement.strip():
        raise ConfigError("The query is empty.")
    store = open_database() if write else open_reader()
    with closing(connect(store.url, autocommit=True)) as connection:
        if not write:
            refuse_writer(connection, "this statement", "; or give --write")
        try:
            _begin(connection, timeout, write)
            _carry_out(connection, statement, write, format, file)
        except psycopg.Error as error:
            raise TrinityError(explain(error, statement, _hints(timeout))) from error


def _carry_out(
    connection: "Transaction", statement: str, write: bool, format: Format, file: Path | None
) -> None:
    """Run the statement, end its transaction, and write its rows, or how many it changed."""
    import psycopg

    from trinity_db.inspection.statements import described

    end = "COMMIT" if write else "ROLLBACK"  # a SET that lasted would reach others behind a pooler
    if columns := described(connection, statement):
        rows = connection.cursor(row_factory=psycopg.rows.tuple_row).stream(
            statement.encode(), size=CHUNK if psycopg.capabilities.has_stream_chunked() else 1
        )
        with output.opened(file) as out:
            formats.write(format, columns, rows, out)
        connection.execute(end)
    else:
        done = connection.execute(statement.encode()).statusmessage
        connection.execute(end)
        print(done)


def _begin(connection: "Transaction", timeout: float, write: bool) -> None:
    connection.execute("BEGIN" if write else "BEGIN READ ONLY")
    connection.execute("SET LOCAL search_path TO trinity, public")
    milliseconds = str(math.ceil(timeout * 1000))
    connection.execute("SELECT set_config('statement_timeout', %s, true)", [milliseconds])


def _hints(timeout: float) -> "dict[type[psycopg.Error], str]":
    """What to do about errors."""
    from psycopg import errors

    return {
        errors.QueryCanceled: f"--timeout is {timeout:g} seconds",
        errors.ReadOnlySqlTransaction: "--write allows it",
        errors.InsufficientPrivilege: "without --write, a login that may only read asks",
    }
