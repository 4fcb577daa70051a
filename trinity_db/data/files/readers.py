"""Readers of files: JSON lines, JSON, CSV, Parquet, Arrow, and data sets saved by Hugging Face's `datasets`.

A reader yields a file's rows as JSON values, in order, with few in memory at a time (except for .json, which
is one value). It is independent of the columns' meaning. An unreadable row is Rejected and reading continues;
if the rest of a file is unreadable, ImportFileError is raised after the rows before it.
"""

import difflib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from trinity_db.data.files.cells import csv_reader
from trinity_db.data.files.files import Reader, break_off, decompressed, one_line
from trinity_db.data.formats.trinity_store import is_store, store_reader
from trinity_db.data.records.records import MAX_RECORD_BYTES
from trinity_db.data.records.strict_json import DECODER
from trinity_db.data.rejects import MAX_ROW_CHARACTERS, Rejected
from trinity_db.errors import ConfigError, ImportFileError

Row = dict[str, Any]
KNOWN_TYPES = (
    ".jsonl, .json, .csv (these also .gz), .parquet, .arrow, .feather, .db or .sqlite of Trinity-RFT, "
    "or a folder written by save_to_disk"
)


STORES = (".db", ".sqlite", ".sqlite3")
_GAP = re.compile(r"[\s,\]]*")
"""What is between the items of a JSON list, and behind the last one."""


@dataclass
class RowSource:
    """The rows of one import, with reading progress."""

    path: Path
    files: list[Path]
    reader: Reader
    total_bytes: int = field(init=False)
    position: int = field(init=False, default=0)
    """Bytes read so far, for a progress bar; compressed bytes for compressed files."""

    def __post_init__(self) -> None:
        self.total_bytes = sum(file.stat().st_size for file in self.files)

    def __iter__(self) -> Iterator[tuple[int, Row | Rejected]]:
        """Yield (line, row). Lines are counted from 1, continuously through the files of a data set.

        Raises:
            ImportFileError: if the file is truncated, has another type than its name, or has no rows.
        """
        lines_before = bytes_before = lines = 0
        for file in self.files:
            for line, position, row in self.reader(file):
                lines = lines_before + line
                self.position = bytes_before + position
                yield lines, row
            lines_before = lines
            bytes_before += file.stat().st_size
        self.position = self.total_bytes
        if not lines:
            raise ImportFileError(f"{self.path}: holds no rows.")


def open_rows(
    path: Path,
    split: str | None = None,
    max_bytes: int = MAX_RECORD_BYTES,
    of_csv: Reader | None = None,
) -> RowSource:
    """Choose the reader by the file's name, without reading yet.

    Args:
        path: a file of a known type, or a folder that `save_to_disk` wrote.
        split: the split of a folder, or table of a store, to read; None: all.
        max_bytes: longest line of JSON lines.
        of_csv: reader of CSV files from `cells.csv_reader`; None: with the default column names.

    Raises:
        ImportFileError: if the file is missing, empty, or of an unknown type.
        ConfigError: if the split does not exist.
    """
    if not path.exists():
        is_name = len(path.parts) <= 2 and not path.is_absolute() and not path.suffix
        name = path if len(path.parts) == 2 else f"OWNER/{path}"
        hint = f" If it is a data set of the Hub: trinity-db download {name}" if is_name else ""
        raise ImportFileError(f"{path}: no such file.{hint}")
    if path.is_dir():
        return _open_saved(path, split)
    if path.suffix.lower() in STORES and is_store(path):
        return RowSource(path, [path], store_reader(split))
    if split is not None:
        raise ConfigError(f"--split {split}: {path} is one file and has no splits.")
    reader = _reader_for(path, max_bytes, of_csv or csv_reader())
    if path.stat().st_size == 0:
        raise ImportFileError(f"{path}: is empty.")
    return RowSource(path, [path], reader)


def _reader_for(path: Path, max_bytes: int, of_csv: Reader) -> Reader:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    kind = suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) == 2 else "".join(suffixes[-1:])
    if kind == ".jsonl":
        return partial(read_lines, max_bytes=max_bytes)
    if kind == ".json":
        return read_json
    if kind == ".csv":
        return of_csv
    if suffixes[-1:] in ([".parquet"], [".arrow"], [".feather"]):
        from trinity_db.data.files import tables  # here, because pyarrow takes half a second to load

        return tables.read_parquet if suffixes[-1] == ".parquet" else tables.read_arrow
    raise ImportFileError(f"{path}: unknown type of file; known are {KNOWN_TYPES}.")


