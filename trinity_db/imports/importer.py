"""From a file into the store, in transactions of many records.

The importer owns the counting: every record it reads ends as added, known or rejected. What is in the store
already is left alone, so that an import that was cut short is finished by importing again.
"""

import time
from collections.abc import Callable, Iterator

from trinity_db.database import Database
from trinity_db.errors import ImportFileError
from trinity_db.imports.columns import Columns
from trinity_db.imports.dataset import open_writer
from trinity_db.imports.formats import FormatReader
from trinity_db.imports.readers import RowSource
from trinity_db.imports.records import Record
from trinity_db.imports.rejects import Rejected, RejectsFile, Summary, rejects_path

BATCH_RECORDS = 1_000  # in a transaction: the cost of a commit is spread, the progress bar still moves
BATCH_BYTES = 32 * 2**20  # in a transaction, whatever the number of records: bounds the memory
RETRY_SECONDS = 10  # enough to get past a deadlock or a restart of the server; then the person decides

Progress = Callable[[int, int], None]
"""Called after each transaction with the bytes that are read and the bytes there are."""


def import_rows(
    database: Database,
    source: RowSource,
    columns: Columns,
    name: str,
    progress: Progress,
    rows_of: FormatReader | None = None,
) -> Summary:
    """Write every record of a source into the taskset or data set of that name, which is made if need be.

    A transaction that the database ended is repeated. Records that it had written after all count as known.

    Args:
        rows_of: reads the source's rows by their format; None: they have our columns.

    Raises:
        DatabaseUnavailable: for so long that a person should decide.
        ConfigError: the name belongs to a training run, or to tasks of another kind.
        ImportFileError: the file breaks off; what stands before the break is in the store.
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
            for line, found in _records(source, columns, rows_of):
                summary.read += 1
                if isinstance(found, Rejected):
                    summary.count_reject(line, found)
                    rejects.add(line, found)
                    summary.rejects_path = rejects.path
                    continue
                batch.append(found)
                num_bytes += found.num_bytes
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


def _records(
    source: RowSource, columns: Columns, rows_of: FormatReader | None
) -> Iterator[tuple[int, Record | Rejected]]:
    for line, row in source:
        rows = [row] if rows_of is None or isinstance(row, Rejected) else rows_of.read(row)
        for one in rows:
            for found in [one] if isinstance(one, Rejected) else columns.read(one):
                yield line, found
