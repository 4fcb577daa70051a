"""The commands that bring data in and out: import and export, of rows and of whole runs."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from trinity_db.copies.exporter import Exported
    from trinity_db.copies.importer import Imported
    from trinity_db.imports.records import Kind
    from trinity_db.imports.rejects import Summary

PREFIX = "reasoning-gym:"
"""Before the name of a data set, where the path of a file may stand."""

Form = Literal["tasks", "preferences", "demonstrations", "trajectories", "traces", "run"]
Written = Literal["tasks", "preferences", "demonstrations", "trajectories", "traces", "run", "model"]

TYPES = re.compile(r"(\.(jsonl|json|csv|parquet|arrow|feather|db|sqlite3?))?(\.gz)?$", re.IGNORECASE)

PathArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="JSONL, JSON, CSV (these also .gz), Parquet, Arrow, a saved Hugging Face data set, a copy of a "
        "run, or reasoning-gym:NAME.",
    ),
]
KindOption = Annotated[Form, typer.Option("--as", help="What the rows are.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the summary as a JSON object.")]
NewNameOption = Annotated[
    str | None,
    typer.Option(
        help="Name of the taskset, data set or run; that of the file, or the run's own, if left out."
    ),
]
MapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="OURS=THEIRS",
        help="Our name and theirs, where a column has another name: prompt=question.",
    ),
]
SplitOption = Annotated[
    str | None,
    typer.Option(help="One split of a saved data set, or table of a Trinity-RFT store; all if left out."),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="Whose columns: trl, verl, trinity-rft, atropos, or a function of yours, path/to/file.py:name. "
        "The first row decides if left out.",
    ),
]

SizeOption = Annotated[
    int | None, typer.Option(min=1, max=10_000_000, help="Tasks of reasoning-gym:NAME; 1000 if left out.")
]
SeedOption = Annotated[
    int | None, typer.Option(min=0, max=2**31 - 1, help="What they are made from; 0 if left out.")
]
PythonOption = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="The interpreter that has reasoning-gym; this one if left out."),
]


def import_(
    path: PathArgument,
    kind: KindOption,
    name: NewNameOption = None,
    mapping: MapOption = None,
    split: SplitOption = None,
    format: FormatOption = None,
    size: SizeOption = None,
    seed: SeedOption = None,
    python: PythonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import tasks, preferences, demonstrations, trajectories or traces from a file, or a run from a folder.

    Column names follow the conventions of TRL; files of verl, Trinity-RFT and Atropos are known too.
    Preferences are pairs, chosen and rejected, or single responses, each with a label, true or false. A row
    that cannot be used is kept with its reason in a file of rejects; importing a file again adds nothing.

    With --as traces, each line is a TrainingTrace of OpenEnv: tokens, log-probabilities and loss mask of
    one attempt. Runs that adopt such rows learn from these very tokens.

    With --as run, PATH is a folder that export wrote. The run is imported with everything that belongs to it,
    beside what the store holds, or not at all.

    With reasoning-gym:NAME, that package makes the tasks; the environment reasoning-gym scores responses.

    Example:

        trinity-db import pairs.jsonl --as preferences --map prompt=question
        trinity-db import attempts.jsonl --as traces --name attempts
    """
    if str(path).startswith(PREFIX):
        if mapping or split or format:
            raise typer.BadParameter(f"--map, --split and --format are for files, and {path} is none")
        _import_generated(str(path), kind, name, size or 1000, seed or 0, python, as_json)
    elif size is not None or seed is not None or python is not None:
        raise typer.BadParameter(f"--size, --seed and --python go with {PREFIX}NAME")
    elif kind != "run":
        _import_rows(path, kind, name or name_of(path), mapping or [], split, format, as_json)
    elif mapping or split or format:
        raise typer.BadParameter("--map, --split and --format are for rows; --as run takes a folder as it is")
    else:
        _import_run(path, name, as_json)


