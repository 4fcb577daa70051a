"""Import from a file into the store, in transactions of many records.

The importer counts every record as added, known or rejected. Existing records are left alone, so an
interrupted import is completed by importing again.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from trinity_db.data.dataset import open_writer
from trinity_db.data.formats import FormatReader
from trinity_db.data.preview import shown
from trinity_db.data.records.columns import Columns
from trinity_db.data.records.records import Record
from trinity_db.data.rejects import Rejected, RejectsFile, Summary, rejects_path
from trinity_db.errors import ImportFileError
from trinity_db.postgres.connection import Database

BATCH_RECORDS = 1_000  # per transaction: amortizes the commit, while the progress bar still moves
BATCH_BYTES = 32 * 2**20  # per transaction, to bound memory
RETRY_SECONDS = 10  # enough for a deadlock or a restart of the server; then the user decides

Progress = Callable[[int, int], None]
"""Called after each transaction with the bytes read and the total bytes."""


class ImportSource(Protocol):
    """Rows to import, with their lines: of a file, or of a program."""

    @property
    def position(self) -> int:
        """Bytes read so far."""

    @property
    def total_bytes(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any] | Rejected]]: ...


def import_rows(
    database: Database,
    source: ImportSource,
    columns: Columns,
    name: str,
    progress: Progress,
    rows_of: FormatReader | None = None,
) -> Summary:
    """Write all records of a source into the named taskset or data set, creating it if necessary.

    A transaction aborted by the database is retried. Records that it committed nevertheless count as known.

    Args:
        rows_of: converts the source's rows from their format; None: they have our columns.

    Raises:
        DatabaseUnavailable: if the database is away for longer than RETRY_SECONDS.
        ConfigError: if the name belongs to a training run, or to tasks of another kind.
        ImportFileError: if the file is truncated; records before that are in the store.
    """
    summary = Summary()
    write = open_writer(database, columns.kind, name)
    batch: list[Record] = []
    num_bytes = 0

    def flush() -> None:
        nonlocal num_bytes
        deadline = time.monotonic() + RETRY_SECONDS
        added = database.retry(lambda: write(batch), lambda: time.monotonic() > deadline) if batch else 0
        summary.added += added
        summary.known += len(batch) - added
        batch.clear()
        num_bytes = 0
        progress(source.position, source.total_bytes)

    with RejectsFile(rejects_path(name, columns.kind)) as rejects:
        try:
            for line, record in _records(source, columns, rows_of):
                summary.read += 1
                if isinstance(record, Rejected):
                    summary.count_reject(line, record)
                    rejects.add(line, record)
                    summary.rejects_path = rejects.path
                    continue
                summary.example = summary.example or shown(record)
                batch.append(record)
                num_bytes += record.num_bytes
                if len(batch) >= BATCH_RECORDS or num_bytes >= BATCH_BYTES:
                    flush()
        except ImportFileError as error:
            flush()
            done = f"{summary.added} records before that are added, {summary.known} were known"
            raise ImportFileError(
                f"{str(error).rstrip('.')}; {done}." if summary.read else str(error)
            ) from error
        flush()
    return summary


def preview_rows(
    source: ImportSource, columns: Columns, number: int, rows_of: FormatReader
) -> list[tuple[int, str | Rejected]]:
    """Return the first records of a source as text, or their rejections, with their lines. Writes nothing.

    Raises:
        ImportFileError: if the file is truncated before them.
    """
    records = itertools.islice(_records(source, columns, rows_of), number)
    return [(line, record if isinstance(record, Rejected) else shown(record)) for line, record in records]


def _records(
    source: ImportSource, columns: Columns, rows_of: FormatReader | None
) -> Iterator[tuple[int, Record | Rejected]]:
    for line, row in source:
        rows = [row] if rows_of is None or isinstance(row, Rejected) else rows_of.read(row)
        for converted in rows:
            for record in [converted] if isinstance(converted, Rejected) else columns.read(converted):
                yield line, record
