"""Values as text, for people and for programs; commands and the page print the same.

Models and strangers wrote the texts in the store, so `cell` and `printable` show control characters and never
pass them on.
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
    """A time to the second, in the zone of the database's session."""
    return f"{at:%Y-%m-%d %H:%M:%S %Z}"


def cell(value: Any) -> str:
    """A value as people read it, exact."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"{value[:16].hex(' ')}{' ...' if len(value) > 16 else ''} ({len(value)} bytes)"
    if isinstance(value, Decimal) and value.is_finite():
        return f"{value:f}".rstrip("0").rstrip(".") if "." in f"{value:f}" else f"{value:f}"
    return str(value) if isinstance(value, datetime) else printable(scalar(value))


def scalar(value: Any) -> str:
    """A value as one text: itself, or JSON for what is neither text nor number."""
    plain = jsonable(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def printable(text: str) -> str:
    """Text with its control characters (but tab and newline) in the form \\x1b."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def jsonable(value: Any) -> Any:
    """A value from the database in JSON's types. As in Postgres, other types are text."""
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
    """A figure of an evaluation; "+" as the sign says of a difference which way it goes."""
    return "-" if value is None else f"{value:{sign}.3f}"


def with_limits(row: Mapping[str, Any], name: str, sign: str = "") -> str:
    """A figure of an evaluation with its interval at 95 %."""
    if row[name] is None or row[f"{name}_low"] is None:
        return number(row[name], sign)
    low, high = number(row[f"{name}_low"], sign), number(row[f"{name}_high"], sign)
    return f"{number(row[name], sign)} [{low}, {high}]"
