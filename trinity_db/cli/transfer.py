"""The commands that move data in and out: import and export, of rows and of whole runs."""

import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trinity_db.insight.words import printable

if TYPE_CHECKING:
    from trinity_db.data.copies.exporter import Exported
    from trinity_db.data.copies.importer import Imported
    from trinity_db.data.records.account import Account
    from trinity_db.data.records.records import Kind
    from trinity_db.data.rejects import Rejected, Summary

FIRST_ROW_WIDTH = 120  # characters of a rejected row: its columns, and enough to recognize it
PREFIX = "reasoning-gym:"
"""Prefix of a data set's name that is given in place of a file's path."""

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
KindOption = Annotated[Form, typer.Option("--as", help="Kind of the rows.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the summary as a JSON object.")]
NewNameOption = Annotated[
    str | None,
    typer.Option(help="Name of the taskset, data set or run. Default: that of the file or the run."),
]
MapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="OURS=THEIRS",
        help="Map a column with another name: prompt=question.",
    ),
]
SplitOption = Annotated[
    str | None,
    typer.Option(help="Split of a saved data set, or table of a Trinity-RFT store. Default: all."),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="Format of the rows: trl, verl, trinity-rft, atropos, verifiers, or your function, "
        "path/to/file.py:name. Default: detected from the first row.",
    ),
]

PreviewOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Show the first N rows as they would be read, and import nothing."),
]
SizeOption = Annotated[
    int | None, typer.Option(min=1, max=10_000_000, help="Tasks of reasoning-gym:NAME. Default: 1000.")
]
SeedOption = Annotated[
    int | None, typer.Option(min=0, max=2**31 - 1, help="Seed of reasoning-gym:NAME. Default: 0.")
]
PythonOption = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="Interpreter with reasoning-gym. Default: this one."),
]


