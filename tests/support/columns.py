"""What an import makes of one row of a file."""

from typing import Any

from trinity_db.data.records.columns import Columns
from trinity_db.data.records.records import Kind
from trinity_db.data.rejects import Rejected


def read(kind: Kind, row: dict[str, Any], **mapping: str) -> Any:
    """The record that the row is, or that it is rejected."""
    (result,) = Columns(kind, mapping).read(row)
    return result


def reason(kind: Kind, row: dict[str, Any], **mapping: str) -> str:
    """Why the row is rejected."""
    result = read(kind, row, **mapping)
    assert isinstance(result, Rejected), result
    return result.reason
