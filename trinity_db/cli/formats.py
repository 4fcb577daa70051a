"""Output formats for the rows of a query: a table for people, and the formats of `inspection`."""

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import islice
from typing import TextIO

from trinity_db.cli import output
from trinity_db.insight.columns import Column
from trinity_db.insight.formats import NUMBERS, Rows, write_csv, write_json, write_parquet, write_svg
from trinity_db.insight.words import cell

TABLE_ROWS = 1000  # rich lays out about this many per second
MIN_COLUMN = 12  # characters; with narrower columns each row is printed as a block instead


class Format(StrEnum):
    """Output format of rows."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    SVG = "svg"
    """Picture in which the first column is the x axis, and each other column a panel with a line."""


def write(format: Format, columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
    """Write all rows in a format; Parquet is written to the binary buffer of `out`."""
    WRITERS[format](columns, rows, out)


def _write_table(columns: Sequence[Column], rows: Rows, out: TextIO) -> None:
    shown = [[cell(value) for value in row] for row in islice(rows, TABLE_ROWS)]
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
        print(f"The first {TABLE_ROWS} of {total} rows; use --format csv for all.", file=sys.stderr)


WRITERS: dict[Format, Callable[[Sequence[Column], Rows, TextIO], None]] = {
    Format.TABLE: _write_table,
    Format.JSON: write_json,
    Format.CSV: write_csv,
    Format.PARQUET: write_parquet,
    Format.SVG: write_svg,
}
