"""`trinity-db batches`: the newest batches of a run, one per line."""

import sys
from contextlib import closing
from datetime import datetime
from typing import Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.insight.words import cell

COLUMNS = (
    *("id", "step", "state", "setting", "sampler", "version", "included", "rows"),
    *("reward", "staleness", "max", "loss", "drawn", "committed"),
)
"""Column headings, in the order of the query's columns."""
NUMBERS = {*COLUMNS} - {"state", "sampler", "drawn", "committed"}
EXPENDABLE = ("setting", "drawn", "sampler", "state", "max", "included")
"""Columns that a narrow terminal leaves out. The last column shows the state of uncommitted batches."""


def batches(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")],
    last: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of batches, newest first.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the newest batches of a run.

    Each line shows the step and state, the row of run_setting with its configuration, the policy version
    at the draw and the first version that includes the batch, mean reward, staleness and loss.
    `trinity-db replay` writes one batch in full. A narrow terminal shows fewer columns.

    Example:

        trinity-db batches my-run --last 5
    """
    from trinity_db.postgres.opening import open_reader
    from trinity_db.schema.queries import query
    from trinity_db.store import runs

    with closing(open_reader()) as database, database.transaction(read_only=True) as tx:
        values = {"run_id": runs.find(tx, run).id, "limit": last}
        batch_rows = tx.execute(query("list_batches"), values).fetchall()
    if as_json:
        output.print_json(batch_rows)
    elif batch_rows:
        console = output.console(sys.stdout)
        rows = [_row(batch) for batch in batch_rows]
        console.print(output.fitted(COLUMNS, rows, console.width, EXPENDABLE, NUMBERS))
    else:
        print(f"Run '{run}' has not drawn a batch yet.")


def _row(batch: dict[str, Any]) -> list[str]:
    *cells, committed = (_cell(name, value) for name, value in batch.items())
    return [*cells, committed if batch["state"] == "committed" else batch["state"]]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in ("reward_mean", "staleness_mean"):
        return f"{value:.3f}"
    if name == "loss":
        return f"{value:.3g}"
    if isinstance(value, datetime):
        return output.clock(value, datetime.now(value.tzinfo))
    return cell(value)
