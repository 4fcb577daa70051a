"""The commands that bring data in and out: import and export."""

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from trinity_db.imports.rejects import Summary

Kind = Literal["tasks", "preferences", "demonstrations", "trajectories"]

TYPES = re.compile(r"(\.(jsonl|json|parquet|arrow|feather))?(\.gz)?$", re.IGNORECASE)

PathArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", help="JSONL (also .gz), JSON, Parquet, Arrow, or a saved Hugging Face data set."
    ),
]
KindOption = Annotated[Kind, typer.Option("--as", help="What the rows are.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the summary as a JSON object.")]


def import_(
    path: PathArgument,
    kind: KindOption,
    name: Annotated[
        str | None, typer.Option(help="Name of the taskset or data set; that of the file if left out.")
    ] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="OURS=THEIRS", help="Where a column goes by another name: prompt=question."
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="One split of a saved data set; all if left out.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Import tasks, preferences, demonstrations or trajectories from a file.

    Columns are found by the conventions of TRL. Preferences are pairs, chosen and rejected, or single
    responses, each with a label, true or false. A row that cannot be used is kept with its reason in a
    file of rejects; importing a file again adds nothing.

    Example:

        trinity-db import pairs.jsonl --as preferences --map prompt=question
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from trinity_db.database import open_database
    from trinity_db.imports.columns import Columns
    from trinity_db.imports.importer import import_rows
    from trinity_db.imports.mapping import parse_options
    from trinity_db.imports.readers import open_rows

    columns = Columns(kind, parse_options(mapping or []))
    source = open_rows(path, split)
    name = name or name_of(path)
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(f"importing {path.name}", total=source.total_bytes)
        summary = import_rows(
            open_database(),
            source,
            columns,
            name,
            lambda done, total: bar.update(task, completed=done, total=total),
        )
    _print_summary(summary, kind, name, as_json)
    if not summary.added and not summary.known:
        sys.exit(1)


def export(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A taskset, data set or run.")],
    kind: KindOption,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help=".jsonl, .jsonl.gz, .parquet or .arrow")],
    as_json: JsonOption = False,
) -> None:
    """Write what a taskset, data set or run holds to a file that import reads without loss.

    A run's prompts are those of its tasks, without its model.prompt_template. What a workflow of your
    own asked is written as the model read it, each step of an attempt as a row of its own: who imports
    that leaves the template out.

    Example:

        trinity-db export reverse-tasks --as tasks --to tasks.parquet
    """
    from trinity_db.database import open_database
    from trinity_db.imports.exporter import export_rows

    count = export_rows(open_database(), kind, name, to, lambda rows: None)
    if as_json:
        print(json.dumps({"name": name, "kind": kind, "rows": count, "file": str(to)}))
    else:
        print(f"{count} {kind} of '{name}' written to {to}")


def name_of(path: Path) -> str:
    """The file's name without the endings that say its type: llama-3.1-8b.jsonl.gz is llama-3.1-8b."""
    return TYPES.sub("", os.path.basename(os.path.abspath(path)))  # a link keeps its own name


def _print_summary(summary: "Summary", kind: Kind, name: str, as_json: bool) -> None:
    if as_json:
        reasons = {
            reason: {"count": r.count, "first_line": r.first_line} for reason, r in summary.reasons.items()
        }
        content = {
            "name": name,
            "kind": kind,
            "read": summary.read,
            "added": summary.added,
            "known": summary.known,
            "rejected": summary.rejected,
            "reasons": reasons,
            "rejects": str(summary.rejects_path) if summary.rejects_path else None,
        }
        print(json.dumps(content))
        return
    print(f"{name}: {summary.added} {kind} added, {summary.known} known already, {summary.rejected} rejected")
    for reason, found in summary.reasons.items():
        print(f"  {found.count} × {reason} (first: line {found.first_line})")
    if summary.rejects_path:
        print(f"  rejected rows with their reasons: {summary.rejects_path}")
