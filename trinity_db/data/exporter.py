"""Export from the store into a file that an import reads back without loss.

Rows have TRL's columns, with conversations as lists of messages; columns without meaning for the import are
in `extra`. The steps of an attempt become separate rows. In `extra`, the export also identifies each row that
a run explored, so that an import can distinguish equal answers. The file is renamed to its final name once
complete.
"""

import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from psycopg.rows import DictRow

from trinity_db.arrays.codec import Payload
from trinity_db.data.files import cells
from trinity_db.data.records.records import Kind
from trinity_db.data.traces.trace_export import trace, traces
from trinity_db.data.traces.verifiers_export import episode
from trinity_db.errors import ConfigError, NotFound, TrinityError
from trinity_db.models.chat.prompts import offered_tools
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query

Row = dict[str, Any]

EXPORT_TYPES = (".jsonl", ".jsonl.gz", ".csv", ".parquet", ".arrow")
TRACE_TYPES = EXPORT_TYPES[:2]  # types that OpenEnv reads; a table would give all turns the same keys
TRACE_FORMATS = {"openenv": trace, "verifiers": episode}
FETCH_ROWS = 1_000  # rows in memory at a time


def export_rows(
    database: Database,
    kind: Kind,
    name: str,
    path: Path,
    progress: Callable[[int], None],
    format: str | None = None,
) -> int:
    """Export the rows of one kind of a taskset, data set or run; return their number.

    Args:
        format: openenv or verifiers, for traces. None: openenv.
        progress: called with the number of rows written so far, every FETCH_ROWS rows.

    Raises:
        ConfigError: if the file's type is not in EXPORT_TYPES, or its folder does not exist.
        NotFound: if no such rows exist; no file is written.
        TrinityError: if it cannot be written, for example on a full disk; an older file of that name is kept.
    """
    suffix = next((suffix for suffix in EXPORT_TYPES if path.name.lower().endswith(suffix)), None)
    if suffix is None:
        raise ConfigError(f"{path}: unknown type of file; known are {', '.join(EXPORT_TYPES)}.")
    if kind == "traces" and suffix not in TRACE_TYPES:
        raise ConfigError(f"{path}: traces are JSON lines; name the file .jsonl or .jsonl.gz.")
    if format is not None and (kind != "traces" or format not in TRACE_FORMATS):
        raise ConfigError(f"--format {format}: traces can be written as {' or '.join(TRACE_FORMATS)}.")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}.")
    try:
        return _export(database, kind, name, path, suffix, progress, TRACE_FORMATS[format or "openenv"])
    except OSError as error:
        raise TrinityError(f"{path}: cannot be written: {error.strerror or error}") from error


def _export(
    database: Database,
    kind: Kind,
    name: str,
    path: Path,
    suffix: str,
    progress: Callable[[int], None],
    convert: Callable[[Sequence[DictRow], Sequence[Payload]], Row],
) -> int:
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with database.transaction(read_only=True) as tx:
            if kind == "traces":
                rows = traces(database, _select(tx, "export_traces", name), convert)
            else:
                rows = _READERS[kind](tx, name)
            count = _write_lines(partial, _counted(rows, progress), packed=suffix.endswith(".gz"))
        if count == 0:
            raise NotFound(f"'{name}' holds no {kind}.")
        if suffix in (".parquet", ".arrow"):
            from trinity_db.data.files import tables  # here, because importing pyarrow takes half a second

            tables.write_table(partial, suffix)
        elif suffix == ".csv":
            cells.write_csv(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _tasks(tx: Transaction, name: str) -> Iterator[Row]:
    for row in _select(tx, "export_tasks", name):
        payload = dict(row["payload"])
        prompt = payload.pop("messages", None) or payload.pop("prompt")
        offered = payload.pop("tools") if offered_tools(payload) else None
        yield _present(prompt=prompt, answer=payload.pop("answer", None), tools=offered, extra=payload)


def _demonstrations(tx: Transaction, name: str) -> Iterator[Row]:
    for row in _select(tx, "export_demonstrations", name):
        prompt = row["messages"] or row["prompt"]
        if not prompt:
            yield _present(text=row["response"], extra=row["extra"])
            continue
        completion = row["reply"] or _reply(row["response"], prompt)
        yield _present(prompt=prompt, completion=completion, tools=row["tools"], extra=row["extra"])


def _preferences(tx: Transaction, name: str) -> Iterator[Row]:
    for row in _select(tx, "export_pairs", name):
        prompt = _prompt(row)
        yield _present(
            prompt=prompt,
            chosen=row["chosen_reply"] or _reply(row["chosen"], prompt),
            rejected=row["rejected_reply"] or _reply(row["rejected"], prompt),
            tools=_tools(row),
            margin=row["margin"],
            extra=_with(row, "chosen_experience", "rejected_experience"),
        )
    for row in _select(tx, "export_verdicts", name):
        prompt = _prompt(row)
        yield _present(
            prompt=prompt,
            completion=row["reply"] or _reply(row["response"], prompt),
            label=row["label"],
            tools=_tools(row),
            extra=_with(row, "experience"),
        )


def _trajectories(tx: Transaction, name: str) -> Iterator[Row]:
    for row in _select(tx, "export_trajectories", name):
        prompt = _prompt(row)
        yield _present(
            prompt=prompt,
            response=row["reply"] or _reply(row["response"], prompt),
            tools=_tools(row),
            reward=row["reward"],
            model=row["model"],
            answer=row["payload"].get("answer"),
            extra=_with(row, "experience"),
        )


_READERS: dict[Kind, Callable[[Transaction, str], Iterator[Row]]] = {
    "tasks": _tasks,
    "demonstrations": _demonstrations,
    "preferences": _preferences,
    "trajectories": _trajectories,
}


def _select(tx: Transaction, name: str, dataset: str) -> Iterator[DictRow]:
    """Yield the rows of a query, fetched in batches."""
    with tx.cursor(name=name) as cursor:
        cursor.itersize = FETCH_ROWS
        cursor.execute(query(name), {"name": dataset})
        yield from cursor


def _prompt(row: DictRow) -> Any:
    """Return the prompt: a plain text, or the task's conversation or text."""
    task = row["payload"]
    return row["asked"] or task.get("messages") or task["prompt"]


def _tools(row: DictRow) -> Any:
    """Return the tools of a conversation; None for a plain prompt, which cannot show them."""
    return None if row["asked"] or "messages" not in row["payload"] else row["payload"].get("tools")


def _reply(response: str, prompt: Any) -> Any:
    """Return the response in the form of its prompt: text for text, a message for a conversation."""
    return [{"role": "assistant", "content": response}] if isinstance(prompt, list) else response


def _with(row: DictRow, *names: str) -> Row:
    """Return the row's `extra`, with the names of its experiences if it has them."""
    return {**(row["extra"] or {}), **{name: row[name] for name in names if row[name] is not None}}


def _present(**columns: Any) -> Row:
    return {name: value for name, value in columns.items() if value is not None and value != {}}


def _counted(rows: Iterable[Row], progress: Callable[[int], None]) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        yield row
        if number % FETCH_ROWS == 0:
            progress(number)


def _write_lines(path: Path, rows: Iterable[Row], packed: bool) -> int:
    count = 0
    with gzip.open(path, "wb") if packed else path.open("wb") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            count += 1
    return count
