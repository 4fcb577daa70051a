"""The archive: payloads in Lance tables, next to the store or at TRINITY_DB_LANCE_URI.

It handles rows without accessing Postgres, which records the table and row of each payload
(`store.payloads`). A table has one writer at a time, a run's archiver. Any process may read at any time: row
ids are stable, and a reader whose table version was cleaned up retries with the newest. Lance must not be
used across a fork, so it is imported only when a table is opened.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_db.config import base
from trinity_db.errors import NotFound, TrinityError
from trinity_db.io import durable
from trinity_db.schema.lance import payload_schema

METADATA_CACHE_BYTES = 64 << 20  # locations of a million rows take about 10 MB; Lance's default is 1 GB
INDEX_CACHE_BYTES = 1 << 20  # the tables have no indexes; Lance's default is 6 GB
SCAN_ROWS = 10_000  # rows per batch of a scan
# A file has thousands of rows, so only many files slow reading down. Each merge rewrites all rows that are
# not yet in a file of a million rows.
MERGE_FILES = 64
KEEP_ALL = timedelta(days=36_500)
KEEP_NEWEST = timedelta(milliseconds=1)
LOOKS = 3  # read attempts: files may be merged between two, and a merge takes longer than a read


@dataclass(frozen=True)
class ArchivedPayload:
    """A payload to archive, with the columns for other readers (`schema.lance`)."""

    experience_id: int
    codec: str
    num_tokens: int
    data: bytes
    run: str
    prompt: str | None
    response: str | None
    reward: float | None
    version_min: int | None
    version_max: int | None
    token_ids: NDArray[np.int32]
    action_mask: NDArray[np.bool_]


def read(name: str, archive_rows: Mapping[int, int]) -> dict[int, bytes]:
    """Read the bytes of payloads, by experience id, leaving out missing ones.

    Args:
        archive_rows: row ids in the table, by experience id.

    Raises:
        NotFound: if the table does not exist.
        TrinityError: if it cannot be read.
    """
    table, payloads = _open(base.lance_uri(), name), dict[int, bytes]()
    for look in range(LOOKS):
        try:
            payloads = _take(table, archive_rows)
        except (OSError, RuntimeError) as error:
            if look == LOOKS - 1:
                raise _unusable("read", error) from error
        if len(payloads) == len(archive_rows):
            break
        with in_our_words("read"):
            table.checkout_latest()
    return payloads


def exists(name: str) -> bool:
    """Whether a table exists.

    Raises:
        TrinityError: if the archive cannot be read.
    """
    try:
        _open(base.lance_uri(), name)
    except NotFound:
        return False
    return True


def folder(name: str) -> Path | None:
    """Return the folder of a table's files; None if they are not on this machine."""
    uri = base.lance_uri()
    path = Path(uri, f"{name}.lance")
    return path if "://" not in uri and path.is_dir() else None


def drop(name: str) -> None:
    """Remove a table with all its files, if it exists.

    Raises:
        TrinityError: if it cannot be removed.
    """
    uri = base.lance_uri()
    if "://" not in uri and not Path(uri, f"{name}.lance").is_dir():  # a store without [lance] has no archive
        return
    with in_our_words("written"):
        connection(uri).drop_table(name, ignore_missing=True)
    _table.cache_clear()


