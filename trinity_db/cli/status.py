"""`trinity-db status`: all runs, one per line, or one run in full."""

import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.run import disk

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from trinity_db.postgres.connection import Database

REFRESH_SECONDS = 2  # nobody reads faster
PAUSES = 10  # pause in multiples of a refresh's duration, so that refreshes do not keep a large store busy

NAME_WIDTH = 12  # minimum characters for a run's name
STATE_WIDTH = 9  # characters of the longest state


def status(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Name of a run. Default: one line for each run.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help=f"Refresh every {REFRESH_SECONDS} seconds, a large store less often, until Ctrl-C.",
        ),
    ] = False,
) -> None:
    """Show what runs are doing.

    For each run: which roles are alive, and how many experiences (or pairs, if it trains on pairs) wait, are
    ready, trained or gone. For one run also: rewards by policy version, staleness, rates, why rows were
    dropped, which rewards are awaited, which writes came too late, and its disk use. The disk use of tables
    is an estimate, and files count if this machine can read them. All other counts are exact: with a million
    rows, the command takes some hundred milliseconds.

    Example:

        trinity-db status --watch
    """
    if watch and (as_json or not sys.stdout.isatty()):
        raise typer.BadParameter("--watch needs a terminal, and cannot be combined with --json")
    from trinity_db.insight.status import overview
    from trinity_db.postgres.opening import open_reader

    with closing(open_reader()) as database:
        if watch:
            _watch(database, run)
        elif as_json:
            output.print_json(overview(database) if run is None else _run_status(database, run))
        else:
            output.console(sys.stdout).print(_picture(database, run))


def _watch(database: "Database", run: str | None) -> None:
    from rich.live import Live

    with Live(_picture(database, run), console=output.console(sys.stdout), auto_refresh=False) as live:
        try:
            took = 0.0
            while True:
                time.sleep(max(REFRESH_SECONDS, PAUSES * took))
                begun = time.monotonic()
                picture = _picture(database, run)
                took = time.monotonic() - begun
                live.update(picture, refresh=True)
        except KeyboardInterrupt:
            return


def _run_status(database: "Database", name: str) -> dict[str, Any]:
    from trinity_db.insight.status import detail
    from trinity_db.store import runs

    details = detail(database, name)
    with database.transaction(read_only=True) as tx:
        used = disk.use(tx, runs.find(tx, name), sum(details["experiences"].values()))
    return {**details, "disk": used}


def _picture(database: "Database", run: str | None) -> "RenderableType":
    from trinity_db.insight.status import overview, words

    if run is None:
        return _overview(overview(database))
    details = _run_status(database, run)
    return output.facts({**words(details), "disk": disk.describe(details["disk"])})


def _overview(runs: list[dict[str, Any]]) -> "Table | str":
    from trinity_db.insight.status import COUNTS, counted, state

    if not runs:
        return "There are no runs yet; trinity-db demo makes one."
    console_width = output.console(sys.stdout).width
    lines = [
        [
            state(run),
            "" if run["policy_version"] is None else str(run["policy_version"]),
            *(str(sum(counted(run).get(row_state, 0) for row_state in states)) for states in COUNTS.values()),
        ]
        for run in runs
    ]
    table = output.table("run", "state", "version", *COUNTS)
    for column in table.columns:
        column.no_wrap = column.header != "state"
    for column in table.columns[2:]:
        column.justify = "right"
    widths = [max(map(len, cells)) for cells in zip(["", "version", *COUNTS], *lines, strict=True)]
    name_width = max(NAME_WIDTH, console_width - STATE_WIDTH - sum(widths[1:]) - output.GAP * len(widths))
    for run, line in zip(runs, lines, strict=True):
        table.add_row(output.shorten(run["run"], name_width), *line)
    return table
