"""Payloads: their bytes in Postgres while they are hot, in the archive once their rows are done with.

Readers come here and need not know where the bytes are. Bytes move in one direction: a payload's row has them
until they are safe in Lance, and from then on the id of their Lance row. Rows that an archiver left in Lance
without a pointer, because it died or was replaced, are orphans and are removed.

A Lance table belongs to the store instance that made it, which alone appends to it, merges its files and
removes rows. A copy of the store points to rows in it too: it reads them, and archives into its own table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from uuid import UUID

from psycopg.rows import DictRow

from trinity_db import archive, arrays
from trinity_db.database import Database, Transaction
from trinity_db.errors import LeaseLost, NotFound
from trinity_db.schema.queries import query
from trinity_db.store import instances, workers


@dataclass(frozen=True)
class Lease:
    """What the one archiver of a run in this store holds."""

    run_id: int
    store: UUID
    """The instance that the table belongs to."""
    number: int
    """Of the archive, among those of the run."""
    table: str
    """Name of the Lance table."""
    worker_id: int
    attempt: int
    has_rows: bool
    """Whether anything was archived when it was taken."""


@dataclass(frozen=True)
class Archivable:
    """Experiences whose payloads may be archived."""

    ids: list[int]
    is_full: bool
    """Whether there may be more of them than were asked for."""


def read(database: Database, ids: Sequence[int]) -> dict[int, arrays.Payload]:
    """The payloads of experiences that have one, by id.

    Raises: as `select`.
    """
    rows = packed(database, ids)
    return {row["experience_id"]: arrays.decode(row["codec"], row["data"], row["num_tokens"]) for row in rows}


def packed(database: Database, ids: Sequence[int]) -> list[DictRow]:
    """The same as they are stored: codec, num_tokens and data of each.

    Raises: as `select`.
    """
    return select(database, "read_payloads", {"ids": list(ids)})


def select(database: Database, name: str, values: Mapping[str, Any]) -> list[DictRow]:
    """The rows of a query with the columns of `read_payloads`, with data from Postgres or the archive.

    The archive is read after the transaction, since the server ends a transaction that stands still for long.
    Nothing is lost in between, since pointers to the archive never change.

    Raises:
        NotFound: bytes were pruned, or are not where they should be in the archive.
        TrinityError: the archive cannot be read.
    """
    with database.transaction() as tx:
        rows = tx.execute(query(name), values, binary=True).fetchall()
        _none_is_pruned(rows)
        pointers = {row["experience_id"]: row.pop("archive_row") for row in rows}
        archive_rows = {id: row_id for id, row_id in pointers.items() if row_id is not None}
        away = {"ids": list(archive_rows)}
        tables = tx.execute(query("archived_payloads"), away).fetchall() if archive_rows else []
    found: dict[int, bytes] = {}
    for table in tables:
        found |= fetch(table["name"], {id: archive_rows[id] for id in table["ids"]})
    for row in rows:
        row["data"] = found.get(row["experience_id"], row["data"])
    return rows


def _none_is_pruned(rows: Sequence[DictRow]) -> None:
    moments = {row["experience_id"]: row.pop("pruned_at") for row in rows}
    if pruned := [id for id, moment in moments.items() if moment is not None]:
        others = f" and of {len(pruned) - 1} others" if len(pruned) > 1 else ""
        raise NotFound(
            f"The arrays of experience {pruned[0]}{others} were pruned on {moments[pruned[0]]:%Y-%m-%d} "
            "(trinity-db prune) and cannot be read any more; text, reward and history stay."
        )


def fetch(table: str | None, archive_rows: Mapping[int, int]) -> dict[int, bytes]:
    """What one Lance table has, by experience id.

    Args:
        table: its name; None where the store does not know it.
        archive_rows: rows of the table, by experience id.

    Raises:
        NotFound: bytes are not where they should be.
        TrinityError: the archive cannot be read.
    """
    found = archive.read(table, archive_rows) if table else {}
    if missing := [id for id in archive_rows if id not in found]:
        others = f" and of {len(missing) - 1} others" if len(missing) > 1 else ""
        raise NotFound(
            f"The arrays of experience {missing[0]}{others} are not in the archive "
            f"(table {table or 'unknown'}); TRINITY_DB_LANCE_URI says where it is."
        )
    return found


def claim_archive(tx: Transaction, run_id: int, worker_id: int, lease_seconds: float) -> Lease | None:
    """Become the run's one archiver in this store; None while another one is.

    Raises:
        TrinityError: the store is in another place than it was, and this login may not say so.
    """
    store = instances.identify(tx).id
    values = {"run_id": run_id, "store": store, "worker_id": worker_id, "lease_seconds": lease_seconds}
    tx.execute(query("make_archive"), values)
    row = tx.execute(query("claim_archive"), values).fetchone()
    if row is None:
        return None
    return Lease(run_id, store, row["number"], row["name"], worker_id, row["attempt"], row["num_rows"] > 0)


def archivable(tx: Transaction, run_id: int, floor: int, max_rows: int, max_bytes: int) -> Archivable:
    """The next payloads, by experience id and from one on, that may be archived; one where there are any."""
    values = {"run_id": run_id, "floor": floor, "limit": max_rows}
    rows = tx.execute(query("archivable_payloads"), values).fetchall()
    ends = list(accumulate(row["bytes"] for row in rows))
    chosen = [row["id"] for row, end in zip(rows, ends, strict=True) if end <= max_bytes]
    chosen = chosen or [row["id"] for row in rows[:1]]
    return Archivable(chosen, is_full=len(chosen) < len(rows) or len(rows) == max_rows)


def archive_floor(tx: Transaction, run_id: int, floor: int) -> int:
    """The id, from one on, below which no row of the run that can be seen has anything left to archive."""
    row = tx.execute(query("archive_floor"), {"run_id": run_id, "floor": floor}).fetchone()
    return row["id"] if row else floor


def to_archive(tx: Transaction, ids: Sequence[int]) -> list[archive.Row]:
    """Payloads whose bytes are in Postgres, with what people ask about them."""
    rows = tx.execute(query("rows_to_archive"), {"ids": list(ids)}, binary=True).fetchall()
    found = [arrays.decode(row["codec"], row["data"], row["num_tokens"]) for row in rows]
    return [
        archive.Row(**row, token_ids=payload.token_ids, action_mask=payload.action_mask)
        for row, payload in zip(rows, found, strict=True)
    ]


def move(tx: Transaction, lease: Lease, archive_rows: Mapping[int, int], num_bytes: int) -> None:
    """The bytes of these experiences are safe in Lance, in these rows: let go of them here.

    Raises:
        LeaseLost: another archiver has the lease; nothing is moved.
    """
    _hold(tx, lease)
    place = {"run_id": lease.run_id, "number": lease.number}
    values = place | {"ids": list(archive_rows), "archive_rows": list(archive_rows.values())}
    moved = tx.execute(query("archive_payloads"), values).rowcount
    tx.execute(query("count_archived"), place | {"rows": moved, "bytes": num_bytes})


def num_archived(tx: Transaction, lease: Lease) -> int:
    """How many payloads of the run were archived in this table.

    Raises:
        LeaseLost: another archiver has the lease.
    """
    return _hold(tx, lease)


def orphans(tx: Transaction, lease: Lease, archive_rows: Sequence[tuple[int, int]]) -> list[int]:
    """Which rows of the Lance table, given as row and experience id, no payload points to, or ever will.

    The rows must have been read after the lease was taken, and none of them be on its way to a `move`.

    Raises:
        LeaseLost: another archiver has the lease, and may be about to point to some.
    """
    _hold(tx, lease)
    values = {
        "number": lease.number,
        "ids": [id for _, id in archive_rows],
        "archive_rows": [row_id for row_id, _ in archive_rows],
    }
    return [row["archive_row"] for row in tx.execute(query("archive_orphans"), values)]


def archives(tx: Transaction, run_id: int, store: UUID) -> list[tuple[str, bool]]:
    """The Lance tables of a run by name, and whether this store instance writes them."""
    rows = tx.execute(query("archives_of_run"), {"run_id": run_id, "store": store})
    return [(row["name"], row["is_own"]) for row in rows]


def _hold(tx: Transaction, lease: Lease) -> int:
    """Let no other worker become the archiver before this transaction ends; how many payloads were archived.

    The server may have been replaced by a copy of it since the lease was taken: then the table is another's.
    """
    workers.hold_place(tx, lease.worker_id)
    values = {"store": instances.identify(tx).id, "run_id": lease.run_id, "worker_id": lease.worker_id}
    row = tx.execute(query("hold_archive"), values | {"attempt": lease.attempt}).fetchone()
    if row is None:
        raise LeaseLost(f"Another worker archives the payloads of run {lease.run_id}.")
    return int(row["num_rows"])
