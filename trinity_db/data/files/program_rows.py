"""Rows that a program passes: dictionaries, or a table of any library with Arrow's interface."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trinity_db.data.records.strict_json import DECODER
from trinity_db.data.rejects import Rejected
from trinity_db.errors import ImportFileError

Row = dict[str, Any]


class ProgramRows:
    """The rows of one import. Their lines are their numbers from 1."""

    position = total_bytes = 0
    """A program's rows have no bytes to count."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[tuple[int, Row | Rejected]]:
        """Yield (line, row).

        Raises:
            ImportFileError: if there are no rows.
        """
        rows = _of_table(self._rows) if hasattr(self._rows, "__arrow_c_stream__") else _of_dicts(self._rows)
        line = 0
        for line, row in enumerate(rows, 1):
            yield line, row
        if not line:
            raise ImportFileError("There are no rows to import.")


def _of_table(table: Any) -> Iterator[Row | Rejected]:
    import pyarrow as pa

    from trinity_db.data.files.tables import BATCH_ROWS, json_rows

    for batch in pa.RecordBatchReader.from_stream(table):
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield from json_rows(batch.slice(start, BATCH_ROWS))


def _of_dicts(rows: Iterable[Any]) -> Iterator[Row | Rejected]:
    for row in rows:
        if not isinstance(row, Mapping):
            yield Rejected.of("is no dictionary of columns", row)
            continue
        try:
            yield DECODER.decode(json.dumps(dict(row)))
        except (TypeError, ValueError):
            yield Rejected.of("has a value or a name that JSON does not have", row)
        except RecursionError:
            yield Rejected("is nested too deeply", "")
