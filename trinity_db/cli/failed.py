"""`trinity-db failed`: rows that processing steps could not judge, and a second chance for them."""

import logging
import sys
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.inspection.words import cell, printable

if TYPE_CHECKING:
    from trinity_db.store.failures import Retried

logger = logging.getLogger(__name__)

COLUMNS = ("experience", "group", "version", "stage", "step", "failed", "error", "retry")
NUMBERS = ("experience", "group", "version")
EXPENDABLE = ("version", "group", "stage", "failed")
ERROR = 100  # characters of an error in the table; --json has all of it


def failed(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")],
    retry: Annotated[
        bool, typer.Option("--retry", help="Give all that can be judged again back to the processors.")
    ] = False,
    last: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="How many to list, the latest first.")
    ] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with whole errors.")] = False,
) -> None:
    """List the rows that a processing step could not judge, or send them through it again.

    A row is listed once `processors.max_attempts` attempts have failed. Mend the step or its server, restart
    the processors if the step is a file of yours, then use --retry. With an unchanged step a row gets one
    more attempt, with a changed one all of them. A row whose group is ready or drawn stays dropped; the last
    column says so.

    Example:

        trinity-db failed my-run --retry
    """
    if retry:
        _say(run, _retry(run), as_json)
        return
    from trinity_db.opening import open_reader
    from trinity_db.store import failures, runs

    with closing(open_reader()) as database, database.transaction(read_only=True) as tx:
        found = failures.failures(tx, runs.find(tx, run).name, last)
    if as_json:
        output.print_json(found)
    elif found:
        console = output.console(sys.stdout)
        rows = [_row(one) for one in found]
        console.print(output.fitted(COLUMNS, rows, console.width, EXPENDABLE, NUMBERS))
    else:
        print(f"No row of run '{run}' has failed for good.")


def _retry(name: str) -> "Retried":
    from trinity_db.opening import open_database
    from trinity_db.store import failures, runs

    with closing(open_database()) as database:
        with database.transaction() as tx:
            run = runs.find(tx, name)
        return failures.retry(database, run, lambda rows: logger.info("%d rows are given back", rows))


def _say(run: str, retried: "Retried", as_json: bool) -> None:
    if as_json:
        output.print_json({"run": run, **asdict(retried)})
        return
    if retried.rows or not retried.left:
        then = (
            f"the processors of run '{run}' judge them again" if retried.rows else "none has failed for good"
        )
        print(f"Given back: {retried.rows} rows of {retried.groups} groups; {then}.")
    for obstacle, count in retried.left.items():
        print(f"Rows that stay dropped: {count}; {obstacle}.")


def _row(one: dict[str, Any]) -> list[str]:
    now = datetime.now(one["failed_at"].tzinfo)
    error = printable(one["error"] or "").removeprefix(f"{one['step']} raised ")
    head = (cell(one[name]) if one[name] is not None else "" for name in ("experience", "group", "version"))
    failed_at = output.clock(one["failed_at"], now)
    return [
        *head,
        one["stage"],
        one["step"] or "",
        failed_at,
        output.shorten(error, ERROR),
        one["obstacle"] or "yes",
    ]
