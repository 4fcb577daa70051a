"""The archive: payloads in Lance tables, beside the store or where TRINITY_DB_LANCE_URI says.

It knows rows and nothing of Postgres, which says which row of which table holds a payload
(`store.payloads`). A table has one writer at a time, a run's archiver. Any process reads, at any time: row
ids are stable, and a reader whose version of a table was tidied away looks again at the newest. Lance must
not be used across a fork, and is imported here only when a table is opened.
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

from trinity_db import durable, settings
from trinity_db.errors import NotFound, TrinityError
from trinity_db.schema.lance import payload_schema

METADATA_CACHE_BYTES = 64 << 20  # the places of a million rows take some 10 MB; Lance's default is a gigabyte
INDEX_CACHE_BYTES = 1 << 20  # there are no indexes; the default is six gigabytes
SCAN_ROWS = 10_000  # at a time
# A file has thousands of rows, so reading slows down only with many files. Each merge writes again all rows
# that are not in a file of a million rows yet.
MERGE_FILES = 64
KEEP_ALL = timedelta(days=36_500)
KEEP_NEWEST = timedelta(milliseconds=1)
LOOKS = 3  # of a reader: its files may be merged between two looks, and a merge takes longer than a look


@dataclass(frozen=True)
class Row:
    """A payload on its way to the archive, with what others read there (`schema.lance`)."""

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
    """The bytes of payloads, by experience id; those that are not there are left out.

    Args:
        archive_rows: row ids in the table, by experience id.

    Raises:
        NotFound: there is no such table.
        TrinityError: it cannot be read.
    """
    table, found = _open(settings.lance_uri(), name), dict[int, bytes]()
    for look in range(LOOKS):
        try:
            found = _take(table, archive_rows)
        except (OSError, RuntimeError) as error:
            if look == LOOKS - 1:
                raise _unusable("read", error) from error
        if len(found) == len(archive_rows):
            break
        with in_our_words("read"):
            table.checkout_latest()
    return found


def exists(name: str) -> bool:
    """Whether there is such a table.

    Raises:
        TrinityError: the archive cannot be read.
    """
    try:
        _open(settings.lance_uri(), name)
    except NotFound:
        return False
    return True


def folder(name: str) -> Path | None:
    """Where a table's files lie; None where they are in no folder of this machine."""
    uri = settings.lance_uri()
    place = Path(uri, f"{name}.lance")
    return place if "://" not in uri and place.is_dir() else None


def drop(name: str) -> None:
    """Remove a table with all its files, where there is one.

    Raises:
        TrinityError: it cannot be removed.
    """
    uri = settings.lance_uri()
    with in_our_words("written"):
        connection(uri).drop_table(name, ignore_missing=True)
    _table.cache_clear()


