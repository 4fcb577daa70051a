"""Rows out of CSV files, and into them.

A CSV file has no types, so a cell is text, and an empty one is nothing. Three things are read otherwise: the
columns that mean a number, cells that hold messages as JSON, and columns whose name ends in `:json`. Exports
write those for what is no text, so that nothing is lost. The first line has the names; commas part the cells.
"""

import csv
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from trinity_db.errors import ImportFileError
from trinity_db.imports.files import Reader, break_off, decompressed
from trinity_db.imports.records import MAX_RECORD_BYTES, Kind
from trinity_db.imports.rejects import Rejected

Row = dict[str, Any]

JSON_COLUMN = ":json"
NUMBERS = ("reward", "label", "margin")
WITHOUT_NUMBERS: tuple[Kind, ...] = ("tasks", "demonstrations")
"""Where columns of these names mean nothing to us, and stay text."""
CONVERSATIONS = ("prompt", "question", "messages", "completion", "response", "answer", "chosen", "rejected")
CUT_OFF = "unexpected end of data"  # what csv says of a file that ends within a quoted cell


class _NoCell(ValueError):
    """A cell cannot be read; the message is the reason."""


def csv_reader(mapping: Mapping[str, str] | None = None, kind: Kind | None = None) -> Reader:
    """The reader of CSV files.

    Args:
        mapping: our name → their column, as `--map` says it: which columns mean numbers and messages.
        kind: what the rows are; None: any.
    """
    theirs = mapping or {}
    meant = () if kind in WITHOUT_NUMBERS else NUMBERS
    numbers, conversations = (
        frozenset(theirs.get(name, name) for name in names) for names in (meant, CONVERSATIONS)
    )
    return partial(_read_csv, numbers=numbers, conversations=conversations)


def _read_csv(
    path: Path, numbers: frozenset[str], conversations: frozenset[str]
) -> Iterator[tuple[int, int, Row | Rejected]]:
    line = 0
    csv.field_size_limit(MAX_RECORD_BYTES)
    try:
        with path.open("rb") as raw, decompressed(path, raw) as stream:
            # Bytes that are not UTF-8 become halves of surrogate pairs, so that one row of them is rejected.
            text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
            lines = csv.reader(text, strict=True)
            names = _names(path, next(lines, []))
            while True:
                try:
                    cells = next(lines)
                except StopIteration:
                    return
                except csv.Error as error:
                    if CUT_OFF in str(error):
                        raise
                    yield lines.line_num, raw.tell(), Rejected(f"is not CSV: {error}", "")
                    continue
                line = lines.line_num
                if cells:
                    yield line, raw.tell(), _row(names, cells, numbers, conversations)
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        break_off(path, f"line {line}" if line else None, error)


def _names(path: Path, names: list[str]) -> list[str]:
    if any("\udc80" <= letter <= "\udcff" for name in names for letter in name):
        raise ImportFileError(f"{path}: the names in its first line are not UTF-8.")
    if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        raise ImportFileError(f"{path}: no commas part its columns; write it again with commas.")
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ImportFileError(f"{path}: two columns have the name '{twice}'.")
    return names


def _row(
    names: list[str], cells: list[str], numbers: frozenset[str], conversations: frozenset[str]
) -> Row | Rejected:
    if len(cells) != len(names):
        return Rejected.of("has another number of cells than the first line", cells)
    row: Row = {}
    try:
        for name, cell in zip(names, cells, strict=True):
            cell.encode()
            if name.endswith(JSON_COLUMN):
                row[name.removesuffix(JSON_COLUMN)] = _json(name, cell) if cell else None
            elif name in numbers:
                row[name] = _number(cell)
            else:
                row[name] = _messages(name, cell) if name in conversations else cell or None
    except UnicodeEncodeError:
        return Rejected.of("is not UTF-8", [ascii(cell) for cell in cells])
    except _NoCell as error:
        return Rejected.of(str(error), cells)
    return row


def _json(name: str, cell: str) -> Any:
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        raise _NoCell(f"'{name}' is not JSON") from None


def _number(cell: str) -> Any:
    """The number or truth value of a cell. Any other text stays, so that its record says what is wrong."""
    known = {"": None, "true": True, "false": False}
    if cell.strip().lower() in known:
        return known[cell.strip().lower()]
    try:
        return float(cell)
    except ValueError:
        return cell


def _messages(name: str, cell: str) -> Any:
    """The messages in a cell, or its text."""
    if not cell.startswith("["):
        return cell or None
    try:
        value = json.loads(cell)
    except (ValueError, RecursionError):
        if cell.startswith("[{") and "role" in cell:
            raise _NoCell(f"'{name}' looks like messages, and is not JSON") from None
        return cell
    is_conversation = isinstance(value, list) and all(
        isinstance(one, dict) and "role" in one for one in value
    )
    return value if is_conversation and value else cell


def write_csv(path: Path) -> None:
    """Turn a file of JSON lines, in its place, into CSV that `csv_reader` reads without loss."""
    is_plain: dict[str, bool] = {}
    for row in _lines(path):
        for name, value in row.items():
            is_plain[name] = is_plain.get(name, True) and _is_plain(name, value)
    written = path.with_name(path.name + ".csv")
    try:
        with written.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(name if plain else name + JSON_COLUMN for name, plain in is_plain.items())
            for row in _lines(path):
                writer.writerow(_cell(row.get(name), plain) for name, plain in is_plain.items())
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


def _is_plain(name: str, value: Any) -> bool:
    """Whether a cell is read as this value without being marked as JSON."""
    if name in NUMBERS:
        return isinstance(value, bool | float)
    return isinstance(value, str) and value != "" and not (name in CONVERSATIONS and value.startswith("["))


def _cell(value: Any, plain: bool) -> str:
    if value is None:
        return ""
    return value if plain and isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line)
