"""Reading and writing of Parquet and Arrow files, with rows as JSON values.

Tables have types that JSON lacks. Times become ISO texts, durations seconds, decimals floats, and columns of
type arrow.json are parsed; bytes have no JSON form, so rows with bytes are Rejected. Imported only when
needed, because pyarrow is slow to load.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from trinity_db.data.rejects import Rejected
from trinity_db.errors import ImportFileError

Row = dict[str, Any]

BATCH_ROWS = 1_000  # converted to Python values at a time: a few MB even with long texts
COLUMN_TYPES: dict[type | None, Any] = {str: pa.string(), bool: pa.bool_(), float: pa.float64()}
CHAT_FIELDS = ({"role", "content"}, {"from", "value"}, {"type", "function"}, {"name", "parameters"})
"""Fields by which a struct is recognised as a message or a tool."""
ARROW_FILE_MAGIC = b"ARROW1"  # missing in IPC streams, which `datasets` writes


class _NoJson(ValueError):
    """A value has no JSON form; the message is the reason."""


def read_parquet(path: Path) -> Iterator[tuple[int, int, Row | Rejected]]:
    """Read the rows of a Parquet file, in batches."""
    row = 0
    try:
        with pq.ParquetFile(path) as file:
            size, total = path.stat().st_size, file.metadata.num_rows
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                for value in json_rows(batch):
                    row += 1
                    yield row, size * row // total, value
    except (pa.ArrowException, OSError) as error:
        _break_off(path, row, error)


def read_arrow(path: Path) -> Iterator[tuple[int, int, Row | Rejected]]:
    """Read the rows of an Arrow IPC file (including Feather) or stream, in batches."""
    row = 0
    try:
        with pa.OSFile(str(path)) as file:
            for batch in _arrow_batches(path, file):
                for start in range(0, batch.num_rows, BATCH_ROWS):
                    for value in json_rows(batch.slice(start, BATCH_ROWS)):
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


def json_rows(batch: Any) -> Iterator[Row | Rejected]:
    """Yield the rows of a batch; if conversion to JSON values fails, row by row."""
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
        return Rejected("holds a time outside Python's range", "")


def _converted(row: Row, converters: dict[str, Callable[[Any], Any]]) -> Row:
    return row | {name: convert(row[name]) for name, convert in converters.items()}


def _checked(row: Row, converters: dict[str, Callable[[Any], Any]]) -> Row | Rejected:
    try:
        return _converted(row, converters)
    except _NoJson as error:
        return Rejected.of(str(error), row)


def _converter(kind: Any, in_chat: bool = False) -> Callable[[Any], Any] | None:
    """Return the converter from an Arrow type to JSON values; None if none is needed.

    Args:
        in_chat: whether the value is a part of a message or a tool. Its structs have the keys of all messages
            or tools of the file, with nulls for those that this message lacks.
    """
    scalar = _scalar_converter(kind)
    if scalar is not None:
        return lambda value: None if value is None else scalar(value)
    types = pa.types
    if types.is_dictionary(kind):
        return _converter(kind.value_type, in_chat)
    if types.is_struct(kind):
        in_chat = in_chat or any(names <= {field.name for field in kind} for names in CHAT_FIELDS)
        inner = {field.name: converter for field in kind if (converter := _converter(field.type, in_chat))}
        if in_chat:
            return lambda value: value and _without_nulls(_converted(value, inner))
        if inner:
            return lambda value: value and _converted(value, inner)
    if types.is_map(kind):
        item = _converter(kind.item_type, in_chat) or _same
        return lambda value: value and {str(key): item(entry) for key, entry in value}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        element = _converter(kind.value_type, in_chat)
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


def _without_nulls(struct: Row) -> Row:
    return {name: value for name, value in struct.items() if value is not None}


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
    problem = f"breaks off after row {row}" if row else "cannot be read"
    raise ImportFileError(f"{path}: {problem}: {' '.join(str(error).split())}") from error


def write_table(path: Path, suffix: str) -> None:
    """Convert a file of JSON lines in place into a Parquet (.parquet) or Arrow IPC (.arrow) file.

    A column is text, boolean or float if all its values are; otherwise its type is arrow.json.
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
