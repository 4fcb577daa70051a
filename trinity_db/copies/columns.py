"""How a column stands in a binary COPY and in a Parquet file: each type without loss, in both directions.

Numbers, texts and bytes travel as they are. JSON and UUIDs become text in the file; a time is a timestamp in
UTC there, and on the wire a number of microseconds since 2000.
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

EPOCH_MICROSECONDS = 946_684_800_000_000  # from 1970, where files count from, to 2000, where PostgreSQL does
JSONB_VERSION = b"\x01"  # the first byte of JSON on the wire

TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Form:
    """How one type of column is written."""

    arrow: Any
    """Its type in the file."""
    wire: str
    """The name of the type that its values have in a COPY, for psycopg."""
    to_file: Callable[[Any], Any] | None = None
    """From a value of the COPY to one of the file; None where it is the same. Never asked about NULL."""
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
    """How the column is written.

    Raises:
        NotImplementedError: its type is new to copies.
    """
    for kind, found in _FORMS.items():
        if isinstance(column.type, kind):
            return found
    raise NotImplementedError(f"{column}: say in trinity_db/copies/columns.py how {column.type!r} is copied.")


def arrow_schema(columns: list[Column[Any]]) -> Any:
    """The schema of the file with these columns; what may be NULL may be null."""
    return pa.schema([pa.field(c.name, form(c).arrow, nullable=bool(c.nullable)) for c in columns])
