"""Reader of Trinity-RFT's experience buffers in SQLite files.

The tables are defined in trinity/buffer/schema/sql_schema.py. Tasks have `raw_task`. Experiences have their
arrays in `experience_bytes`, in the same table or in one whose name ends in `_blob`: the letters TRXP, a
version, two lengths, a pickle of texts and numbers, and tensors as safetensors. The pickle is parsed as data,
never executed. Rows that earlier releases wrote as a whole pickle have only the texts in columns.
"""

import json
import sqlite3
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trinity_db.data.files.files import Reader, break_off
from trinity_db.data.formats import plain_pickle
from trinity_db.data.rejects import Rejected
from trinity_db.errors import ConfigError, ImportFileError, MissingExtra

Row = dict[str, Any]

SQLITE = b"SQLite format 3\0"
HEADER = struct.Struct("<4sBQQ")
MAGIC, VERSION = b"TRXP", 1
BLOB = "_blob"
KNOWN = {"raw_task", "message_list", "chosen_message_list", "reward"}
"""Columns, one of which each table of a buffer has."""
TENSORS = ("tokens", "logprobs", "action_mask")
OF_COLUMNS = {
    "prompt": "prompt_text",
    "response": "response_text",
    "message_list": "messages",
    "chosen_message_list": "chosen_messages",
    "rejected_message_list": "rejected_messages",
    "reward": "reward",
}
"""Column → key of an experience. The column takes precedence, since a reward may have been added later."""
PACKED = ("experience_bytes", "serialized_exp")
READ = ("raw_task", *OF_COLUMNS, "model_version", *PACKED)
# Only tables with pages: views, virtual tables and generated columns execute code of the file, possibly
# forever.
TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"


def is_store(path: Path) -> bool:
    """Whether a file is an SQLite database."""
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def store_reader(table: str | None) -> Reader:
    """Make a reader of a buffer: `{"raw_task": ...}` for a task, and `{"steps": [...]}` for an attempt.

    Args:
        table: table to read; None: all.
    """
    return lambda path: _read_store(path, table)


def _read_store(path: Path, only: str | None) -> Iterator[tuple[int, int, Row | Rejected]]:
    number, size = 0, path.stat().st_size
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as store:
            store.execute("PRAGMA trusted_schema = OFF")
            store.row_factory = sqlite3.Row
            store.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
            # A damaged file can have a cycle of pages, and so a value longer than the file.
            store.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, size)
            tables = _tables(path, store, only)
            total = sum(
                store.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()[0] for table in tables
            )
            for table in tables:
                for count, row in _attempts(_rows(store, table)):
                    yield number + 1, size * number // total, row
                    number += count
    except sqlite3.Error as error:
        break_off(path, f"row {number}" if number else None, error)


def _tables(path: Path, store: sqlite3.Connection, only: str | None) -> list[str]:
    every = [row["name"] for row in store.execute(TABLES)]
    known = sorted(name for name in every if not name.endswith(BLOB) and _columns(store, name) & KNOWN)
    if not known:
        raise ImportFileError(f"{path}: is a SQLite file without a table of Trinity-RFT.")
    if only is not None and only not in known:
        raise ConfigError(f"--split {only}: {path} has no such table; there are: {', '.join(known)}.")
    return known if only is None else [only]


def _columns(store: sqlite3.Connection, table: str) -> set[str]:
    return {row["name"] for row in store.execute(f"PRAGMA table_info({_quoted(table)})")}


def _rows(store: sqlite3.Connection, table: str) -> Iterator[Row | Rejected]:
    """Yield the rows of a table: tasks, and single experiences."""
    columns = _columns(store, table)
    chosen = ["t.id AS id", *(f"t.{name}" for name in READ if name in columns)]
    blobs, has_blobs = _quoted(table + BLOB), _has_blobs(store, table)
    if has_blobs:
        chosen = [name for name in chosen if name != "t.experience_bytes"] + ["b.experience_bytes"]
    join = f"LEFT JOIN {blobs} b ON b.id = t.id" if has_blobs else ""
    for row in store.execute(f"SELECT {', '.join(chosen)} FROM {_quoted(table)} t {join} ORDER BY t.id"):
        columns_of = dict(row)
        candidates = [columns_of.pop(name, None) for name in PACKED]
        packed = next((candidate for candidate in candidates if candidate is not None), None)
        try:
            yield _task(columns_of) if "raw_task" in columns_of else _experience(columns_of, packed)
        except ValueError as error:
            yield Rejected.of(str(error), columns_of)


