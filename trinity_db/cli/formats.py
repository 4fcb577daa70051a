"""The rows of a query as a table, JSON, CSV or Parquet, or drawn as a picture.

Each writer takes the columns and an iterator of rows, and holds no more of it than its format needs:
the table its first rows, Parquet one row group, a picture all, the others one row.
"""

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, TextIO

from trinity_db.cli import output
from trinity_db.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_ROWS = 1000  # rich lays out about as many in a second
MIN_COLUMN = 12  # characters; a table with narrower columns is unreadable, one row a block is not
PANEL_HEIGHT = 2.2  # inches
ROW_GROUP = 10_000  # rows; with texts of 10 kB about 100 MB in memory

NUMBERS = {"int2", "int4", "int8", "float4", "float8", "numeric", "oid"}


class Format(StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    SVG = "svg"
    """A picture: the first column is the x axis, and each other column a panel with a line."""


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


def write(format: Format, columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
    """Write all rows in a format; Parquet goes to the bytes below `out`."""
    WRITERS[format](columns, rows, out)


def _write_table(columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
    shown = [[output.cell(value) for value in row] for row in islice(rows, TABLE_ROWS)]
    console = output.console(out)
    if console.width < MIN_COLUMN * len(columns):
        for number, row in enumerate(shown, 1):
            console.print(f"row {number}", style="dim")
            console.print(output.facts(dict(zip((column.name for column in columns), row, strict=True))))
    else:
        table = output.table(*(column.name for column in columns))
        for header, column in zip(table.columns, columns, strict=True):
            header.justify = "right" if column.type in NUMBERS and not column.is_array else "left"
        for row in shown:
            table.add_row(*row)
        console.print(table)
    if more := sum(1 for _ in rows):
        total = TABLE_ROWS + more
        print(f"The first {TABLE_ROWS} of {total} rows; --format csv writes all.", file=sys.stderr)


def _write_json(columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
    names = [column.name for column in columns]
    before = "[\n"
    for row in rows:
        values = dict(zip(names, map(output.jsonable, row), strict=True))
        out.write(before + json.dumps(values, ensure_ascii=False))
        before = ",\n"
    out.write("[]\n" if before == "[\n" else "\n]\n")


def _write_csv(columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    writer.writerows([None if value is None else output.scalar(value) for value in row] for row in rows)


def _write_parquet(columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
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


def _write_svg(columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
    if len(columns) < 2 or any(one.type not in NUMBERS or one.is_array for one in columns):
        raise ConfigError("--format svg draws numbers: one column for the x axis, and one for each line.")
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


WRITERS: dict[Format, Callable[[Sequence[Column], Rows, TextIO], None]] = {
    Format.TABLE: _write_table,
    Format.JSON: _write_json,
    Format.CSV: _write_csv,
    Format.PARQUET: _write_parquet,
    Format.SVG: _write_svg,
}


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
        return output.scalar(value)
    return float(value) if isinstance(value, Decimal) and types.is_float64(kind) else value
