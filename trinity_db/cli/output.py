"""Output on stdout: JSON for scripts, tables for people; files are written atomically.

Text in the store comes from models and strangers, so control characters are escaped and never sent to the
terminal. rich is imported inside functions, so that `--help` stays fast.
"""

import json
import os
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from trinity_db.errors import TrinityError
from trinity_db.insight.words import cell, jsonable, printable, scalar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

GAP = 2  # characters between the columns of a table
UNLIMITED_WIDTH = 1_000_000  # columns; without a terminal nothing is wrapped or cut


def console(out: TextIO) -> "Console":
    """Console for tables: as wide as the terminal or COLUMNS; without either, as wide as needed."""
    from rich.console import Console

    width = None if out.isatty() or os.environ.get("COLUMNS") else UNLIMITED_WIDTH
    return Console(file=out, width=width, highlight=False, markup=False, emoji=False)


def table(*columns: str) -> "Table":
    """Create an empty table in the style of all commands."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, show_edge=False, header_style="bold"
    )
    for column in columns:
        table.add_column(printable(column), overflow="fold")
    return table


def fitted(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    expendable: Sequence[str] = (),
    numbers: Container[str] = (),
) -> "Table":
    """Create a table of at most `width` characters.

    Leaves out empty columns, then as many expendable ones as necessary, in order; a line below names those.
    If it is still too wide, cells are wrapped.
    """
    shown = [name for index, name in enumerate(columns) if any(row[index] for row in rows)]
    widths = {
        name: max(len(name), *(len(row[index]) for row in rows))
        for index, name in enumerate(columns)
        if name in shown
    }
    left_out = []
    for name in expendable:
        if sum(widths.values()) + GAP * (len(widths) - 1) > width and widths.pop(name, 0):
            left_out.append(name)
    made = table(*widths)
    for column in made.columns:
        column.justify = "right" if column.header in numbers else "left"
    for row in rows:
        made.add_row(*(value for name, value in zip(columns, row, strict=True) if name in widths))
    if left_out:
        made.caption = f"Left out for lack of width: {', '.join(left_out)}. --json prints all."
        made.caption_justify = "left"
    return made


def shorten(text: str, width: int) -> str:
    """Shorten a name to `width` characters, keeping its beginning and its end, in which names differ."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def facts(values: Mapping[str, Any]) -> "Table":
    """Create a table of names and values, one per line; values that are None are left out."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in values.items():
        if value is not None:
            grid.add_row(Text(printable(name)), value if isinstance(value, Text) else Text(cell(value)))
    return grid


def spelled(value: Any) -> str:
    """Format a configuration value; a section selected by name becomes `name (option: value)`."""
    if isinstance(value, list):
        return " + ".join(map(spelled, value))
    if isinstance(value, Mapping):
        options = ", ".join(f"{key}: {scalar(option)}" for key, option in value.items() if key != "name")
        return f"{value['name']} ({options})" if options else str(value["name"])
    return scalar(value)


def clock(at: datetime, now: datetime) -> str:
    """Format a time: with seconds on the day of `now`, otherwise with its date and without seconds."""
    at = at.astimezone(now.tzinfo)
    return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"


def print_json(value: Any) -> None:
    """Print a value as JSON on one line, for scripts."""
    print(json.dumps(jsonable(value), ensure_ascii=False))


@contextmanager
def opened(path: Path | None) -> Iterator[TextIO]:
    """Open stdout, or a file that appears under its name only when it is complete.

    Raises:
        TrinityError: if the file cannot be written.
    """
    if path is None:
        yield sys.stdout
        return
    is_device = path.exists() and not path.is_file()
    part = path if is_device else path.with_name(f"{path.name}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as out:
            yield out
        part.replace(path)
    except OSError as error:
        raise TrinityError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        if not is_device:
            with suppress(OSError):
                part.unlink()
