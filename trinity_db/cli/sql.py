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
from trinity_db.cli.formats import Column, Format
from trinity_db.errors import ConfigError, TrinityError

if TYPE_CHECKING:
    import psycopg

    from trinity_db.database import Transaction

CHUNK = 1000  # rows that travel together; a round trip a row would take ten times as long
LINE_LENGTH = 120  # of an offending line that is quoted; generated queries have lines of kilobytes


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
            raise TrinityError(_explain(error, statement, timeout)) from error


def _carry_out(
    connection: "Transaction", statement: str, write: bool, format: Format, file: Path | None
) -> None:
    """Run the statement, end its transaction, and write its rows, or how many it changed."""
    import psycopg

    end = "COMMIT" if write else "ROLLBACK"  # a SET that lasted would reach others behind a pooler
    if columns := _describe(connection, statement):
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


def _describe(connection: "Transaction", statement: str) -> list[Column]:
    """The columns of a statement's rows, without running it; none where it returns no rows."""
    import psycopg

    described = connection.pgconn.prepare(b"", statement.encode())
    if described.status == psycopg.pq.ExecStatus.COMMAND_OK:
        described = connection.pgconn.describe_prepared(b"")
    if described.status != psycopg.pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(described)
    columns: dict[str, Column] = {}
    for index in range(described.nfields):
        name = original = (described.fname(index) or b"").decode()
        number = 1
        while name in columns:
            number += 1
            name = f"{original}_{number}"
        columns[name] = _column(name, described.ftype(index), described.fmod(index))
    return list(columns.values())


def _column(name: str, oid: int, modifier: int) -> Column:
    import psycopg

    kind = psycopg.adapters.types.get(oid)
    if kind is None:
        return Column(name, "unknown")
    if kind.name != "numeric" or modifier < 0:
        return Column(name, kind.name, is_array=oid == kind.array_oid)
    # As Postgres packs it: precision in the upper half, scale in the lower, both above a header of 4.
    return Column(name, kind.name, oid == kind.array_oid, (modifier - 4) >> 16, (modifier - 4) & 0x7FF)


def _explain(error: "psycopg.Error", statement: str, timeout: float) -> str:
    """The error in one line, with the line of the statement that it is about."""
    from psycopg import errors

    message = error.diag.message_primary or str(error).partition("\n")[0]
    if isinstance(error, errors.QueryCanceled):
        return f"{message} (--timeout is {timeout:g} seconds)"
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return f"{message} (--write allows it)"
    if isinstance(error, errors.InsufficientPrivilege):
        return f"{message} (without --write, a login that may only read asks)"
    if isinstance(error, errors.SyntaxError) and error.diag.source_function == "exec_parse_message":
        return "The query holds several statements; give them one at a time."
    if error.diag.statement_position is None:
        return message
    number = statement.count("\n", 0, int(error.diag.statement_position) - 1)
    line = statement.split("\n")[number].strip()
    quoted = line if len(line) <= LINE_LENGTH else f"{line[:LINE_LENGTH]}..."
    return f"{message} (line {number + 1}: {quoted})"
