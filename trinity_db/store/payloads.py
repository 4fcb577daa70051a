"""Payloads: their bytes are in Postgres while hot, and in the archive once their rows are finished.

Readers call this module and need not know where the bytes are. Bytes move in one direction: a payload's row
holds them until they are safe in Lance, and from then on it holds the id of their Lance row. Rows left in
Lance without a pointer, by an archiver that died or was replaced, are orphans and are removed.

A Lance table belongs to the store instance that created it; only that instance appends, compacts and removes
rows. A copy of the store also points to rows in it: it reads them, and archives into its own table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from uuid import UUID

from psycopg.rows import DictRow

from trinity_db.arrays import archive, codec
from trinity_db.errors import LeaseLost, NotFound
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.store import instances, workers


@dataclass(frozen=True)
class Lease:
    """Lease of a run's only archiver in this store."""

    run_id: int
    store: UUID
    """Instance that owns the table."""
    number: int
    """Number of the archive within the run."""
    table: str
    """Name of the Lance table."""
    worker_id: int
    attempt: int
    has_rows: bool
    """Whether anything was archived when the lease was taken."""


@dataclass(frozen=True)
class Archivable:
    """Experiences whose payloads may be archived."""

    ids: list[int]
    is_full: bool
    """Whether there may be more than were requested."""


def read(database: Database, ids: Sequence[int]) -> dict[int, codec.Payload]:
    """Read the payloads of experiences that have one, by id.

    Raises: see `select`.
    """
    rows = packed(database, ids)
    return {row["experience_id"]: codec.decode(row["codec"], row["data"], row["num_tokens"]) for row in rows}


def packed(database: Database, ids: Sequence[int]) -> list[DictRow]:
    """Read stored payloads without decoding them: codec, num_tokens and data.

    Raises: see `select`.
    """
    return select(database, "read_payloads", {"ids": list(ids)})


def select(database: Database, name: str, values: Mapping[str, Any]) -> list[DictRow]:
    """Run a query with the columns of `read_payloads`, and fill in data from Postgres or the archive.

    The archive is read after the transaction, since the server ends transactions that are idle for long.
    Nothing is lost in between, since pointers to the archive never change.

    Raises:
        NotFound: if bytes were pruned, or are missing from the archive.
        TrinityError: if the archive cannot be read.
    """
    with database.transaction() as tx:
        read = _stored(tx, name, values)
        _none_is_pruned(read.rows)
    fetched: dict[int, bytes] = {}
    for table, archive_rows in read.archived.items():
        fetched |= fetch(table, archive_rows)
    for row in read.rows:
        row["data"] = fetched.get(row["experience_id"], row["data"])
    return read.rows


@dataclass(frozen=True)
class Stored:
    """Payloads as the database has them."""

    rows: list[DictRow]
    """With data None if it is in the archive."""
    archived: dict[str | None, dict[int, int]]
    """Rows of each Lance table, by experience id. None: the store does not know the table."""


def stored(tx: Transaction, ids: Sequence[int]) -> Stored:
    """Read the payloads of experiences that have one; pruned ones have neither data nor an archive row."""
    return _stored(tx, "read_payloads", {"ids": list(ids)})


def _stored(tx: Transaction, name: str, values: Mapping[str, Any]) -> Stored:
    rows = tx.execute(query(name), values, binary=True).fetchall()
    pointers = {row["experience_id"]: row.pop("archive_row") for row in rows}
    archive_rows = {id: row_id for id, row_id in pointers.items() if row_id is not None}
    away = {"ids": list(archive_rows)}
    tables = tx.execute(query("archived_payloads"), away).fetchall() if archive_rows else []
    return Stored(rows, {table["name"]: {id: archive_rows[id] for id in table["ids"]} for table in tables})


def _none_is_pruned(rows: Sequence[DictRow]) -> None:
    moments = {row["experience_id"]: row.pop("pruned_at") for row in rows}
    if pruned := [id for id, moment in moments.items() if moment is not None]:
        others = f" and of {len(pruned) - 1} others" if len(pruned) > 1 else ""
        raise NotFound(
            f"The arrays of experience {pruned[0]}{others} were pruned on {moments[pruned[0]]:%Y-%m-%d} "
            "(trinity-db prune) and can no longer be read; text, reward and history stay."
        )


def fetch(table: str | None, archive_rows: Mapping[int, int]) -> dict[int, bytes]:
    """Read rows of one Lance table, by experience id.

    Args:
        table: its name; None if the store does not know it.
        archive_rows: rows of the table, by experience id.

    Raises:
        NotFound: if bytes are missing.
        TrinityError: if the archive cannot be read.
    """
    data = archive.read(table, archive_rows) if table else {}
    if missing := [id for id in archive_rows if id not in data]:
        others = f" and of {len(missing) - 1} others" if len(missing) > 1 else ""
        raise NotFound(
            f"The arrays of experience {missing[0]}{others} are not in the archive "
            f"(table {table or 'unknown'}); TRINITY_DB_LANCE_URI says where it is."
        )
    return data


