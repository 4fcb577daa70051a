"""Texts of SQL with values, combined into one statement."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from trinity_db.errors import ConfigError

Values = Sequence[Any] | Mapping[str, Any]

_numbers = count()
_SQL = re.compile(
    r"""
    \b[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
    | --[^\n]* | /\*.*?\*/ | (?P<open>\() | (?P<close>\))
    | (?P<order>(?<!\.)(?<!\bas\s)\b(?:ORDER\s+BY|LIMIT|OFFSET|FETCH)\b)
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
"""What has a meaning for `is_ordered`, and the quoted texts and comments that contain no such thing."""
_PLACEHOLDER = re.compile(r"%(?:([%s])|\((\w+)\)s)?")


@dataclass(frozen=True)
class Bound:
    """A text of SQL whose placeholders have unique names, and their values."""

    text: str
    values: Mapping[str, Any] = field(default_factory=dict)


def bind(text: str, values: Values = ()) -> Bound:
    """Give the placeholders of a text, %s or %(name)s, names that no other text has.

    Without values, a percent sign is literal; with values it is written %%.

    Raises:
        ConfigError: if the values do not fit the placeholders.
    """
    if not values:
        return Bound(escaped(text))
    bound: dict[str, Any] = {}
    remaining = iter(() if isinstance(values, Mapping) else values)

    def placeholder(match: re.Match[str]) -> str:
        sign, name = match[1], match[2]
        if sign == "%":
            return "%%"
        try:
            value = values[name] if isinstance(values, Mapping) and name is not None else next(remaining)
        except (KeyError, StopIteration):
            missing = f"'{name}'" if name else match[0]
            raise ConfigError(f"No value is given for {missing} in: {_line(text)}") from None
        if sign is None and name is None:
            raise ConfigError(f"Write %% for a percent sign, and %s for a value, in: {_line(text)}")
        new = f"p{next(_numbers)}"
        bound[new] = value
        return f"%({new})s"

    renamed = _PLACEHOLDER.sub(placeholder, text)
    if surplus := len(list(remaining)):
        raise ConfigError(f"{surplus} more values are given than there are %s in: {_line(text)}")
    return Bound(renamed, bound)


def escaped(text: str) -> str:
    """Return a text without placeholders, for a statement that has some."""
    return text.replace("%", "%%")


def identifier(name: str) -> str:
    """Quote the name of a column."""
    return escaped('"{}"'.format(name.replace('"', '""')))


def is_ordered(text: str) -> bool:
    """Whether a SELECT sorts or limits its rows itself, outside of parentheses."""
    depth = 0
    for match in _SQL.finditer(text):
        depth += (match["open"] is not None) - (match["close"] is not None)
        if match["order"] and depth == 0:
            return True
    return False


def _line(text: str) -> str:
    return " ".join(text.split())[:200]
