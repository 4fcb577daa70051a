"""The rows of a query as JSON, CSV or Parquet, or drawn as a picture.

Each writer takes the columns and an iterator of rows, and holds no more of it than its format needs: Parquet
one row group, a picture all, the others one row.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, TextIO

from trinity_db.errors import ConfigError, MissingExtra
from trinity_db.inspection.words import jsonable, scalar

if TYPE_CHECKING:
    import pyarrow as pa

PANEL_HEIGHT = 2.2  # inches
ROW_GROUP = 10_000  # rows; with texts of 10 kB about 100 MB in memory

NUMBERS = {"int2", "int4", "int8", "float4", "float8", "numeric", "oid"}


@dataclass(frozen=True)
class Column:
    """One column of a result: its name, unique in the result, and its Postgres type."""

    name: str
    type: str
    is_array: bool = False
    precision: int | None = None
    """Digits of a numeric that declares them; `scale` of them after the point."""
    scale: int = 0


Rows = Iterator[Sequence[Any]]


def write_json(columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
    """One array of objects."""
    names = [column.name for column in columns]
    before = "[\n"
    for row in rows:
        values = dict(zip(names, map(jsonable, row), strict=True))
        out.write(before + json.dumps(values, ensure_ascii=False))
        before = ",\n"
    out.write("[]\n" if before == "[\n" else "\n]\n")


def write_csv(columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
    """A line of names, then one for each row; NULL is nothing."""
    out.writelines(csv_lines(columns, rows))


def csv_lines(columns: Sequence[Column], rows: Rows) -> Iterator[str]:
    """The same, line by line as rows come."""
    writer = csv.writer(_Line(), lineterminator=_Line.END)
    yield writer.writerow([column.name for column in columns])
    for row in rows:
        yield writer.writerow([None if value is None else scalar(value) for value in row])


class _Line:
    """Gives a line back to csv.writer, which gives it to the one that asked for it."""

    END = "\r\n"
    """csv.writer quotes the characters of this alone, and a lone \\r ends a line for its readers too."""

    def write(self, line: str) -> str:
        return line.removesuffix(self.END) + "\n"


def write_parquet(columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
    """To the bytes below `out`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([pa.field(column.name, _arrow_type(column)) for column in columns])
    with pq.ParquetWriter(out.buffer, schema) as writer:
        while group := list(islice(rows, ROW_GROUP)):
            arrays = [
                pa.array([_arrow_value(value, field.type) for value in values], field.type)
                for values, field in zip(zip(*group, strict=True), schema, strict=True)
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema), row_group_size=ROW_GROUP)


def write_svg(columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
    """A picture: the first column is the x axis, and each other column a panel with a line.

    Raises:
        ConfigError: a column holds no numbers.
        MissingExtra: matplotlib is not installed.
    """
    if len(columns) < 2 or any(one.type not in NUMBERS or one.is_array for one in columns):
        raise ConfigError("A picture is drawn of numbers: one column for the x axis, and one for each line.")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("train", "matplotlib") from error
    places, *lines = list(zip(*rows, strict=True)) or [()] * len(columns)
    figure = Figure(figsize=(8, PANEL_HEIGHT * len(lines)), layout="constrained")
    panels = figure.subplots(len(lines), 1, sharex=True, squeeze=False)[:, 0]
    for panel, column, values in zip(panels, columns[1:], lines, strict=True):
        panel.plot(places, [None if value is None else float(value) for value in values])
        panel.set(ylabel=column.name.replace("_", " "), ylim=(min(0, panel.get_ylim()[0]), None))
        panel.grid(alpha=0.3)
    panels[-1].set_xlabel(columns[0].name.replace("_", " "))
    with matplotlib.rc_context({"svg.hashsalt": "trinity-db"}):  # the same rows give the same file
        figure.savefig(out, format="svg", metadata={"Date": None})


def _arrow_type(column: Column) -> "pa.DataType":
    """Arrow's type for a column. JSON, enums and whatever else Arrow lacks are text."""
    import pyarrow as pa

    types = {
        "bool": pa.bool_(),
        "int2": pa.int16(),
        "int4": pa.int32(),
        "int8": pa.int64(),
        "float4": pa.float32(),
        "float8": pa.float64(),
        "bytea": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us"),
        "timestamptz": pa.timestamp("us", "UTC"),
        # Sums and averages declare no digits, and have too many for a decimal.
        "numeric": pa.float64(),
    }
    kind = types.get(column.type, pa.string())
    if column.type == "numeric" and column.precision is not None and column.precision <= 38:
        kind = pa.decimal128(column.precision, column.scale)
    return pa.list_(kind) if column.is_array else kind


def _arrow_value(value: Any, kind: "pa.DataType") -> Any:
    import pyarrow.types as types

    if value is None:
        return None
    if types.is_list(kind):
        return [_arrow_value(item, kind.value_type) for item in value]
    if types.is_string(kind):
        return scalar(value)
    return float(value) if isinstance(value, Decimal) and types.is_float64(kind) else value
