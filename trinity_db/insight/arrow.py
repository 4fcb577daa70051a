"""Rows of a query as Arrow record batches."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from trinity_db.insight.columns import Column
from trinity_db.insight.words import scalar

TYPES = {
    "bool": pa.bool_(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    # Sums and averages declare no precision, and have too many digits for a decimal.
    "numeric": pa.float64(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of columns. JSON, enums and other types that Arrow lacks become text."""
    return pa.schema([pa.field(column.name, _type(column)) for column in columns])


def record_batch(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Convert rows of database values."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [
        pa.array(_values(values, field.type), field.type)
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.record_batch(arrays, schema=schema)


def _type(column: Column) -> pa.DataType:
    kind = TYPES.get(column.type, pa.string())
    if column.type == "numeric" and column.precision is not None and column.precision <= 38:
        kind = pa.decimal128(column.precision, column.scale)
    return pa.list_(kind) if column.is_array else kind


def _values(values: Sequence[Any], kind: pa.DataType) -> Sequence[Any]:
    """Convert the values of a column, unless Arrow takes them as they are."""
    if types.is_list(kind):
        return [None if value is None else _values(value, kind.value_type) for value in values]
    if types.is_string(kind):
        return [value if value is None or isinstance(value, str) else scalar(value) for value in values]
    if types.is_float64(kind):
        return [float(value) if isinstance(value, Decimal) else value for value in values]
    return values
