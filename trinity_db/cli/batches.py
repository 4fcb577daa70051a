"""`trinity-db batches`: the newest batches of a run, a line each."""

import sys
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = (
    *("id", "step", "state", "sampler", "version", "included", "rows"),
    *("reward", "staleness", "max", "loss", "created", "committed"),
)
"""What the table calls the query's columns, in their order."""


def batches(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")],
    last: Annotated[int, typer.Option(min=1, help="How many, counted from the newest.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the newest batches of a run.

    Of each its step and state, the policy version when it was drawn and the first one that includes it,
    mean reward, staleness and loss. `trinity-db replay` writes one out in full.

    Example:

        trinity-db batches my-run --last 5
    """
    from trinity_db.database import open_reader
    from trinity_db.schema.queries import query
    from trinity_db.store import runs

    with closing(open_reader()) as database, database.transaction(read_only=True) as tx:
        values = {"run_id": runs.find(tx, run).id, "limit": last}
        found = tx.execute(query("list_batches"), values).fetchall()
    if as_json:
        output.print_json(found)
    elif found:
        output.console(sys.stdout).print(_table(found))
    else:
        print(f"Run '{run}' has drawn no batch yet.")


def _table(found: list[dict[str, Any]]) -> "Table":
    table = output.table(*COLUMNS)
    for column in table.columns:
        column.no_wrap = True
        column.justify = "left" if column.header in ("state", "sampler", "created", "committed") else "right"
    for batch in found:
        table.add_row(*(_cell(name, value) for name, value in batch.items()))
    return table


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in ("reward_mean", "staleness_mean"):
        return f"{value:.3f}"
    if name == "loss":
        return f"{value:.4g}"
    return output.moment(value) if isinstance(value, datetime) else output.cell(value)
