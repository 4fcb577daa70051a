"""Column mappings: `--map prompt=question` maps a file's column to one of our fields.

A dotted path leads into nested objects: `response=a.solution`. A path that begins with a star, `*.solution`,
matches every column with an object that has that field: each is a separate attempt at the row's task, with
the column's name as its `model`. Independent of the meaning of the fields.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from trinity_db.data.records.records import Unfit
from trinity_db.errors import ConfigError

Row = dict[str, Any]
ColumnPath = tuple[str, ...]

STAR = "*"


def parse_options(options: Iterable[str]) -> dict[str, str]:
    """Parse the command line's `--map name=column` options: our name → their column."""
    columns: dict[str, str] = {}
    for option in options:
        name, separator, column = option.partition("=")
        if not separator or not name or not column:
            raise ConfigError(
                f"--map {option}: write it as our_name=their_column, for example prompt=question."
            )
        if name in columns:
            raise ConfigError(f"--map {option}: '{name}' is mapped twice.")
        columns[name] = column
    return columns


class ColumnMap:
    """A validated mapping, which extracts fields from rows.

    Args:
        columns: our name → their column, a path or a path with a star.
        names: the existing fields.
        kind: name of the records' kind, for messages; a star needs trajectories.

    Raises:
        ConfigError: if a name is not in `names`, or the mapping contradicts itself.
    """

    def __init__(self, columns: Mapping[str, str], names: Iterable[str], kind: str) -> None:
        self.columns = dict(columns)
        self._plain: dict[str, ColumnPath] = {}
        self._starred: dict[str, ColumnPath] = {}  # the path after the star
        for name, column in self.columns.items():
            path = tuple(column.split("."))
            _check(name, column, path, list(names), kind)
            if path[0] == STAR:
                self._starred[name] = path[1:]
            else:
                self._plain[name] = path
        if len(set(self.columns.values())) < len(self.columns):
            raise ConfigError("--map: a column can have one meaning only.")

    def apply(self, row: Row) -> list[tuple[Row, Row]]:
        """Return the mapped fields and the unmapped columns: once, or once per match of a star.

        Raises:
            Unfit: if no column matches the star.
        """
        rest = dict(row)
        mapped = _take_all(rest, self._plain)
        if not self._starred:
            return [(mapped, rest)]
        matches = {
            column: dict(value)
            for column, value in rest.items()
            if any(_holds(value, path) for path in self._starred.values())
        }
        if not matches:
            raise Unfit(f"no column matches '{self.columns[next(iter(self._starred))]}'")
        others = {column: value for column, value in rest.items() if column not in matches}
        pairs = []
        for column, value in matches.items():
            fields = {"model": column} | mapped | _take_all(value, self._starred)
            pairs.append((fields, others | {column: value} if value else dict(others)))
        return pairs


def _check(name: str, column: str, path: ColumnPath, names: list[str], kind: str) -> None:
    option = f"--map {name}={column}"
    if name not in names:
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"known names: {', '.join(names)}."
        raise ConfigError(f"{option}: '{name}' is not a field of {kind}; {hint}")
    if STAR not in path:
        return
    if kind != "trajectories":
        raise ConfigError(f"{option}: a '*' needs --as trajectories.")
    if path.index(STAR) != 0 or path.count(STAR) > 1 or len(path) == 1:
        raise ConfigError(f"{option}: a '*' comes first and has a field after it, for example *.solution.")


def _holds(row: Any, path: ColumnPath) -> bool:
    if not isinstance(row, dict):
        return False
    return ".".join(path) in row or (len(path) > 1 and _holds(row.get(path[0]), path[1:]))


def _take_all(row: Row, paths: Mapping[str, ColumnPath]) -> Row:
    return {name: _take(row, path) for name, path in paths.items() if _holds(row, path)}


def _take(row: Row, path: ColumnPath) -> Any:
    """Remove and return the value at a path; nested objects are copied, not changed.

    A column with dots in its name takes precedence.
    """
    column = ".".join(path)
    if column in row:
        return row.pop(column)
    inner = dict(row.pop(path[0]))
    value = _take(inner, path[1:])
    if inner:
        row[path[0]] = inner
    return value
