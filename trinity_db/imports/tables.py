"""Rows out of Parquet and Arrow files, as JSON values, and back into them.

Tables know types that JSON does not. Times become ISO texts, durations seconds, decimals floats, and
columns of the type arrow.json what is written in them; bytes have no JSON form, and a row that holds some
is Rejected. Imported only where such a file is meant, because pyarrow takes a while to load.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from trinity_db.errors import ImportFileError
from trinity_db.imports.rejects import Rejected

Row = dict[str, Any]

BATCH_ROWS = 1_000  # turned into Python values at a time: long texts included, a few MB
COLUMN_TYPES: dict[type | None, Any] = {str: pa.string(), bool: pa.bool_(), float: pa.float64()}
ARROW_FILE_MAGIC = b"ARROW1"  # an IPC stream, which `datasets` writes, has none


class _NoJson(ValueError):
    """A value has no JSON form; the message is the reason."""


def read_parquet(path: Path) -> Iterator[tuple[int, int, Row | Rejected]]:
    """Rows of a Parquet file, read in batches."""
    row = 0
    try:
        with pq.ParquetFile(path) as file:
            size, total = path.stat().st_size, file.metadata.num_rows
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                for value in _rows(batch):
                    row += 1
                    yield row, size * row // total, value
    except (pa.ArrowException, OSError) as error:
        _break_off(path, row, error)


def read_arrow(path: Path) -> Iterator[tuple[int, int, Row | Rejected]]:
    """Rows of an Arrow IPC file (also: Feather) or stream, read in batches."""
    row = 0
    try:
        with pa.OSFile(str(path)) as file:
            for batch in _arrow_batches(path, file):
                for start in range(0, batch.num_rows, BATCH_ROWS):
                    for value in _rows(batch.slice(start, BATCH_ROWS)):
                        row += 1
                        yield row, file.tell(), value
    except (pa.ArrowException, OSError) as error:
        _break_off(path, row, error)


def _arrow_batches(path: Path, file: Any) -> Iterator[Any]:
    with path.open("rb") as head:
        is_file = head.read(len(ARROW_FILE_MAGIC)) == ARROW_FILE_MAGIC
    if not is_file:
        yield from pa.ipc.open_stream(file)
        return
    reader = pa.ipc.open_file(file)
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)


def _rows(batch: Any) -> Iterator[Row | Rejected]:
    """The rows of a batch; those that cannot be had as JSON values are looked at one by one."""
    converters = {field.name: converter for field in batch.schema if (converter := _converter(field.type))}
    try:
        rows = batch.to_pylist()
    except (ValueError, OverflowError):  # not UTF-8, or a time beyond the year 9999
        for number in range(batch.num_rows):
            yield _single_row(batch.slice(number, 1), converters)
        return
    for row in rows:
        yield _checked(row, converters)


def _single_row(batch: Any, converters: dict[str, Callable[[Any], Any]]) -> Row | Rejected:
    try:
        return _checked(batch.to_pylist()[0], converters)
    except UnicodeDecodeError:
        return Rejected("is not UTF-8", "")
    except (ValueError, OverflowError):
        return Rejected("holds a time beyond what Python knows", "")


def _converted(row: Row, converters: dict[str, Callable[[Any], Any]]) -> Row:
    return row | {name: convert(row[name]) for name, convert in converters.items()}


def _checked(row: Row, converters: dict[str, Callable[[Any], Any]]) -> Row | Rejected:
    try:
        return _converted(row, converters)
    except _NoJson as error:
        return Rejected.of(str(error), row)


def _converter(kind: Any) -> Callable[[Any], Any] | None:
    """How values of an Arrow type become JSON values; None where they are JSON values already."""
    scalar = _scalar_converter(kind)
    if scalar is not None:
        return lambda value: None if value is None else scalar(value)
    types = pa.types
    if types.is_dictionary(kind):
        return _converter(kind.value_type)
    if types.is_struct(kind):
        inner = {field.name: converter for field in kind if (converter := _converter(field.type))}
        if inner:
            return lambda value: value and _converted(value, inner)
    if types.is_map(kind):
        item = _converter(kind.item_type) or _same
        return lambda value: value and {str(key): item(entry) for key, entry in value}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        element = _converter(kind.value_type)
        if element:
            return lambda value: value and [element(entry) for entry in value]
    return None


def _scalar_converter(kind: Any) -> Callable[[Any], Any] | None:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json":
        return _parse
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
        return lambda value: str(value.isoformat())
    if types.is_duration(kind):
        return lambda value: float(value.total_seconds())
    if types.is_decimal(kind):
        return float
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return _refuse_bytes
    return None


def _same(value: Any) -> Any:
    return value


def _parse(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise _NoJson("holds a JSON column that is not JSON") from None


def _refuse_bytes(value: bytes) -> NoReturn:
    raise _NoJson("holds bytes, which have no JSON form")


def _break_off(path: Path, row: int, error: Exception) -> NoReturn:
    what = f"breaks off after row {row}" if row else "cannot be read"
    raise ImportFileError(f"{path}: {what}: {' '.join(str(error).split())}") from error


def write_table(path: Path, suffix: str) -> None:
    """Turn a file of JSON lines, in its place, into a Parquet (.parquet) or Arrow IPC (.arrow) file.

    A column is text, boolean or float where all its values are; any other is of the type arrow.json.
    """
    kinds: dict[str, type | None] = {}
    for row in _lines(path):
        for name, value in row.items():
            kinds[name] = type(value) if kinds.get(name, type(value)) is type(value) else None
    types = {name: COLUMN_TYPES.get(kind) for name, kind in kinds.items()}
    schema = pa.schema([(name, kind or pa.json_(pa.string())) for name, kind in types.items()])
    table = path.with_name(path.name + suffix)
    new = pq.ParquetWriter if suffix == ".parquet" else pa.ipc.new_file
    try:
        with new(str(table), schema) as writer:
            lines = _lines(path)
            while rows := list(itertools.islice(lines, BATCH_ROWS)):
                columns = [_column(rows, field, types[field.name]) for field in schema]
                writer.write_batch(pa.record_batch(columns, schema=schema))
        table.replace(path)
    finally:
        table.unlink(missing_ok=True)


def _lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line)


def _column(rows: list[Row], field: Any, kind: Any) -> Any:
    values = [row.get(field.name) for row in rows]
    if kind is not None:
        return pa.array(values, kind)
    texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    return pa.array(texts, pa.string()).cast(field.type)
