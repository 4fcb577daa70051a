"""What the archive's Lance tables hold: payloads of one run, and what people ask about them.

The codec's own bytes stay together in one column, from which we read: a row is read at random as a whole, to
the bit. The columns after it are for others. They say what was so when the row was archived. Postgres knows
rewards that came later. Rows that an earlier release archived have nulls there.
"""

from typing import Any


def payload_schema() -> Any:
    """The Arrow schema of a table; Lance adds `_rowid`, which payload.archive_row keeps."""
    import pyarrow as pa  # here, because it takes half a second to load

    ours = [
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
        ("version_min", pa.int32()),  # the oldest policy version that wrote a token
        ("version_max", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("action_mask", pa.list_(pa.bool_())),  # true for a token that is trained
    ]
    fields = [pa.field(name, kind, nullable=False) for name, kind in ours]
    return pa.schema([*fields, *(pa.field(name, kind) for name, kind in for_others)])
