"""The types of rows have the columns of their queries (about a second)."""

import re
import typing
from datetime import datetime
from types import NoneType, UnionType

import pytest

from trinity_db.postgres.connection import Database
from trinity_db.schema.queries import query
from trinity_db.schema.typed_rows import QUERIES

TYPES = {"int2": int, "int4": int, "int8": int, "float8": float, "text": str, "timestamptz": datetime}


@pytest.mark.parametrize("name", QUERIES)
def test_a_type_has_the_columns_of_its_query(name: str, shared_database: Database) -> None:
    with shared_database.transaction(read_only=True) as tx:
        cursor = tx.execute(re.sub(r"%\(\w+\)[sbt]", "NULL", query(name)))
        known = {column.name: tx.adapters.types[column.type_code].name for column in cursor.description or ()}
    declared = {
        column: [part for part in typing.get_args(kind) if part is not NoneType]
        if isinstance(kind, UnionType)
        else [kind]
        for column, kind in typing.get_type_hints(QUERIES[name]).items()
    }
    assert list(declared) == list(known)
    for column, type_name in known.items():
        if type_name != "jsonb":
            assert declared[column] == [TYPES[type_name]], column
