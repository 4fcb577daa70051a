"""Reading and writing of CSV files.

CSV has no types, so a cell is text, and an empty cell is null. There are two exceptions: columns that mean a
number, and columns whose name ends in `:json`. Exports write the latter for values other than text, so that
they round-trip. The first line has the names; the delimiter is a comma.
"""

import csv
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from trinity_db.data.files.files import Reader, break_off, decompressed
from trinity_db.data.records.records import MAX_RECORD_BYTES, Kind
from trinity_db.data.records.strict_json import DECODER
from trinity_db.data.rejects import Rejected
from trinity_db.errors import ImportFileError

Row = dict[str, Any]

JSON_COLUMN = ":json"
NUMBERS = ("reward", "label", "kto_tag", "margin")
WITHOUT_NUMBERS: tuple[Kind, ...] = ("tasks", "demonstrations")
"""Kinds for which columns of these names have no meaning and stay text."""
CUT_OFF = "unexpected end of data"  # csv's error for a file that ends within a quoted cell


class _NoCell(ValueError):
    """A cell cannot be read; the message is the reason."""


def csv_reader(mapping: Mapping[str, str] | None = None, kind: Kind | None = None) -> Reader:
    """Make a reader of CSV files.

    Args:
        mapping: our name → their column, from `--map`; determines the columns with numbers.
        kind: the kind of record; None: any.
    """
    file_names = mapping or {}
    number_names = () if kind in WITHOUT_NUMBERS else NUMBERS
    return partial(_read_csv, numbers=frozenset(file_names.get(name, name) for name in number_names))


def _read_csv(path: Path, numbers: frozenset[str]) -> Iterator[tuple[int, int, Row | Rejected]]:
    line = 0
    csv.field_size_limit(MAX_RECORD_BYTES)
    try:
        with path.open("rb") as raw, decompressed(path, raw) as stream:
            # Invalid UTF-8 becomes lone surrogates, so that only its row is rejected.
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
                    yield line, raw.tell(), _row(names, cells, numbers)
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        break_off(path, f"line {line}" if line else None, error)


def _names(path: Path, names: list[str]) -> list[str]:
    if any("\udc80" <= letter <= "\udcff" for name in names for letter in name):
        raise ImportFileError(f"{path}: the names in its first line are not UTF-8.")
    if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        raise ImportFileError(f"{path}: its delimiter is not a comma; write it again with commas.")
    if len(set(names)) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise ImportFileError(f"{path}: two columns have the name '{twice}'.")
    return names


def _row(names: list[str], cells: list[str], numbers: frozenset[str]) -> Row | Rejected:
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
                row[name] = cell or None
    except UnicodeEncodeError:
        return Rejected.of("is not UTF-8", [ascii(cell) for cell in cells])
    except _NoCell as error:
        return Rejected.of(str(error), cells)
    return row


def _json(name: str, cell: str) -> Any:
    try:
        return DECODER.decode(cell)
    except (ValueError, RecursionError):
        raise _NoCell(f"'{name}' is not JSON") from None


def _number(cell: str) -> Any:
    """Parse a number or truth value. Other text is kept, so that the record reports the mistake."""
    known = {"": None, "true": True, "false": False}
    if cell.strip().lower() in known:
        return known[cell.strip().lower()]
    try:
        return float(cell)
    except ValueError:
        return cell


def write_csv(path: Path) -> None:
    """Convert a file of JSON lines in place into CSV that `csv_reader` reads without loss."""
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
    """Whether a cell round-trips to this value without a JSON mark."""
    if name in NUMBERS:
        return isinstance(value, bool | float)
    return isinstance(value, str) and value != ""


def _cell(value: Any, plain: bool) -> str:
    if value is None:
        return ""
    return value if plain and isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line)
