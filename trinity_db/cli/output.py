"""Results on stdout: JSON for scripts, tables for people, files that are whole.

Models and strangers wrote the text in the store, so control characters are shown and never sent to the
terminal. rich is imported inside functions, so that `--help` does not wait for it.
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
from trinity_db.inspection.words import cell, jsonable, printable, scalar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

GAP = 2  # characters between the columns of a table
UNLIMITED_WIDTH = 1_000_000  # columns; nothing is wrapped or cut where no terminal sets a width


def console(out: TextIO) -> "Console":
    """Where tables are printed: as wide as the terminal or COLUMNS; without either, as they need to be."""
    from rich.console import Console

    width = None if out.isatty() or os.environ.get("COLUMNS") else UNLIMITED_WIDTH
    return Console(file=out, width=width, highlight=False, markup=False, emoji=False)


def table(*columns: str) -> "Table":
    """An empty table in the one style that all commands have."""
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
    """A table of at most `width` characters.

    It leaves out columns in which no row says anything, then as many of the expendable ones as it must, the
    first of them first; a line below names those. What is too wide still is broken into lines.
    """
    shown = [name for place, name in enumerate(columns) if any(row[place] for row in rows)]
    widths = {
        name: max(len(name), *(len(row[place]) for row in rows))
        for place, name in enumerate(columns)
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
        made.caption = f"Left out, as the lines are full: {', '.join(left_out)}. --json has all."
        made.caption_justify = "left"
    return made


def shorten(text: str, width: int) -> str:
    """A name in at most `width` characters: its beginning and its end, because names differ there."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def facts(values: Mapping[str, Any]) -> "Table":
    """Names and values, one a line; values that are None are left out."""
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
    """A value of a configuration; sections that are chosen by name as `name (option: value)`."""
    if isinstance(value, list):
        return " + ".join(map(spelled, value))
    if isinstance(value, Mapping):
        given = ", ".join(f"{key}: {scalar(one)}" for key, one in value.items() if key != "name")
        return f"{value['name']} ({given})" if given else str(value["name"])
    return scalar(value)


def clock(at: datetime, now: datetime) -> str:
    """A time in few characters: to the second on the day of `now`, otherwise to the minute, with its date."""
    at = at.astimezone(now.tzinfo)
    return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"


def print_json(value: Any) -> None:
    """Print one value in one line, for a script to read."""
    print(json.dumps(jsonable(value), ensure_ascii=False))


@contextmanager
def opened(path: Path | None) -> Iterator[TextIO]:
    """Stdout, or a file that appears under its name once it is whole.

    Raises:
        TrinityError: the file cannot be written.
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
