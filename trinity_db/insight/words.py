"""Formatting of values for people and for programs, shared by commands and the page.

Texts in the store come from models and strangers, so `cell` and `printable` escape control characters.
"""

import json
import math
import re
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def moment(at: datetime) -> str:
    """Format a time to the second, in the time zone of the database session."""
    return f"{at:%Y-%m-%d %H:%M:%S %Z}"


def cell(value: Any) -> str:
    """Format a value for people, without loss."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"{value[:16].hex(' ')}{' ...' if len(value) > 16 else ''} ({len(value)} bytes)"
    if isinstance(value, Decimal) and value.is_finite():
        return f"{value:f}".rstrip("0").rstrip(".") if "." in f"{value:f}" else f"{value:f}"
    return str(value) if isinstance(value, datetime) else printable(scalar(value))


def scalar(value: Any) -> str:
    """Format a value as one text: itself, or JSON for anything but texts and numbers."""
    plain = jsonable(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def printable(text: str) -> str:
    """Escape control characters (except tab and newline) as \\x1b."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def jsonable(value: Any) -> Any:
    """Convert a database value to JSON types. As in Postgres, other types become text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return (
            value
            if math.isfinite(value)
            else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        )
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value == int(value) else jsonable(float(value))
    if isinstance(value, Mapping):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return value.isoformat() if isinstance(value, date | time) else str(value)


def number(value: float | None, sign: str = "") -> str:
    """Format a figure of an evaluation; sign "+" always shows the sign of a difference."""
    return "-" if value is None else f"{value:{sign}.3f}"


def with_limits(row: Mapping[str, Any], name: str, sign: str = "") -> str:
    """Format a figure of an evaluation with its 95 % interval."""
    if row[name] is None or row[f"{name}_low"] is None:
        return number(row[name], sign)
    low, high = number(row[f"{name}_low"], sign), number(row[f"{name}_high"], sign)
    return f"{number(row[name], sign)} [{low}, {high}]"