def _open_saved(path: Path, split: str | None) -> RowSource:
    """Open the Arrow streams of a folder written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`."""
    from trinity_db.data.files import tables

    folders = {split: path}
    if (path / "dataset_dict.json").exists():
        names = _read_index(path / "dataset_dict.json", "splits")
        if split is not None and split not in names:
            nearest = difflib.get_close_matches(split, names, n=1, cutoff=0.5)
            hint = f"did you mean '{nearest[0]}'?" if nearest else f"there are: {', '.join(names)}."
            raise ConfigError(f"--split {split}: {path} has no such split; {hint}")
        folders = {name: path / name for name in names if split in (None, name)}
    elif split is not None:
        raise ConfigError(f"--split {split}: {path} is one data set and has no splits.")
    elif not (path / "state.json").exists():
        raise ImportFileError(
            f"{path}: is a folder that save_to_disk did not write; known are {KNOWN_TYPES}."
        )
    files = [
        folder / entry["filename"]
        for folder in folders.values()
        for entry in _read_index(folder / "state.json", "_data_files")
    ]
    for file in files:
        if not file.exists():
            raise ImportFileError(f"{path}: is not whole, {file.name} is missing.")
    return RowSource(path, files, tables.read_arrow)


def _read_index(path: Path, key: str) -> list[Any]:
    try:
        entries: list[Any] = json.loads(path.read_text(encoding="utf-8"))[key]
    except FileNotFoundError:
        raise ImportFileError(f"{path.parent}: is not whole, {path.name} is missing.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImportFileError(f"{path}: cannot be read: {error!r}") from error
    return entries


def read_lines(path: Path, max_bytes: int = MAX_RECORD_BYTES) -> Iterator[tuple[int, int, Row | Rejected]]:
    """Read JSON lines, skipping blank ones, with one line in memory, up to `max_bytes`."""
    line = 0
    try:
        with path.open("rb") as raw, decompressed(path, raw) as stream:
            while content := stream.readline(max_bytes + 1):
                line += 1
                row = _parse_line(content.removeprefix(b"\xef\xbb\xbf") if line == 1 else content, max_bytes)
                if len(content) > max_bytes:
                    _skip_line(stream, content)
                if row is not None:
                    yield line, raw.tell(), row
    except (OSError, EOFError, zlib.error) as error:
        break_off(path, f"line {line}" if line else None, error)


def read_json(path: Path) -> Iterator[tuple[int, int, Row | Rejected]]:
    """Read one JSON value: a list of objects, or an object with columns as lists of equal length."""
    try:
        with path.open("rb") as raw, decompressed(path, raw) as stream:
            value = _parse_file(stream.read().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ImportFileError(f"{path}: is not UTF-8, from byte {error.start} on.") from None
    except json.JSONDecodeError as error:
        lines = "; if each line is an object, name it .jsonl" if error.msg == "Extra data" else ""
        raise ImportFileError(f"{path}: is not JSON: {error}{lines}.") from None
    except (ValueError, RecursionError) as error:
        raise ImportFileError(f"{path}: is not JSON: {one_line(error)}.") from None
    except (OSError, EOFError, zlib.error) as error:
        break_off(path, None, error)
    rows = _rows_of_columns(path, value) if isinstance(value, dict) else value
    if not isinstance(rows, list):
        raise ImportFileError(f"{path}: must be a list of objects, or an object of columns.")
    size = path.stat().st_size
    for number, row in enumerate(rows, 1):
        ok = row if isinstance(row, dict | Rejected) else Rejected.of("is not a JSON object", row)
        yield number, size * number // len(rows), ok


def _parse_file(text: str) -> Any:
    """Parse a JSON value. If it is a list, an item that is JSON but not strict, such as one with a name twice
    in an object, is Rejected alone."""
    try:
        return DECODER.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        if not isinstance(json.loads(text), list):
            raise
    values: list[Any] = []
    start = text.index("[") + 1
    while (start := _GAP.match(text, start).end()) < len(text):  # type: ignore[union-attr]
        try:
            value, stop = DECODER.raw_decode(text, start)
        except ValueError as error:
            _, stop = json.JSONDecoder().raw_decode(text, start)
            value = Rejected.of(f"is not JSON: {one_line(error)}", text[start:stop])
        values.append(value)
        start = stop
    return values


def _rows_of_columns(path: Path, columns: dict[str, Any]) -> list[Row]:
    if not all(isinstance(column, list) for column in columns.values()):
        raise ImportFileError(f"{path}: must be a list of objects, or an object of columns.")
    if len({len(column) for column in columns.values()}) > 1:
        raise ImportFileError(f"{path}: its columns differ in length.")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _parse_line(content: bytes, max_bytes: int) -> Row | Rejected | None:
    """Parse the object in a line; None for a blank line."""
    if len(content) > max_bytes:
        reason = f"is longer than {max_bytes // 2**20} MiB"
    elif content.isspace():
        return None
    else:
        try:
            value = DECODER.decode(content.decode("utf-8"))
        except UnicodeDecodeError:
            reason = "is not UTF-8"
        except json.JSONDecodeError as error:
            reason = f"is not JSON: {error.msg}"
        except (ValueError, RecursionError) as error:
            reason = f"is not JSON: {one_line(error)}"
        else:
            if isinstance(value, dict):
                return value
            reason = "is not a JSON object"
    return Rejected.of(reason, content[: MAX_ROW_CHARACTERS * 4].decode("utf-8", errors="replace"))


def _skip_line(stream: BinaryIO, content: bytes) -> None:
    """Skip the rest of a line that begins with `content`."""
    while content and not content.endswith(b"\n"):
        content = stream.readline(2**20)
