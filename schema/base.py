"""Common to all tables: the Postgres schema, the names of constraints by rule, the types of columns."""

import inspect
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from sqlalchemy import BigInteger, DateTime, Enum, Identity, MetaData, Table, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, mapped_column

SCHEMA = "trinity"

# By rule, so that an error can be recognised by the constraint it broke and a migration can drop it.
NAMING = {
    "pk": "%(table_name)s_pkey",
    "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "ix": "%(table_name)s_%(column_0_N_name)s_idx",
    "ck": "%(table_name)s_%(constraint_name)s_check",
}


class Base(DeclarativeBase):
    """Base of the tables. Ids are never reused. The docstring of a table is its SQL comment too."""

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


# BY DEFAULT, not ALWAYS: writers take ids from the sequence first, so that one COPY per table can
# write rows that refer to one another.
Id = Annotated[int, mapped_column(BigInteger, Identity(always=False), primary_key=True)]
Now = Annotated[datetime, mapped_column(DateTime(timezone=True), server_default=func.now())]

# The transaction that wrote something, as text::bigint of its xid8. With the snapshot that a batch keeps it
# tells what a draw could see, and so what it would draw if it were run again.
CURRENT_XACT = text("(pg_current_xact_id()::text)::bigint")


# The `info` of a column or a table tells a copy of a run (`trinity_db.copies`) how to treat it, where no
# foreign key does. The number of a transaction means nothing on another server: the copy has that of its
# import, so that every later draw sees the row.
TRANSACTION = {"copied_as": "transaction"}
# A value that has a meaning only on its own server or machine: the copy has NULL.
LOCAL = {"copied_as": "null"}
# A table that belongs to the store and not to a run.
OF_THE_STORE = {"copied": False}


def refers_to(table: str) -> dict[str, str]:
    """The column holds an id of that table, without a foreign key that every write would have to check."""
    return {"refers_to": table}


def lies_among(table: str) -> dict[str, str]:
    """The column holds a place in the order of that table's ids; there need not be a row of that id."""
    return {"lies_among": table}


# Hot tables are vacuumed by what has changed in them, not by their size: a fifth of ten million rows, the
# server's default, would be two million dead ones. Without pauses, as claims wait for what it cleans.
HOT_TABLE = {
    "fillfactor": "70",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.02",
    "autovacuum_vacuum_cost_delay": "0",
}


def enum(states: type[StrEnum], name: str) -> Enum:
    """A Postgres enum that holds the values of a StrEnum."""
    return Enum(
        states, name=name, schema=SCHEMA, values_callable=lambda kind: [state.value for state in kind]
    )
