"""What the archive's Lance tables hold: payloads of one run, in the bytes that Postgres had.

The codec's own bytes stay together in one column: a row is read at random as a whole, and token ids and
log-probabilities gain little from columns of their own.
"""

from typing import Any


def payload_schema() -> Any:
    """The Arrow schema of a table; Lance adds `_rowid`, which payload.archive_row keeps."""
    import pyarrow as pa  # here, because it takes half a second to load

    columns = [
        ("experience_id", pa.int64()),
        ("codec", pa.string()),
        ("num_tokens", pa.int32()),
        ("data", pa.binary()),
    ]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])