def export(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A taskset, data set or run.")],
    kind: Annotated[Written, typer.Option("--as", help="What the rows are; of a run, all of it or a model.")],
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TO]",
            help="The file: .jsonl, .jsonl.gz, .csv, .parquet or .arrow; for a run or a model, a new folder.",
        ),
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="The same, as an option.")] = None,
    checkpoints: Annotated[
        bool,
        typer.Option(
            "--checkpoints", help="With --as run, also the files of the versions that the run keeps."
        ),
    ] = False,
    version: Annotated[
        int | None,
        typer.Option(
            "--version", metavar="N", min=0, help="With --as model, which version. Without: the newest."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write what a taskset, data set or run holds to a file that import reads without loss.

    With --as traces, each attempt becomes a line that is a TrainingTrace of OpenEnv, token for token. Rewards
    and versions stand in the metadata of its turns, under trinity_db.

    With --as run, all of a run goes to a folder of Parquet files: tokens, log-probabilities, versions,
    rewards by source, batches, metrics, and the data sets and runs that it adopted rows of or made rows for.

    With --as model, a version of a run goes to a folder that transformers and other programs load: the whole
    model with its tokenizer, also if the run publishes adapters.

    A run's prompts are those of its tasks, without its model.prompt_template. Prompts of a workflow of your
    own are written as the model read them, with one row for each step of an attempt. Leave the template out
    of a run that trains on such rows.

    Example:

        trinity-db export reverse --as run copy-of-reverse --checkpoints
        trinity-db export reverse --as traces --to reverse.jsonl
        trinity-db export reverse --as model --version 40 reverse-40
    """
    if (target is None) == (to is None):
        raise typer.BadParameter("say where to: trinity-db export NAME --as KIND --to FILE")
    to = target or to
    assert to is not None
    if checkpoints and kind != "run":
        raise typer.BadParameter("--checkpoints goes with --as run")
    if version is not None and kind != "model":
        raise typer.BadParameter("--version goes with --as model")
    if kind == "run":
        _export_run(name, to, checkpoints, as_json)
        return
    if kind == "model":
        _export_model(name, to, version, as_json)
        return
    from trinity_db.imports.exporter import export_rows
    from trinity_db.opening import open_database

    with closing(open_database()) as database:
        count = export_rows(database, kind, name, to, lambda rows: None)
    if as_json:
        print(json.dumps({"name": name, "kind": kind, "rows": count, "file": str(to)}))
    else:
        print(f"{count} {kind} of '{name}' written to {to}")


def name_of(path: Path) -> str:
    """The file's name without the endings that say its type: llama-3.1-8b.jsonl.gz is llama-3.1-8b."""
    return TYPES.sub("", os.path.basename(os.path.abspath(path)))  # a link keeps its own name


def _import_generated(
    source: str, kind: Form, name: str | None, size: int, seed: int, python: str | None, as_json: bool
) -> None:
    from trinity_db.imports.generated import written

    if kind != "tasks":
        raise typer.BadParameter(f"{source} has tasks: trinity-db import {source} --as tasks")
    with written(source, size, seed, python) as path:
        _import_rows(path, kind, name or name_of(path), [], None, "trl", as_json)


def _import_rows(
    path: Path,
    kind: "Kind",
    name: str,
    mapping: list[str],
    split: str | None,
    format: str | None,
    as_json: bool,
) -> None:
    from trinity_db.imports.cells import csv_reader
    from trinity_db.imports.columns import Columns
    from trinity_db.imports.dataset import shared_prompts
    from trinity_db.imports.formats import TRL, FormatReader
    from trinity_db.imports.importer import import_rows
    from trinity_db.imports.mapping import parse_options
    from trinity_db.imports.readers import open_rows
    from trinity_db.imports.records import MAX_RECORD_BYTES
    from trinity_db.imports.traces import MAX_TRACE_BYTES
    from trinity_db.opening import open_database

    names = parse_options(mapping)
    columns, rows = Columns(kind, names), FormatReader(format, kind, names)
    # A line of Atropos has the tokens of a whole group, also where only its texts are taken.
    holds_tokens = kind == "traces" or format == "atropos"
    max_bytes = MAX_TRACE_BYTES if holds_tokens else MAX_RECORD_BYTES
    source = open_rows(path, split, max_bytes, csv_reader(names, kind))
    with closing(open_database()) as database:
        with _bytes_on_stderr(f"importing {path.name}", source.total_bytes) as progress:
            summary = import_rows(database, source, columns, name, progress, rows)
        _print_summary(summary, kind, name, rows.name or TRL, as_json)
        shared = shared_prompts(database, name) if kind == "tasks" and summary.added else {}
    if format is None and rows.name not in (None, TRL):
        print(
            f"note: read as rows of {rows.name}; --format trl takes the columns as they are", file=sys.stderr
        )
    for other, count in shared.items():
        print(
            f"note: {count} tasks of '{name}' have the prompts of tasks of '{other}'; to train on one "
            "and evaluate on the other gives a result that is too good",
            file=sys.stderr,
        )
    if not summary.added and not summary.known:
        sys.exit(1)


def _export_run(name: str, folder: Path, checkpoints: bool, as_json: bool) -> None:
    from trinity_db.copies.exporter import export_run
    from trinity_db.opening import open_database

    with closing(open_database()) as database, _rows_on_stderr("exporting") as progress:
        exported = export_run(database, name, folder, checkpoints, progress)
    if exported.other_model:
        print(
            f"note: '{name}' started from a checkpoint of run '{exported.other_model}', which is not part of "
            "the copy; --checkpoints takes its starting model along",
            file=sys.stderr,
        )
    if as_json:
        print(json.dumps({"name": name, "kind": "run", "folder": str(folder), **_jsonable(exported)}))
        return
    size = f"{exported.num_bytes / 2**20:.1f} MiB"
    print(f"run '{name}': {_counted(exported)} written to {folder} ({size})")
    if exported.data:
        print(f"  with the data sets and runs that its rows belong with: {', '.join(exported.data)}")


def _export_model(name: str, folder: Path, version: int | None, as_json: bool) -> None:
    from trinity_db.copies.model import export_model
    from trinity_db.opening import open_database

    with closing(open_database()) as database:
        written = export_model(database, name, folder, version)
    if as_json:
        print(json.dumps({"name": name, "kind": "model", "version": written, "folder": str(folder)}))
    else:
        print(f"version {written} of '{name}' written to {folder}")


def _import_run(folder: Path, name: str | None, as_json: bool) -> None:
    from trinity_db.copies.importer import import_run
    from trinity_db.opening import open_database

    with closing(open_database()) as database, _rows_on_stderr("importing") as progress:
        imported = import_run(database, folder, name, progress)
    if as_json:
        print(json.dumps({"kind": "run", "folder": str(folder), **_jsonable(imported)}))
        return
    print(f"run '{imported.name}': {_counted(imported)} imported from {folder}")
    if imported.num_matched_tasks:
        print(f"  {imported.num_matched_tasks:,} of its tasks were here already")
    for old, new in (imported.data | imported.tasksets).items():
        if old != new:
            print(f"  '{old}' is '{new}' here: another one has the name")
    if imported.released:
        held = imported.released
        print(f"  {held.experiences:,} rows and {held.groups:,} groups that were leased are given back")
    if not imported.checkpoints:
        print("  without checkpoints: it can be read and learned from, and not trained on")


def _counted(copy: "Exported | Imported") -> str:
    rows, files = sum(copy.rows.values()), len(copy.checkpoints)
    return f"{rows:,} rows of {len(copy.rows)} tables and {files} checkpoint{'' if files == 1 else 's'}"


def _jsonable(copy: "Exported | Imported") -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(copy)


@contextmanager
def _rows_on_stderr(doing: str) -> Iterator[Callable[[str, int], None]]:
    """A line on a terminal that says which table is written, and how many of its rows are."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda table, rows: None
        return
    with console.status(doing) as status:
        yield lambda table, rows: status.update(f"{doing} {table}: {rows:,} rows")


@contextmanager
def _bytes_on_stderr(doing: str, total: int | None) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on a terminal: how many bytes of the file are read."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_summary(summary: "Summary", kind: "Kind", name: str, format: str, as_json: bool) -> None:
    if as_json:
        reasons = {
            reason: {"count": r.count, "first_line": r.first_line} for reason, r in summary.reasons.items()
        }
        content = {
            "name": name,
            "kind": kind,
            "format": format,
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
