"""Contents of the archive's Lance tables: payloads of one run, with metadata for people.

The codec's bytes stay together in one column, which we read: rows are read at random and completely, bit for
bit. The further columns are for other tools. They contain the values at archiving time; later rewards are
only in Postgres.
"""

from typing import Any


def payload_schema() -> Any:
    """Build the Arrow schema of a table; Lance adds `_rowid`, which payload.archive_row stores."""
    import pyarrow as pa  # imported here, since it takes half a second

    own_columns = [
        ("experience_id", pa.int64()),
        ("codec", pa.string()),
        ("num_tokens", pa.int32()),
        ("data", pa.binary()),
    ]
    for_others = [
        ("run", pa.string()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("reward", pa.float64()),
        ("version_min", pa.int32()),  # the oldest policy version that sampled a token
        ("version_max", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("action_mask", pa.list_(pa.bool_())),  # true for a trained token
    ]
    fields = [pa.field(name, kind, nullable=False) for name, kind in own_columns]
    return pa.schema([*fields, *(pa.field(name, kind) for name, kind in for_others)])
