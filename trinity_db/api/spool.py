"""Query results as Arrow record batches.

The rows are written to a temporary file first, so that their transaction ends before they are used, and no
result needs much memory.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from trinity_db.api.conditions import Bound
from trinity_db.api.reading import ARRAYS, Answer, Rows, read
from trinity_db.arrays import codec
from trinity_db.insight import arrow
from trinity_db.postgres.connection import Database
from trinity_db.store import payloads

BATCH_BYTES = 64 * 2**20  # a batch ends here; the offsets of a column have 31 bits
PIECE_BYTES = 8 * 2**20  # fetched at a time, if the rows are as long as those before
FIRST_ROWS = 8  # fetched first, as the length of rows is unknown
PIECE_ROWS = 128  # fetched at a time, at most: 1 GiB if they suddenly are the longest that can be imported
TOKEN_BYTES = 13  # of a token in the arrays

_ARRAYS = pa.schema([pa.field(name, pa.list_(pa.type_for_alias(kind))) for name, kind in ARRAYS.items()])
_PACKED = pa.schema(
    [
        pa.field("trinity codec", pa.string()),
        pa.field("trinity num_tokens", pa.int32()),
        pa.field("trinity data", pa.binary()),
        pa.field("trinity table", pa.string()),
        pa.field("trinity archive_row", pa.int64()),
    ]
)
"""Packed payloads in the temporary file, which the reader decodes. No column of a user has such a name."""


def record_batches(
    database: Database,
    statement: Bound,
    seconds: float,
    batch_size: int,
    *,
    arrays_of: str | None,
    drop: bool,
) -> pa.RecordBatchReader:
    """Run a SELECT and return its rows as record batches, from one snapshot.

    Args:
        arrays_of: name of the column with ids of experiences whose arrays are added as columns. None: none.
        drop: leave this column out.
    """

    def consume(answer: Answer) -> tuple[pa.Schema, pa.RecordBatchReader]:
        schema = arrow.schema_of(answer.columns)
        return schema, _spooled(answer, schema, arrays_of, batch_size)

    schema, reader = read(database, statement, seconds, consume)
    if arrays_of is None:
        return reader
    fields = [field for field in schema if not (drop and field.name == arrays_of)]
    decoded = (_decoded(batch, [field.name for field in fields], arrays_of) for batch in reader)
    return pa.RecordBatchReader.from_batches(pa.schema([*fields, *_ARRAYS]), decoded)


def _spooled(
    answer: Answer, schema: pa.Schema, arrays_of: str | None, batch_size: int
) -> pa.RecordBatchReader:
    """Write the rows to a file without a name, which ends with the reader."""
    written = schema if arrays_of is None else pa.schema([*schema, *_PACKED])
    number, path = tempfile.mkstemp(prefix="trinity-db-")
    os.close(number)
    try:
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, written) as stream:
            for batch in _batches(answer, schema, arrays_of, batch_size):
                stream.write_batch(batch)
        return pa.ipc.open_stream(pa.OSFile(path))
    finally:
        os.unlink(path)


def _batches(
    answer: Answer, schema: pa.Schema, arrays_of: str | None, batch_size: int
) -> Iterator[pa.RecordBatch]:
    """Fetch rows in pieces, and join these to batches of `batch_size` rows or about BATCH_BYTES."""
    pieces: list[pa.RecordBatch] = []
    num_rows, num_bytes, piece_rows = 0, 0, FIRST_ROWS
    while rows := answer.fetch(min(piece_rows, batch_size - num_rows)):
        piece, piece_bytes = _piece(answer, schema, arrays_of, rows)
        pieces.append(piece)
        num_rows, num_bytes = num_rows + len(rows), num_bytes + piece_bytes
        piece_rows = max(1, min(PIECE_ROWS, PIECE_BYTES * len(rows) // max(1, piece_bytes)))
        if num_rows == batch_size or num_bytes >= BATCH_BYTES:
            yield pa.concat_batches(pieces)
            pieces, num_rows, num_bytes = [], 0, 0
    if pieces:
        yield pa.concat_batches(pieces)


def _piece(
    answer: Answer, schema: pa.Schema, arrays_of: str | None, rows: Rows
) -> tuple[pa.RecordBatch, int]:
    """Return rows, with their packed payloads, and their number of bytes once these are decoded."""
    batch = arrow.record_batch(schema, rows)
    if arrays_of is None:
        return batch, batch.nbytes
    index = schema.get_field_index(arrays_of)
    packed = _packed(answer, [row[index] for row in rows])
    tokens = sum(length or 0 for length in packed.column("trinity num_tokens").to_pylist())
    joined = pa.record_batch([*batch.columns, *packed.columns], pa.schema([*schema, *_PACKED]))
    return joined, joined.nbytes + TOKEN_BYTES * tokens


def _packed(answer: Answer, ids: Sequence[int]) -> pa.RecordBatch:
    """Read the payloads of experiences, in this order; NULL for an experience without one."""
    stored = payloads.stored(answer.tx, ids)
    by_id = {row["experience_id"]: row for row in stored.rows}
    tables = {id: table for table, of_table in stored.archived.items() for id in of_table}
    pointers = {id: row for of_table in stored.archived.values() for id, row in of_table.items()}
    rows = [by_id.get(id, {}) for id in ids]
    columns: list[list[Any]] = [[row.get(name) for row in rows] for name in ("codec", "num_tokens", "data")]
    columns += [[tables.get(id) for id in ids], [pointers.get(id) for id in ids]]
    return pa.record_batch(
        [pa.array(values, field.type) for values, field in zip(columns, _PACKED, strict=True)], schema=_PACKED
    )


def _decoded(batch: pa.RecordBatch, fields: Sequence[str], arrays_of: str) -> pa.RecordBatch:
    """Replace packed payloads with their arrays."""
    codecs, lengths, data, tables, rows = (batch.column(field.name).to_pylist() for field in _PACKED)
    ids = batch.column(arrays_of).to_pylist()
    away: dict[str, dict[int, int]] = {}
    for id, table, row in zip(ids, tables, rows, strict=True):
        if row is not None:
            away.setdefault(table, {})[id] = row
    fetched = {
        id: data for table, of_table in away.items() for id, data in payloads.fetch(table, of_table).items()
    }
    stored = [fetched.get(id, packed) for id, packed in zip(ids, data, strict=True)]
    decoded = [
        None if packed is None else codec.decode(name, packed, length)
        for name, packed, length in zip(codecs, stored, lengths, strict=True)
    ]
    arrays = [
        _lists([getattr(payload, field.name, None) for payload in decoded], field.type) for field in _ARRAYS
    ]
    columns = [batch.column(name) for name in fields]
    schema = pa.schema([*(batch.schema.field(name) for name in fields), *_ARRAYS])
    return pa.record_batch([*columns, *arrays], schema=schema)


def _lists(values: Sequence[np.ndarray[Any, Any] | None], kind: pa.DataType) -> pa.ListArray:
    """Return one list per array, without Python objects for their numbers."""
    present = [value for value in values if value is not None]
    numbers = np.concatenate(present) if present else np.empty(0)
    lengths = [0 if value is None else len(value) for value in values]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    absent = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(numbers, kind.value_type), type=kind, mask=absent
    )
