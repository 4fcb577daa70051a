"""Formats of other programs: conversion of their rows to our columns.

A format is a function from a row to rows with the columns of `columns`; `trl` is the format of these columns
themselves. Each other format is one file, detected from the first row if that is unambiguous.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trinity_db.config import user_functions
from trinity_db.data.formats import atropos, trinity_rft, verifiers, verl
from trinity_db.data.records.records import Kind, Unfit
from trinity_db.data.rejects import Rejected
from trinity_db.errors import ConfigError

Row = dict[str, Any]

TRL = "trl"


@dataclass(frozen=True)
class Format:
    """One format of rows."""

    kinds: tuple[Kind, ...]
    """Kinds as which its rows can be imported."""
    recognises: Callable[[Row], bool]
    """Whether a row has this format and no other."""
    read: Callable[[Row, Kind], Iterable[Row]]
    """Converts a row to rows of a kind with our columns. Raises Unfit."""


FORMATS: dict[str, Format] = {
    "verl": Format(verl.KINDS, verl.recognises, verl.read),
    "trinity-rft": Format(trinity_rft.KINDS, trinity_rft.recognises, trinity_rft.read),
    "atropos": Format(atropos.KINDS, atropos.recognises, atropos.read),
    "verifiers": Format(verifiers.KINDS, verifiers.recognises, verifiers.read),
}


class FormatReader:
    """Converts rows of a file to our columns.

    Args:
        name: a format, or the user's own function from a row to rows, `path/to/file.py:name`. None: detected
            from the first row, unless there is a mapping.
        mapping: our name → their column.

    Raises:
        ConfigError: if the format does not exist, or does not support this kind.
    """

    def __init__(self, name: str | None, kind: Kind, mapping: Mapping[str, str] | None = None) -> None:
        self.name = name
        """The format; None until it is detected."""
        self._kind = kind
        self._read: Callable[[Row], Iterable[Row]] | None = None
        if name is None and mapping:
            self.name = name = TRL
        if name is not None:
            self._read = _reader(name, kind)

    def read(self, row: Row) -> list[Row | Rejected]:
        """Convert a row of the file; a row of another format, or on which conversion fails, is rejected."""
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
        return _own(user_functions.find(name, "format", {}))
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
            raise Unfit(f"the format raised {user_functions.describe_error(error):.300}") from error
        if not all(isinstance(converted, dict) for converted in rows):
            raise Unfit("the format returned something other than objects")
        return rows

    return read
