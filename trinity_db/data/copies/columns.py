"""Lossless conversion of columns between a binary COPY and a Parquet file.

Numbers, texts and bytes are unchanged. JSON and UUIDs become strings in the file; a time becomes a UTC
timestamp there, and is a number of microseconds since 2000 in the COPY.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Enum,
    Integer,
    LargeBinary,
    SmallInteger,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import JSONB

EPOCH_MICROSECONDS = 946_684_800_000_000  # from 1970, the epoch of files, to 2000, that of PostgreSQL
JSONB_VERSION = b"\x01"  # the first byte of JSON on the wire

TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Form:
    """Conversion of one column type."""

    arrow: Any
    """Type in the file."""
    wire: str
    """Type in the COPY, by psycopg's name."""
    to_file: Callable[[Any], Any] | None = None
    """Converts a value of the COPY to one of the file; None: unchanged. Not called for NULL."""
    to_wire: Callable[[Any], Any] | None = None


_FORMS: dict[type, Form] = {
    # Subclasses first.
    SmallInteger: Form(pa.int16(), "int2"),
    BigInteger: Form(pa.int64(), "int8"),
    Integer: Form(pa.int32(), "int4"),
    Double: Form(pa.float64(), "float8"),
    Boolean: Form(pa.bool_(), "bool"),
    Enum: Form(pa.string(), "text"),
    Text: Form(pa.string(), "text"),
    LargeBinary: Form(pa.binary(), "bytea"),
    Uuid: Form(pa.string(), "bytea", lambda value: str(UUID(bytes=value)), lambda value: UUID(value).bytes),
    DateTime: Form(
        TIME, "int8", lambda value: value + EPOCH_MICROSECONDS, lambda value: value - EPOCH_MICROSECONDS
    ),
    JSONB: Form(
        pa.string(),
        "bytea",
        lambda value: value[len(JSONB_VERSION) :].decode(),
        lambda value: JSONB_VERSION + value.encode(),
    ),
}


def form(column: Column[Any]) -> Form:
    """Return the conversion of a column.

    Raises:
        NotImplementedError: if its type is not supported.
    """
    for kind, conversion in _FORMS.items():
        if isinstance(column.type, kind):
            return conversion
    raise NotImplementedError(
        f"{column}: define how {column.type!r} is copied in trinity_db/data/copies/columns.py."
    )


def arrow_schema(columns: list[Column[Any]]) -> Any:
    """Return the file's schema for these columns, nullable as in the table."""
    return pa.schema([pa.field(c.name, form(c).arrow, nullable=bool(c.nullable)) for c in columns])
