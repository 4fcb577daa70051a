"""Payloads: their bytes in Postgres while they are hot, in the archive once their rows are done with.

Whoever reads one reads it here, and does not notice where it was. Bytes move in one direction, Lance first
and Postgres after: a payload's row has the bytes until they are safe in Lance, and then their row's id
there. What an archiver that died or was replaced has left in Lance without a pointer is an orphan, and is
removed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from psycopg.rows import DictRow

from trinity_db import archive, arrays
from trinity_db.database import Database, Transaction
from trinity_db.errors import LeaseLost, NotFound
from trinity_db.schema.lance import table_name
from trinity_db.schema.queries import query
from trinity_db.store import workers


@dataclass(frozen=True)
class Lease:
    """What a run's one archiver holds."""

    run_id: int
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
    rows = select(database, "read_payloads", {"ids": list(ids)})
    return {row["experience_id"]: arrays.decode(row["codec"], row["data"], row["num_tokens"]) for row in rows}


def select(database: Database, name: str, values: Mapping[str, Any]) -> list[DictRow]:
    """The rows of a query that has the columns of `read_payloads`, with their data wherever it is.

    What is archived is read after the transaction: the server would end one that stands still for as long as
    the archive may take. Nothing is lost in between, since pointers to the archive stay what they are.

    Raises:
        NotFound: bytes are not where they should be in the archive.
        TrinityError: the archive cannot be read.
    """
    with database.transaction() as tx:
        rows = tx.execute(query(name), values, binary=True).fetchall()
        pointers = {row["experience_id"]: row.pop("archive_row") for row in rows}
        archive_rows = {id: row_id for id, row_id in pointers.items() if row_id is not None}
        away = {"ids": list(archive_rows)}
        archived = tx.execute(query("archived_runs"), away).fetchall() if archive_rows else []
    found: dict[int, bytes] = {}
    for run in archived:
        found |= fetch(run, {id: archive_rows[id] for id in run["ids"]})
    for row in rows:
        row["data"] = found.get(row["experience_id"], row["data"])
    return rows


def fetch(run: Mapping[str, Any], archive_rows: Mapping[int, int]) -> dict[int, bytes]:
    """What the archive of one run has, by experience id.

    Args:
        run: its `id`, `name` and `created_at`.
        archive_rows: rows of its table, by experience id.

    Raises:
        NotFound: bytes are not where they should be.
        TrinityError: the archive cannot be read.
    """
    found = archive.read(table_name(run["id"], run["created_at"]), archive_rows)
    if missing := [id for id in archive_rows if id not in found]:
        others = f" and of {len(missing) - 1} others" if len(missing) > 1 else ""
        raise NotFound(
            f"The arrays of experience {missing[0]} of run '{run['name']}'{others} are not in the "
            "archive; TRINITY_DB_LANCE_URI says where it is."
        )
    return found


def claim_archive(tx: Transaction, run_id: int, worker_id: int, lease_seconds: float) -> Lease | None:
    """Become the run's one archiver; None while another one is."""
    values = {"run_id": run_id, "worker_id": worker_id, "lease_seconds": lease_seconds}
    row = tx.execute(query("claim_archive"), values).fetchone()
    return Lease(run_id, worker_id, row["attempt"], row["num_rows"] > 0) if row else None


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
    """The bytes of payloads that are in Postgres."""
    rows = tx.execute(query("read_payloads"), {"ids": list(ids)}, binary=True)
    return [
        archive.Row(row["experience_id"], row["codec"], row["num_tokens"], row["data"])
        for row in rows
        if row["data"] is not None
    ]


def move(tx: Transaction, lease: Lease, archive_rows: Mapping[int, int], num_bytes: int) -> None:
    """The bytes of these experiences are safe in Lance, in these rows: let go of them here.

    Raises:
        LeaseLost: another archiver has the lease; nothing is moved.
    """
    _hold(tx, lease)
    values = {"ids": list(archive_rows), "archive_rows": list(archive_rows.values())}
    moved = tx.execute(query("archive_payloads"), values).rowcount
    tx.execute(query("count_archived"), {"run_id": lease.run_id, "rows": moved, "bytes": num_bytes})


def num_archived(tx: Transaction, lease: Lease) -> int:
    """How many payloads of the run were archived.

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
    values = {"ids": [id for _, id in archive_rows], "archive_rows": [row_id for row_id, _ in archive_rows]}
    return [row["archive_row"] for row in tx.execute(query("archive_orphans"), values)]


def _hold(tx: Transaction, lease: Lease) -> int:
    """Let nobody become the archiver before this transaction ends; how many payloads were archived."""
    workers.hold_place(tx, lease.worker_id)
    values = {"run_id": lease.run_id, "worker_id": lease.worker_id, "attempt": lease.attempt}
    row = tx.execute(query("hold_archive"), values).fetchone()
    if row is None:
        raise LeaseLost(f"Another worker archives the payloads of run {lease.run_id}.")
    return int(row["num_rows"])