def _has_blobs(store: sqlite3.Connection, table: str) -> bool:
    """Whether a table has its arrays in another table.

    Raises:
        sqlite3.DataError: if two of its rows have the same id, since a small file could then expand to
            endless rows.
    """
    name = table + BLOB
    if name not in [row["name"] for row in store.execute(TABLES)]:
        return False
    counts = f"SELECT count(id), count(DISTINCT id) FROM {_quoted(name)}"
    num_rows, num_ids = store.execute(counts).fetchone()
    if num_rows != num_ids:
        raise sqlite3.DataError(f"two rows of {name} have the same id")
    return True


def _task(columns: Row) -> Row:
    return {"raw_task": _parsed(columns, "raw_task")}


def _parsed(columns: Row, name: str) -> Any:
    """Parse the JSON of a column, whose type SQLite does not enforce; None if it is empty."""
    text = columns.get(name)
    if text is None:
        return None
    if not isinstance(text, str | bytes):
        raise ValueError(f"'{name}' is not text")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"'{name}' is not JSON") from None


def _experience(columns: Row, packed: Any) -> Row:
    """Return an experience with Trinity-RFT's names, and its arrays as lists unless they are a pickle.

    Raises:
        ValueError: if it is damaged.
    """
    fields = _unpacked(packed) if isinstance(packed, bytes) and packed[:4] == MAGIC else {}
    for column, key in OF_COLUMNS.items():
        value = _parsed(columns, column) if column.endswith("message_list") else columns.get(column)
        if value is not None:
            fields[key] = value
    eid, fields["info"] = fields.get("eid") or {}, fields.get("info") or {}
    if not isinstance(eid, dict) or not isinstance(fields["info"], dict):
        raise ValueError("'experience_bytes' has an 'eid' or an 'info' that is not an object")
    if type(eid.get("step", 0)) is not int:
        raise ValueError("'experience_bytes' has a 'step' that is not a whole number")
    if columns.get("model_version") is not None:
        fields["info"]["model_version"] = columns["model_version"]
    fields.setdefault("store_id", columns["id"])
    return fields


def _unpacked(packed: bytes) -> Row:
    """Parse one experience written by `Experience.serialize`.

    Raises:
        ValueError: if it is damaged, or of another version.
    """
    if len(packed) < HEADER.size:
        raise ValueError("'experience_bytes' is cut off")
    _, version, num_meta, num_tensors = HEADER.unpack_from(packed)
    if version != VERSION:
        raise ValueError(f"'experience_bytes' has version {version}; supported is {VERSION}")
    if len(packed) != HEADER.size + num_meta + num_tensors:
        raise ValueError("'experience_bytes' is cut off")
    end = HEADER.size + num_meta
    try:
        items = plain_pickle.loads(packed[HEADER.size : end])["items"]
        [item] = items
        return {**item, **_tensors(packed[end:])}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"'experience_bytes' {error}") from None


def _tensors(data: bytes) -> Row:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load
    except ImportError as error:
        raise MissingExtra("train", "safetensors") from error
    try:
        arrays = load(data)
    except SafetensorError as error:
        raise ValueError(f"has damaged tensors: {error}") from None
    tensors = {name: arrays.get(f"0:{name}") for name in TENSORS}
    return {name: tensor.reshape(-1).tolist() for name, tensor in tensors.items() if tensor is not None}


def _attempts(rows: Iterable[Row | Rejected]) -> Iterator[tuple[int, Row | Rejected]]:
    """Join the steps of an attempt, consecutive ones of one run at one task, into one row.

    Yields the number of table rows, and the row.
    """
    steps: list[Row] = []
    for row in rows:
        is_step = isinstance(row, dict) and "raw_task" not in row
        if steps and not (is_step and isinstance(row, dict) and _goes_on(steps[-1], row)):
            yield len(steps), {"steps": steps}
            steps = []
        if is_step and isinstance(row, dict):
            steps.append(row)
        else:
            yield 1, row
    if steps:
        yield len(steps), {"steps": steps}


def _goes_on(before: Row, row: Row) -> bool:
    earlier, later = before.get("eid") or {}, row.get("eid") or {}
    names = ("batch", "task", "run")
    if earlier.get("task") in (None, "") or [earlier.get(name) for name in names] != [
        later.get(name) for name in names
    ]:
        return False
    return bool(later.get("step", 0) > earlier.get("step", 0))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
