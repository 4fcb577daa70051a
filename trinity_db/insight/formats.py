"""Rows of a query as JSON, CSV, Parquet, or a picture.

Each writer takes the columns and an iterator of rows, and buffers no more than its format needs: Parquet one
row group, a picture all rows, the others one row.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TextIO

from trinity_db.errors import ConfigError, MissingExtra
from trinity_db.insight.columns import Column
from trinity_db.insight.words import jsonable, scalar

PANEL_HEIGHT = 2.2  # inches
ROW_GROUP = 10_000  # rows; with texts of 10 kB about 100 MB in memory

NUMBERS = {"int2", "int4", "int8", "float4", "float8", "numeric", "oid"}


Rows = Iterator[Sequence[Any]]


def write_json(columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
    """Write one array of objects."""
    names = [column.name for column in columns]
    before = "[\n"
    for row in rows:
        values = dict(zip(names, map(jsonable, row), strict=True))
        out.write(before + json.dumps(values, ensure_ascii=False))
        before = ",\n"
    out.write("[]\n" if before == "[\n" else "\n]\n")


def write_csv(columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
    """Write a header line, then one line per row; NULL is empty."""
    out.writelines(csv_lines(columns, rows))


def csv_lines(columns: Sequence[Column], rows: Rows) -> Iterator[str]:
    """Yield the lines of a CSV file as rows arrive."""
    writer = csv.writer(_Line(), lineterminator=_Line.END)
    yield writer.writerow([column.name for column in columns])
    for row in rows:
        yield writer.writerow([None if value is None else scalar(value) for value in row])


class _Line:
    """File-like object that returns each line from csv.writer.writerow."""

    END = "\r\n"
    """csv.writer only quotes these characters in cells; a lone \\r ends a line for its readers too."""

    def write(self, line: str) -> str:
        return line.removesuffix(self.END) + "\n"


def write_parquet(columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
    """Write Parquet to the binary buffer of `out`."""
    import pyarrow.parquet as pq

    from trinity_db.insight import arrow

    schema = arrow.schema_of(columns)
    with pq.ParquetWriter(out.buffer, schema) as writer:
        while group := list(islice(rows, ROW_GROUP)):
            writer.write_batch(arrow.record_batch(schema, group), row_group_size=ROW_GROUP)


def write_svg(columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
    """Draw a picture: the first column is the x axis, each other column a panel with a line.

    Raises:
        ConfigError: if a column is not numeric.
        MissingExtra: if matplotlib is not installed.
    """
    if len(columns) < 2 or any(column.type not in NUMBERS or column.is_array for column in columns):
        raise ConfigError("A picture needs numeric columns: one for the x axis, and one for each line.")
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
    with matplotlib.rc_context({"svg.hashsalt": "trinity-db"}):  # equal rows give equal files
        figure.savefig(out, format="svg", metadata={"Date": None})