def claim_archive(tx: Transaction, run_id: int, worker_id: int, lease_seconds: float) -> Lease | None:
    """Become the run's only archiver in this store; None if there is another one.

    Raises:
        TrinityError: if the store's place has changed, and this login may not record it.
    """
    store = instances.identify(tx).id
    values = {"run_id": run_id, "store": store, "worker_id": worker_id, "lease_seconds": lease_seconds}
    tx.execute(query("make_archive"), values)
    row = tx.execute(query("claim_archive"), values).fetchone()
    if row is None:
        return None
    return Lease(run_id, store, row["number"], row["name"], worker_id, row["attempt"], row["num_rows"] > 0)


def archivable(tx: Transaction, run_id: int, floor: int, max_rows: int, max_bytes: int) -> Archivable:
    """Select the next payloads to archive, from experience id `floor`; at least one if any are due."""
    values = {"run_id": run_id, "floor": floor, "limit": max_rows}
    rows = tx.execute(query("archivable_payloads"), values).fetchall()
    ends = list(accumulate(row["bytes"] for row in rows))
    chosen = [row["id"] for row, end in zip(rows, ends, strict=True) if end <= max_bytes]
    chosen = chosen or [row["id"] for row in rows[:1]]
    return Archivable(chosen, is_full=len(chosen) < len(rows) or len(rows) == max_rows)


def archive_floor(tx: Transaction, run_id: int, floor: int) -> int:
    """Return the lowest id >= `floor` of a visible row that still has something to archive."""
    row = tx.execute(query("archive_floor"), {"run_id": run_id, "floor": floor}).fetchone()
    return row["id"] if row else floor


def to_archive(tx: Transaction, ids: Sequence[int]) -> list[archive.ArchivedPayload]:
    """Read payloads whose bytes are in Postgres, with the metadata that the archive stores."""
    rows = tx.execute(query("rows_to_archive"), {"ids": list(ids)}, binary=True).fetchall()
    decoded = [codec.decode(row["codec"], row["data"], row["num_tokens"]) for row in rows]
    return [
        archive.ArchivedPayload(**row, token_ids=payload.token_ids, action_mask=payload.action_mask)
        for row, payload in zip(rows, decoded, strict=True)
    ]


def move(tx: Transaction, lease: Lease, archive_rows: Mapping[int, int], num_bytes: int) -> None:
    """Replace the bytes of experiences with their rows in Lance, where they are safe.

    Raises:
        LeaseLost: if another archiver has the lease; nothing is changed.
    """
    _hold(tx, lease)
    key = {"run_id": lease.run_id, "number": lease.number}
    values = key | {"ids": list(archive_rows), "archive_rows": list(archive_rows.values())}
    moved = tx.execute(query("archive_payloads"), values).rowcount
    tx.execute(query("count_archived"), key | {"rows": moved, "bytes": num_bytes})


def num_archived(tx: Transaction, lease: Lease) -> int:
    """Count the payloads of the run that were archived in this table.

    Raises:
        LeaseLost: if another archiver has the lease.
    """
    return _hold(tx, lease)


def orphans(tx: Transaction, lease: Lease, archive_rows: Sequence[tuple[int, int]]) -> list[int]:
    """Return rows of the Lance table (given as row and experience id) that no payload will ever point to.

    The rows must have been read after the lease was taken, and none of them may be part of a pending `move`.

    Raises:
        LeaseLost: if another archiver has the lease; it may be about to point to some of them.
    """
    _hold(tx, lease)
    values = {
        "number": lease.number,
        "ids": [id for _, id in archive_rows],
        "archive_rows": [row_id for row_id, _ in archive_rows],
    }
    return [row["archive_row"] for row in tx.execute(query("archive_orphans"), values)]


def archives(tx: Transaction, run_id: int, store: UUID) -> list[tuple[str, bool]]:
    """List the Lance tables of a run, and whether this store instance writes them."""
    rows = tx.execute(query("archives_of_run"), {"run_id": run_id, "store": store})
    return [(row["name"], row["is_own"]) for row in rows]


def _hold(tx: Transaction, lease: Lease) -> int:
    """Block replacement of the archiver until this transaction ends; returns the number of archived payloads.

    The server may have been replaced with a copy since the lease was taken; the table is not the copy's.
    """
    workers.hold_place(tx, lease.worker_id)
    values = {"store": instances.identify(tx).id, "run_id": lease.run_id, "worker_id": lease.worker_id}
    row = tx.execute(query("hold_archive"), values | {"attempt": lease.attempt}).fetchone()
    if row is None:
        raise LeaseLost(f"Another worker archives the payloads of run {lease.run_id}.")
    return int(row["num_rows"])