def import_(
    path: PathArgument,
    kind: KindOption,
    name: NewNameOption = None,
    mapping: MapOption = None,
    split: SplitOption = None,
    format: FormatOption = None,
    preview: PreviewOption = None,
    size: SizeOption = None,
    seed: SeedOption = None,
    python: PythonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import rows from a file, or a run from a folder.

    Rows are tasks, preferences, demonstrations, trajectories or traces. Column names follow the
    conventions of TRL; rows in the forms of ShareGPT and Alpaca, and files of verl, Trinity-RFT, Atropos
    and verifiers are recognized too. Preferences are pairs, chosen and rejected, or single responses, each
    labelled true or false. The import prints which columns it read, kept and converted, and one row with
    the trained part in ⟦ ⟧. A row that cannot be used is written to a file of rejects with the reason;
    importing a file again adds nothing.

    With --as traces, each line is a TrainingTrace of OpenEnv: tokens, log-probabilities and loss mask of one
    attempt. Runs that adopt such rows learn from exactly these tokens.

    With --as run, PATH is a folder that export wrote. The run is imported with everything that belongs to it,
    next to the store's existing data, or not at all.

    With reasoning-gym:NAME, that package creates the tasks; the environment reasoning-gym scores responses.

    Example:

    \b
        trinity-db import pairs.jsonl --as preferences --map prompt=question
        trinity-db import pairs.jsonl --as preferences --preview 3
        trinity-db import attempts.jsonl --as traces --name attempts
    """
    if str(path).startswith(PREFIX):
        if mapping or split or format or preview:
            raise typer.BadParameter(
                f"--map, --split, --format and --preview are for files, and {path} is not one"
            )
        _import_generated(str(path), kind, name, size or 1000, seed or 0, python, as_json)
    elif size is not None or seed is not None or python is not None:
        raise typer.BadParameter(f"--size, --seed and --python need {PREFIX}NAME")
    elif kind != "run":
        _import_rows(path, kind, name or name_of(path), mapping or [], split, format, as_json, preview)
    elif mapping or split or format or preview:
        raise typer.BadParameter(
            "--map, --split, --format and --preview are for rows; --as run takes a whole folder"
        )
    else:
        _import_run(path, name, as_json)


def export(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A taskset, data set or run.")],
    kind: Annotated[Written, typer.Option("--as", help="Kind of rows; of a run also all of it, or a model.")],
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TO]",
            help="Output file: .jsonl, .jsonl.gz, .csv, .parquet or .arrow; for run and model, a new folder.",
        ),
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="The same as an option.")] = None,
    checkpoints: Annotated[
        bool,
        typer.Option(
            "--checkpoints", help="With --as run: include the files of the versions that the run keeps."
        ),
    ] = False,
    version: Annotated[
        int | None,
        typer.Option(
            "--version", metavar="N", min=0, help="With --as model: policy version. Default: the newest."
        ),
    ] = None,
    format: Annotated[
        Literal["openenv", "verifiers"] | None,
        typer.Option("--format", help="With --as traces: what each line is. Default: openenv."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Export a taskset, data set or run.

    The files can be imported again without loss. With --as traces, each attempt becomes a line that is a
    TrainingTrace of OpenEnv, token for token. Rewards and versions are in the metadata of its turns,
    under trinity_db. With --format verifiers, the line is an Episode of verifiers.

    With --as run, all of a run is written to a folder of Parquet files: tokens, log-probabilities, versions,
    rewards by source, batches, metrics, and the data sets and runs that its rows were adopted from or made
    for.

    With --as model, a version of a run is written to a folder that transformers and other programs load: the
    whole model with its tokenizer, even if the run publishes adapters.

    The prompts of a run are those of its tasks, without its model.prompt_template. Prompts of your own
    workflow are written as the model read them, with one row for each step of an attempt. Leave the template
    out of a run that trains on such rows.

    Example:

    \b
        trinity-db export reverse --as run copy-of-reverse --checkpoints
        trinity-db export reverse --as traces --to reverse.jsonl
        trinity-db export reverse --as model --version 40 reverse-40
    """
    if (target is None) == (to is None):
        raise typer.BadParameter("name a file: trinity-db export NAME --as KIND --to FILE")
    to = target or to
    assert to is not None
    if checkpoints and kind != "run":
        raise typer.BadParameter("--checkpoints needs --as run")
    if format is not None and kind != "traces":
        raise typer.BadParameter("--format needs --as traces")
    if version is not None and kind != "model":
        raise typer.BadParameter("--version needs --as model")
    if kind == "run":
        _export_run(name, to, checkpoints, as_json)
        return
    if kind == "model":
        _export_model(name, to, version, as_json)
        return
    from trinity_db.data.exporter import export_rows
    from trinity_db.postgres.opening import open_database

    with closing(open_database()) as database:
        count = export_rows(database, kind, name, to, lambda rows: None, format)
    if as_json:
        print(json.dumps({"name": name, "kind": kind, "rows": count, "file": str(to)}))
    else:
        print(f"{count} {kind} of '{name}' written to {to}")


def name_of(path: Path) -> str:
    """File name without the extensions of its type: llama-3.1-8b.jsonl.gz becomes llama-3.1-8b."""
    return TYPES.sub("", os.path.basename(os.path.abspath(path)))  # a link keeps its name


def _import_generated(
    source: str, kind: Form, name: str | None, size: int, seed: int, python: str | None, as_json: bool
) -> None:
    from trinity_db.data.files.generated import written

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
    preview: int | None = None,
) -> None:
    from trinity_db.api.importing import Import
    from trinity_db.data.formats import TRL
    from trinity_db.data.records.mapping import parse_options
    from trinity_db.postgres.opening import open_database

    rows = Import(kind, name, parse_options(mapping), format)
    source = rows.file(path, split)
    if preview is not None:
        first = rows.preview(source, preview)
        _print_preview(first, rows.account, name, kind, rows.format, as_json)
        return
    with closing(open_database()) as database:
        with _bytes_on_stderr(f"importing {path.name}", source.total_bytes) as progress:
            summary = rows.write(database, source, progress)
        _print_summary(summary, rows.account, kind, name, rows.format, as_json)
        shared = rows.shared_prompts(database) if summary.added else {}
    if format is None and rows.format != TRL:
        print(f"note: read as {rows.format} rows; --format trl uses the columns unchanged", file=sys.stderr)
    for other, count in shared.items():
        print(
            f"note: {count} tasks of '{name}' have the same prompts as tasks of '{other}'; training on one "
            "and evaluating on the other gives results that are too good",
            file=sys.stderr,
        )
    if not summary.added and not summary.known:
        sys.exit(1)


def _export_run(name: str, folder: Path, checkpoints: bool, as_json: bool) -> None:
    from trinity_db.data.copies.exporter import export_run
    from trinity_db.postgres.opening import open_database

    with closing(open_database()) as database, _rows_on_stderr("exporting") as progress:
        exported = export_run(database, name, folder, checkpoints, progress)
    if exported.other_model:
        print(
            f"note: '{name}' started from a checkpoint of run '{exported.other_model}', which is not part of "
            "the copy; --checkpoints includes its starting model",
            file=sys.stderr,
        )
    if as_json:
        print(json.dumps({"name": name, "kind": "run", "folder": str(folder), **_jsonable(exported)}))
        return
    size = f"{exported.num_bytes / 2**20:.1f} MiB"
    print(f"run '{name}': {_counted(exported)} written to {folder} ({size})")
    if exported.data:
        print(f"  with the data sets and runs that its rows depend on: {', '.join(exported.data)}")