class Writer:
    """Writer of one run's table."""

    def __init__(self, name: str, must_exist: bool) -> None:
        """Open the table, or create it if it may be missing.

        Raises:
            NotFound: if it must exist and does not.
            TrinityError: if it cannot be used.
        """
        uri = base.lance_uri()
        self._folder = None if "://" in uri else Path(uri, f"{name}.lance")
        self._flushed: dict[Path, tuple[int, int]] = {}
        """Size and time of the files already flushed to disk."""
        try:
            self._table = _open(uri, name)
        except NotFound:
            if must_exist:
                raise
            with in_our_words("written"):
                options = {"new_table_enable_stable_row_ids": "true"}
                connection(uri).create_table(name, schema=payload_schema(), storage_options=options)
            self._table = _open(uri, name)
        with in_our_words("read"):
            self._table.checkout_latest()

    def append(self, rows: Sequence[ArchivedPayload]) -> dict[int, int]:
        """Append rows as one version, read them back and flush; return row ids by experience id.

        After this returns, the rows are durable. An object store is durable once it acknowledges.

        Raises:
            TrinityError: if they cannot be written or read back differently. Some may have been stored
                nevertheless.
        """
        import pyarrow as pa

        schema = payload_schema()
        table = pa.table({name: [getattr(row, name) for row in rows] for name in schema.names}, schema=schema)
        with in_our_words("written"):
            self._table.add(table)
            last = self._table.count_rows()
            written = self._table.take_offsets(list(range(last - len(rows), last))).with_row_id().to_arrow()
            self._flush()
        row_ids = written.column("_rowid").to_pylist()
        if not written.select(schema.names).cast(schema).equals(table):
            raise TrinityError(f"The archive at {base.lance_uri()} does not return what was written.")
        return {row.experience_id: row_id for row, row_id in zip(rows, row_ids, strict=True)}

    def count(self) -> int:
        """Return the number of rows."""
        with in_our_words("read"):
            return int(self._table.count_rows())

    def archive_rows(self) -> Iterator[list[tuple[int, int]]]:
        """Yield row and experience ids of all rows, SCAN_ROWS at a time."""
        with in_our_words("read"):
            scan = self._table.search().select(["experience_id"]).with_row_id(True).limit(None)
            for part in scan.to_batches(SCAN_ROWS):
                row_ids, ids = part.column("_rowid"), part.column("experience_id")
                yield list(zip(row_ids.to_pylist(), ids.to_pylist(), strict=True))

    def remove(self, row_ids: Sequence[int]) -> None:
        """Delete rows and their data permanently."""
        with in_our_words("written"):
            for start in range(0, len(row_ids), SCAN_ROWS):
                chosen = ", ".join(map(str, row_ids[start : start + SCAN_ROWS]))
                self._table.delete(f"_rowid IN ({chosen})")
            self._flush()

    def has_many_files(self) -> bool:
        """Whether there are enough small files for a merge to pay off."""
        with in_our_words("read"):
            return bool(self._table.stats()["fragment_stats"]["num_small_fragments"] >= MERGE_FILES)

    def merge_files(self) -> None:
        """Merge small files into large ones."""
        with in_our_words("written"):
            # Small files are deleted only after the large ones are durable.
            self._table.optimize(cleanup_older_than=KEEP_ALL)
            self._flush()
            self._table.optimize(cleanup_older_than=KEEP_NEWEST)

    def _flush(self) -> None:
        """Flush new files in the table's folder to disk, which Lance does not do."""
        if self._folder is None:
            return
        new = {path: _stamp(path) for path in self._folder.rglob("*") if path.is_file()}
        for path in new:
            if self._flushed.get(path) != new[path]:
                durable.flush(path)
        for folder in (self._folder, *(path for path in self._folder.iterdir() if path.is_dir())):
            durable.flush(folder)
        if not self._flushed:  # the table and the archive's folder may be new
            durable.flush(self._folder.parent)
            durable.flush(self._folder.parent.parent)
        self._flushed = new


def _open(uri: str, name: str) -> Any:
    """Return a table in its state at the first access or the last refresh in this process."""
    missing = (
        f"There is no table {name} in the archive at {uri} (TRINITY_DB_LANCE_URI sets the place; a copied "
        "store loses it when its original deletes the run)."
    )
    if "://" not in uri and not Path(uri, f"{name}.lance").is_dir():  # before Lance creates the folder
        raise NotFound(missing)
    try:
        return _table(uri, name)
    except ValueError as error:  # Lance distinguishes a missing table from a damaged one only in this way
        raise NotFound(missing) from error
    except (OSError, RuntimeError) as error:
        raise _unusable("read", error) from error


@cache
def connection(uri: str) -> Any:
    """Return the process's connection to the Lance tables at a place."""
    import lancedb

    session = lancedb.Session(
        index_cache_size_bytes=INDEX_CACHE_BYTES, metadata_cache_size_bytes=METADATA_CACHE_BYTES
    )
    return lancedb.connect(uri, session=session)


@cache
def _table(uri: str, name: str) -> Any:
    return connection(uri).open_table(name)


def _take(table: Any, archive_rows: Mapping[int, int]) -> dict[int, bytes]:
    """Read the bytes of existing rows in one read, ignoring rows of other experiences."""
    taken = (
        table.take_row_ids(list(archive_rows.values()))
        .select(["experience_id", "data"])
        .with_row_id()
        .to_arrow()
    )
    columns = (taken.column(name).to_pylist() for name in ("experience_id", "_rowid", "data"))
    return {id: data for id, row_id, data in zip(*columns, strict=True) if archive_rows.get(id) == row_id}


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@contextmanager
def in_our_words(done: str) -> Iterator[None]:
    """Translate Lance's errors into TrinityError."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise _unusable(done, error) from error


def _unusable(done: str, error: Exception) -> TrinityError:
    reason = " ".join(str(error).split()).removeprefix("lance error: ")
    return TrinityError(
        f"The archive at {base.lance_uri()} cannot be {done}: {reason:.200} "
        "(TRINITY_DB_LANCE_URI sets the place)"
    )
