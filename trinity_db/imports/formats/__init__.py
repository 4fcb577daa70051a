"""Formats in which other programs keep data: what a row of theirs is in our columns.

A format is one function, from a row to rows that `columns` reads. `trl` is the format of those columns
themselves. The others are one file each, recognised by the first row where that is beyond doubt.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trinity_db import functions
from trinity_db.errors import ConfigError
from trinity_db.imports.formats import atropos, trinity_rft, verl
from trinity_db.imports.records import Kind, Unfit
from trinity_db.imports.rejects import Rejected

Row = dict[str, Any]

TRL = "trl"


@dataclass(frozen=True)
class Format:
    """One format of rows."""

    kinds: tuple[Kind, ...]
    """What its rows can be imported as."""
    recognises: Callable[[Row], bool]
    """Whether a row is one of this format and of no other."""
    read: Callable[[Row, Kind], Iterable[Row]]
    """Rows with our columns, of that kind. Raises Unfit."""


FORMATS: dict[str, Format] = {
    "verl": Format(verl.KINDS, verl.recognises, verl.read),
    "trinity-rft": Format(trinity_rft.KINDS, trinity_rft.recognises, trinity_rft.read),
    "atropos": Format(atropos.KINDS, atropos.recognises, atropos.read),
}


class FormatReader:
    """Rows of a file in our columns.

    Args:
        name: a format, or the user's own as `path/to/file.py:name`, which takes a row and gives rows. None:
            the first row decides, unless a mapping says what the columns are.
        mapping: our name → their column.

    Raises:
        ConfigError: there is no such format, or it has no rows of this kind.
    """

    def __init__(self, name: str | None, kind: Kind, mapping: Mapping[str, str] | None = None) -> None:
        self.name = name
        """The format; None as long as no row decided."""
        self._kind = kind
        self._read: Callable[[Row], Iterable[Row]] | None = None
        if name is None and mapping:
            self.name = name = TRL
        if name is not None:
            self._read = _reader(name, kind)

    def read(self, row: Row) -> list[Row | Rejected]:
        """What a row of the file is; a row that is not of the format, or on which it fails, is rejected."""
        if self._read is None:
            self.name = next((name for name, format in FORMATS.items() if self._fits(format, row)), TRL)
            self._read = _reader(self.name, self._kind)
        if self.name == TRL:
            return [row]
        try:
            return list(self._read(row))
        except Unfit as error:
            return [Rejected.of(str(error), row)]
        except RecursionError:
            return [Rejected("is nested too deeply", "")]

    def _fits(self, format: Format, row: Row) -> bool:
        return self._kind in format.kinds and format.recognises(row)


def _reader(name: str, kind: Kind) -> Callable[[Row], Iterable[Row]]:
    if name == TRL:
        return lambda row: [row]
    if ".py:" in name:
        return _own(functions.find(name, "format", {}))
    format = FORMATS.get(name)
    if format is None:
        nearest = difflib.get_close_matches(name, [*FORMATS, TRL], n=1)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"known are {', '.join([TRL, *FORMATS])}."
        raise ConfigError(f"--format {name}: there is no such format; {hint} Your own: path/to/file.py:name.")
    if kind not in format.kinds:
        raise ConfigError(
            f"--format {name}: its rows are imported --as {' or '.join(format.kinds)}, not {kind}."
        )
    return lambda row: format.read(row, kind)


def _own(function: Callable[..., Any]) -> Callable[[Row], Iterable[Row]]:
    def read(row: Row) -> list[Row]:
        try:
            rows = list(function(row))
        except (Exception, SystemExit) as error:
            raise Unfit(f"the format raised {functions.describe_error(error):.300}") from error
        if not all(isinstance(one, dict) for one in rows):
            raise Unfit("the format gives something other than objects")
        return rows

    return read