def _export_model(name: str, folder: Path, version: int | None, as_json: bool) -> None:
    from trinity_db.data.copies.model import export_model
    from trinity_db.postgres.opening import open_database

    with closing(open_database()) as database:
        written = export_model(database, name, folder, version)
    if as_json:
        print(json.dumps({"name": name, "kind": "model", "version": written, "folder": str(folder)}))
    else:
        print(f"version {written} of '{name}' written to {folder}")


def _import_run(folder: Path, name: str | None, as_json: bool) -> None:
    from trinity_db.data.copies.importer import import_run
    from trinity_db.postgres.opening import open_database

    with closing(open_database()) as database, _rows_on_stderr("importing") as progress:
        imported = import_run(database, folder, name, progress)
    if as_json:
        print(json.dumps({"kind": "run", "folder": str(folder), **_jsonable(imported)}))
        return
    print(f"run '{imported.name}': {_counted(imported)} imported from {folder}")
    if imported.num_matched_tasks:
        print(f"  {imported.num_matched_tasks:,} of its tasks already existed")
    for old, new in (imported.data | imported.tasksets).items():
        if old != new:
            print(f"  '{old}' was renamed to '{new}': the name was taken")
    if imported.released:
        released = imported.released
        print(f"  {released.experiences:,} rows and {released.groups:,} groups that were leased are released")
    if not imported.checkpoints:
        print("  without checkpoints: other runs can learn from it, but it cannot continue training")


def _counted(copy: "Exported | Imported") -> str:
    rows, files = sum(copy.rows.values()), len(copy.checkpoints)
    return f"{rows:,} rows of {len(copy.rows)} tables and {files} checkpoint{'' if files == 1 else 's'}"


def _jsonable(copy: "Exported | Imported") -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(copy)


@contextmanager
def _rows_on_stderr(doing: str) -> Iterator[Callable[[str, int], None]]:
    """On a terminal, show which table is written, and how many of its rows are done."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda table, rows: None
        return
    with console.status(doing) as status:
        yield lambda table, rows: status.update(f"{doing} {table}: {rows:,} rows")


@contextmanager
def _bytes_on_stderr(doing: str, total: int | None) -> Iterator[Callable[[int, int | None], None]]:
    """On a terminal, show a bar of how many bytes of the file have been read."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_preview(
    first: "list[tuple[int, str | Rejected]]",
    account: "Account",
    name: str,
    kind: "Kind",
    format: str,
    as_json: bool,
) -> None:
    rows = [
        {"line": line, "text": row} if isinstance(row, str) else {"line": line, "reason": row.reason}
        for line, row in first
    ]
    if as_json:
        print(json.dumps({"name": name, "kind": kind, "format": format, "rows": rows, **account.jsonable()}))
        return
    for row in rows:
        print(f"line {row['line']}:")
        print(_indented(str(row.get("text") or f"rejected: {row['reason']}")))
    _print_account(account)


def _print_account(account: "Account") -> None:
    for line in account.lines():
        print(f"  {printable(line)}")


def _indented(text: str) -> str:
    return textwrap.indent(printable(text), "    ", lambda line: True)


def _print_summary(
    summary: "Summary", account: "Account", kind: "Kind", name: str, format: str, as_json: bool
) -> None:
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
            "example": summary.example,
            **account.jsonable(),
        }
        print(json.dumps(content))
        return
    from trinity_db.cli.output import shorten

    print(f"{name}: {summary.added} {kind} added, {summary.known} already known, {summary.rejected} rejected")
    for reason, rejects in summary.reasons.items():
        first = printable(shorten(rejects.first_row, FIRST_ROW_WIDTH))
        print(f"  {rejects.count} × {reason} (first: line {rejects.first_line}: {first})")
    if summary.rejects_path:
        print(f"  rejected rows with their reasons: {summary.rejects_path}")
    _print_account(account)
    if summary.example:
        print(f"  the first row{'' if kind in ('tasks', 'traces') else ', with the trained part in ⟦ ⟧'}:")
        print(_indented(summary.example))