class Writer:
    """The table of one run, for the process that writes it."""

    def __init__(self, name: str, must_exist: bool) -> None:
        """Open the table, or make it where it may be missing.

        Raises:
            NotFound: it must exist and does not.
            TrinityError: it cannot be used.
        """
        uri = settings.lance_uri()
        self._folder = None if "://" in uri else Path(uri, f"{name}.lance")
        self._flushed: dict[Path, tuple[int, int]] = {}
        """Size and time of files that survive a power cut."""
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
            missing = [one for one in payload_schema() if one.name not in self._table.schema.names]
        if missing:  # an earlier release made the table
            with in_our_words("written"):
                self._table.add_columns(missing)
                self._flush()

    def append(self, rows: Sequence[Row]) -> dict[int, int]:
        """Add rows in one version, read them back, flush; returns row ids by experience id.

        When this returns, the rows survive a power cut. An object store keeps what it has acknowledged.

        Raises:
            TrinityError: they cannot be written, or are not what was written. Some may be there all the same.
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
            raise TrinityError(f"The archive at {settings.lance_uri()} does not give back what it was given.")
        return {row.experience_id: row_id for row, row_id in zip(rows, row_ids, strict=True)}

    def count(self) -> int:
        """How many rows there are."""
        with in_our_words("read"):
            return int(self._table.count_rows())

    def archive_rows(self) -> Iterator[list[tuple[int, int]]]:
        """Row and experience ids of all rows, SCAN_ROWS at a time."""
        with in_our_words("read"):
            scan = self._table.search().select(["experience_id"]).with_row_id(True).limit(None)
            for part in scan.to_batches(SCAN_ROWS):
                row_ids, ids = part.column("_rowid"), part.column("experience_id")
                yield list(zip(row_ids.to_pylist(), ids.to_pylist(), strict=True))

    def remove(self, row_ids: Sequence[int]) -> None:
        """Remove rows for good."""
        with in_our_words("written"):
            for start in range(0, len(row_ids), SCAN_ROWS):
                chosen = ", ".join(map(str, row_ids[start : start + SCAN_ROWS]))
                self._table.delete(f"_rowid IN ({chosen})")
            self._flush()

    def has_many_files(self) -> bool:
        """Whether there are so many small files that merging them is worth it."""
        with in_our_words("read"):
            return bool(self._table.stats()["fragment_stats"]["num_small_fragments"] >= MERGE_FILES)

    def merge_files(self) -> None:
        """Make few large files of many small ones."""
        with in_our_words("written"):
            # The small files go only when the large ones survive a power cut.
            self._table.optimize(cleanup_older_than=KEEP_ALL)
            self._flush()
            self._table.optimize(cleanup_older_than=KEEP_NEWEST)

    def _flush(self) -> None:
        """Flush what is new in the table's folder. Lance leaves that to the system."""
        if self._folder is None:
            return
        new = {path: _stamp(path) for path in self._folder.rglob("*") if path.is_file()}
        for path in new:
            if self._flushed.get(path) != new[path]:
                durable.flush(path)
        for folder in (self._folder, *(path for path in self._folder.iterdir() if path.is_dir())):
            durable.flush(folder)
        if not self._flushed:  # the table may be new, and the archive's folder too
            durable.flush(self._folder.parent)
            durable.flush(self._folder.parent.parent)
        self._flushed = new


def _open(uri: str, name: str) -> Any:
    """A table, as new as it was when this process first asked for it, or looked again."""
    missing = (
        f"There is no table {name} in the archive at {uri} (TRINITY_DB_LANCE_URI says where it is; a copied "
        "store loses it when its original deletes the run)."
    )
    if "://" not in uri and not Path(uri, f"{name}.lance").is_dir():  # before Lance makes a folder to look in
        raise NotFound(missing)
    try:
        return _table(uri, name)
    except ValueError as error:  # the only way in which Lance tells a missing table from a damaged one
        raise NotFound(missing) from error
    except (OSError, RuntimeError) as error:
        raise _unusable("read", error) from error


@cache
def connection(uri: str) -> Any:
    """To the Lance tables at a place, one for the process."""
    import lancedb

    session = lancedb.Session(
        index_cache_size_bytes=INDEX_CACHE_BYTES, metadata_cache_size_bytes=METADATA_CACHE_BYTES
    )
    return lancedb.connect(uri, session=session)


@cache
def _table(uri: str, name: str) -> Any:
    return connection(uri).open_table(name)


def _take(table: Any, archive_rows: Mapping[int, int]) -> dict[int, bytes]:
    """The bytes of the rows that are there, in one read. A row of another experience does not count."""
    taken = (
        table.take_row_ids(list(archive_rows.values()))
        .select(["experience_id", "data"])
        .with_row_id()
        .to_arrow()
    )
    columns = (taken.column(name).to_pylist() for name in ("experience_id", "_rowid", "data"))
    return {id: data for id, row_id, data in zip(*columns, strict=True) if archive_rows.get(id) == row_id}


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@contextmanager
def in_our_words(done: str) -> Iterator[None]:
    """Lance's errors as a TrinityError."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise _unusable(done, error) from error


def _unusable(done: str, error: Exception) -> TrinityError:
    reason = " ".join(str(error).split()).removeprefix("lance error: ")
    return TrinityError(
        f"The archive at {settings.lance_uri()} cannot be {done}: {reason:.200} "
        "(TRINITY_DB_LANCE_URI says where it is)"
    )
