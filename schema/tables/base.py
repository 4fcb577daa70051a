"""Shared by all tables: the Postgres schema, naming rules of constraints, and column types."""

import inspect
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from sqlalchemy import BigInteger, DateTime, Enum, Identity, MetaData, Table, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, mapped_column

SCHEMA = "trinity"

# Fixed names, so that errors can be matched by constraint and migrations can drop constraints.
NAMING = {
    "pk": "%(table_name)s_pkey",
    "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "ix": "%(table_name)s_%(column_0_N_name)s_idx",
    "ck": "%(table_name)s_%(constraint_name)s_check",
}


class Base(DeclarativeBase):
    """Base of the tables. Ids are never reused. A table's docstring is also its SQL comment."""

    metadata = MetaData(schema=SCHEMA, naming_convention=NAMING)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        dict[str, Any]: JSONB,
        datetime: DateTime(timezone=True),
        int: BigInteger,
    }

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        assert isinstance(cls.__table__, Table)
        cls.__table__.comment = " ".join((inspect.getdoc(cls) or "").split())


# BY DEFAULT, not ALWAYS: writers reserve ids from the sequence first, so that a single COPY per table can
# write rows that refer to each other.
Id = Annotated[int, mapped_column(BigInteger, Identity(always=False), primary_key=True)]
Now = Annotated[datetime, mapped_column(DateTime(timezone=True), server_default=func.now())]

# The transaction that wrote something, as text::bigint of its xid8. With the snapshot recorded in a batch it
# determines what a draw could see, and so what a rerun would draw.
CURRENT_XACT = text("(pg_current_xact_id()::text)::bigint")


# The `info` of a column or a table specifies how a copy of a run (`trinity_db.data.copies`) treats it, if no
# foreign key does. Transaction numbers are meaningless on another server: the copy gets the number of its
# import, so that every later draw sees the row.
TRANSACTION = {"copied_as": "transaction"}
# A value that is valid only on its server or node: NULL in the copy.
LOCAL = {"copied_as": "null"}
# A table that belongs to the store instead of a run.
OF_THE_STORE = {"copied": False}


def refers_to(table: str) -> dict[str, str]:
    """The column contains an id of that table, without a foreign key, which would slow down every write."""
    return {"refers_to": table}


def lies_among(table: str) -> dict[str, str]:
    """The column contains a position in the order of that table's ids; a row with that id need not exist."""
    return {"lies_among": table}


# Vacuum hot tables after a number of changes instead of a share of their size: a fifth of ten million rows,
# the server's default, would be two million dead ones. No cost delay, since claims wait for the cleanup.
HOT_TABLE = {
    "fillfactor": "70",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.02",
    "autovacuum_vacuum_cost_delay": "0",
}


def enum(states: type[StrEnum], name: str) -> Enum:
    """Create a Postgres enum with the values of a StrEnum."""
    return Enum(
        states, name=name, schema=SCHEMA, values_callable=lambda kind: [state.value for state in kind]
    )
