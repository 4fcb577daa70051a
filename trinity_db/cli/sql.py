"""`trinity-db sql`: runs one statement, with a read-only login by default.

A read-only transaction would not be enough: a superuser's statement may run a program on the server.

Rows are streamed: a million rows need the memory of a thousand.
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

    from trinity_db.postgres.connection import Transaction

CHUNK = 1000  # rows per transfer; one round trip per row would take ten times as long

QueryArgument = Annotated[str, typer.Argument(metavar="QUERY", help="SQL statement; - reads it from stdin.")]
FormatOption = Annotated[Format, typer.Option(help="Output format of rows.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Output file. Default: stdout.")
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        min=0,
        max=1_000_000,
        metavar="SECONDS",
        help="Time limit of the statement, including its rows; 0: none.",
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

    Without --write the statement runs with a read-only login: the embedded server has one, for another server
    TRINITY_DB_READ_URL names one.

    --format svg draws the rows: the first column is the x axis, each other column a line.

    Example:

        trinity-db sql "SELECT version, reward FROM policy_progress"
    """
    if format is Format.PARQUET and file is None and sys.stdout.isatty():
        raise typer.BadParameter("parquet is binary: give --output FILE or redirect stdout")
    if math.isnan(timeout):
        raise typer.BadParameter("--timeout must be a number of seconds")
    import psycopg

    from trinity_db.insight.statements import explain
    from trinity_db.postgres.connection import connect
    from trinity_db.postgres.logins import refuse_writer
    from trinity_db.postgres.opening import open_database, open_reader

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

    from trinity_db.insight.statements import described

    end = "COMMIT" if write else "ROLLBACK"  # a lasting SET would affect other clients behind a pooler
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
    """Hints for errors."""
    from psycopg import errors

    return {
        errors.QueryCanceled: f"--timeout is {timeout:g} seconds",
        errors.ReadOnlySqlTransaction: "--write allows it",
        errors.InsufficientPrivilege: "without --write, the login is read-only",
    }
