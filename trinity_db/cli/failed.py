"""`trinity-db failed`: rows that processing steps could not judge, and how to retry them."""

import logging
import sys
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from trinity_db.cli import output
from trinity_db.insight.words import cell, printable

if TYPE_CHECKING:
    from trinity_db.schema.typed_rows import FailedRow
    from trinity_db.store.failures import Retried

logger = logging.getLogger(__name__)

COLUMNS = ("experience", "group", "version", "stage", "step", "failed", "error", "retry")
NUMBERS = ("experience", "group", "version")
EXPENDABLE = ("version", "group", "stage", "failed")
ERROR = 100  # characters of an error in the table; --json prints it whole


def failed(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")],
    retry: Annotated[
        bool, typer.Option("--retry", help="Send all rows that can still be judged back to the processors.")
    ] = False,
    last: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Number of rows to list, latest first.")
    ] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with full errors.")] = False,
) -> None:
    """List or retry rows that a processing step could not judge.

    A row is listed after `processors.max_attempts` failed attempts. Fix the step or its server, restart the
    processors if the step is in a file of yours, then use --retry. With an unchanged step a row gets one more
    attempt, with a changed step all of them. A row whose group is ready or drawn stays dropped, as the last
    column shows.

    Example:

        trinity-db failed my-run --retry
    """
    if retry:
        _say(run, _retry(run), as_json)
        return
    from trinity_db.postgres.opening import open_reader
    from trinity_db.store import failures, runs

    with closing(open_reader()) as database, database.transaction(read_only=True) as tx:
        failed = failures.failures(tx, runs.find(tx, run).name, last)
    if as_json:
        output.print_json(failed)
    elif failed:
        console = output.console(sys.stdout)
        rows = [_row(row) for row in failed]
        console.print(output.fitted(COLUMNS, rows, console.width, EXPENDABLE, NUMBERS))
    else:
        print(f"No row of run '{run}' has failed permanently.")


def _retry(name: str) -> "Retried":
    from trinity_db.postgres.opening import open_database
    from trinity_db.store import failures, runs

    with closing(open_database()) as database:
        with database.transaction() as tx:
            run = runs.find(tx, name)
        return failures.retry(database, run, lambda rows: logger.info("%d rows are queued again", rows))


def _say(run: str, retried: "Retried", as_json: bool) -> None:
    if as_json:
        output.print_json({"run": run, **asdict(retried)})
        return
    if retried.rows or not retried.left:
        then = (
            f"the processors of run '{run}' judge them again" if retried.rows else "none failed permanently"
        )
        print(f"Queued again: {retried.rows} rows of {retried.groups} groups; {then}.")
    for obstacle, count in retried.left.items():
        print(f"Rows that stay dropped: {count}; {obstacle}.")


def _row(row: "FailedRow") -> list[str]:
    now = datetime.now(row["failed_at"].tzinfo)
    error = printable(row["error"] or "").removeprefix(f"{row['step']} raised ")
    numbers = (row["experience"], row["group"], row["version"])
    head = ("" if number is None else cell(number) for number in numbers)
    failed_at = output.clock(row["failed_at"], now)
    return [
        *head,
        row["stage"],
        row["step"] or "",
        failed_at,
        output.shorten(error, ERROR),
        row["obstacle"] or "yes",
    ]
