"""`trinity-db try`: one attempt of a configuration, described in full; nothing of it is kept."""

import json
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.cli.roles import STOPPED, Config, Overrides
from trinity_db.insight.words import printable

if TYPE_CHECKING:
    from rich.console import Console

LINES = 10  # last lines shown of a program
TASK = 500  # characters shown of the task
TEXT = 200  # characters shown of a sequence: its end


def try_(
    config: Config,
    overrides: Overrides = None,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port for an agent of a run with workflow served.")
    ] = 8410,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object, with whole texts.")] = False,
) -> None:
    """Make one attempt at one task, and show what happened.

    Prints the requests of the attempt's program, with what was replaced or refused; the sequences, and where
    the program changed earlier turns; the reward and its origin; and the program's last lines. The
    starting model makes the attempt, in a separate run that is deleted: no run trains on it.

    Example:

        trinity-db try my-run.yaml
    """
    from trinity_db.cli import delete
    from trinity_db.run import joining
    from trinity_db.run.trying import Trial

    trial = Trial.of(joining.read(config, overrides))
    database, run = joining.open_run(trial.config)
    with closing(database):
        try:
            tried = trial.make(database, run, port)
        finally:
            delete.remove(database, run)
    if tried is None:
        raise typer.Exit(STOPPED)
    if as_json:
        output.print_json(tried)
    else:
        _print(output.console(sys.stdout), tried)
    if tried["error"] is not None:
        raise typer.Exit(1)


def _print(console: "Console", tried: dict[str, Any]) -> None:
    def line(text: str = "", style: str | None = None) -> None:
        console.print(printable(text), style=style)

    line("task", "bold")
    line(_cut(json.dumps(tried["task"], ensure_ascii=False), TASK))
    if tried["requests"]:
        line()
        line("requests", "bold")
        columns = ("method", "path", "model", "status", "replaced", "refused")
        rows = [[_cell(request[name]) for name in columns] for request in tried["requests"]]
        console.print(output.fitted(columns, rows, console.width, numbers=("status",)))
    if tried["sequences"]:
        line()
        line("sequences", "bold")
        numbers = ("tokens", "sampled", "reward")
        rows = [
            [_cell(sequence_row[name]) for name in (*numbers, "dropped")]
            for sequence_row in tried["sequences"]
        ]
        console.print(output.fitted((*numbers, "dropped"), rows, console.width, numbers=numbers))
    for number, sequence in enumerate(tried["sequences"], 1):
        line(f"Sequence {number} ends with {_quoted(sequence['text'][-TEXT:])}")
        if (change := sequence["changed"]) is not None:
            difference = "another prompt than" if change["in_prompt"] else "a changed conversation of"
            line(
                f"Sequence {number} has {difference} sequence {change['sequence']}, "
                f"after {change['characters']} characters:"
            )
            line(f"  said      {_quoted(change['said'])}")
            line(f"  came back {_quoted(change['came_back'])}")
    line()
    if tried["error"] is not None:
        line(f"failed after {tried['seconds']:.1f} s: {tried['error']}", "bold")
    else:
        line(f"reward {_cell(tried['reward']) or 'none'}, after {tried['seconds']:.1f} s", "bold")
    for reward in tried["rewards"]:
        weight = "" if reward["weight"] == 1 else f" * {reward['weight']:g}"
        line(f"  {reward['name']}: {reward['value']:g}{weight}, from {reward['from']}")
    for program in tried["programs"]:
        line()
        line(f"{program['name']}: exit status {program['status']}", "bold")
        for text in program["output"][-LINES:] + program["errors"][-LINES:]:
            line(f"  {_cut(text, TASK)}")
    line()
    line("Nothing of this attempt is kept.")


def _cell(value: Any) -> str:
    if value is None or value == {}:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}…"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else "the end"
