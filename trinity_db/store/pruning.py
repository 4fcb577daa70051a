"""Delete payloads, calls, metrics and processing records that a run no longer needs, in short transactions.

A payload is deleted only if no kept checkpoint can make its row drawable again. The row stays and records
when its payload was pruned. An interrupted prune can be repeated and continues.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import DictRow

from trinity_db.errors import TrinityError
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.store import deletion, runs


@dataclass(frozen=True)
class Family:
    """Rows of one kind, with the statements that find and delete them."""

    name: str
    """Name for progress output."""
    find: str
    prune: str
    next_row: str
    """Statement that finds the next id for `find`."""
    size: int
    """Ids per transaction: some tenths of a second, few enough that the locks stall no role."""


PAYLOADS = Family("payloads", "prunable_payloads", "prune_payloads", deletion.NEXT_EXPERIENCE, 5_000)
CALLS = Family("calls", "prunable_calls", "prune_calls", "next_agent", 500)
"""Searched by ids of agents, with some tens of calls each."""
METRICS = Family("metrics", "prunable_metrics", "prune_metrics", "next_metric", 10_000)
PROCESSING = Family(
    "processing records", "prunable_processing", "prune_processing", deletion.NEXT_EXPERIENCE, 5_000
)


@dataclass(frozen=True)
class PruneLimits:
    """Rows of a run that may be pruned: they meet both limits."""

    before: datetime | None
    """Written before this time; None: no limit."""
    version: int | None
    """This policy version or older; None: no limit."""
    step: int | None
    """Last trainer step of that version."""


@dataclass(frozen=True)
class PrunedRows:
    """Rows that were found or deleted."""

    rows: int = 0
    bytes: int = 0
    """Bytes in Postgres."""
    archived: int = 0
    """Number of rows whose bytes are in the archive."""


def limits(
    tx: Transaction, run: runs.Run, older_than: timedelta | None, keep_versions: int | None
) -> PruneLimits:
    """Resolve the limits for a run at this time."""
    seconds = older_than.total_seconds() if older_than is not None else None
    values = {"run_id": run.id, "seconds": seconds, "keep_versions": keep_versions}
    row = tx.execute(query("pruning_limits"), values).fetchone()
    assert row is not None
    return PruneLimits(**row)


def prune(
    database: Database,
    run: runs.Run,
    family: Family,
    allowed: PruneLimits,
    dry_run: bool,
    progress: Callable[[str, int], None] = lambda name, count: None,
) -> PrunedRows:
    """Delete the rows of a family within the limits; can be repeated.

    Args:
        dry_run: only count them.
        progress: called with the family's name and the number of rows so far.

    Raises:
        TrinityError: if the login lacks the privilege.
    """
    total = PrunedRows()
    for after in deletion.ranges(database, family.next_row, family.size):
        pruned = _decide(database, run, family, allowed, after, dry_run)
        total = PrunedRows(
            total.rows + pruned.rows, total.bytes + pruned.bytes, total.archived + pruned.archived
        )
        progress(family.name, total.rows)
    return total


def hold_archive(tx: Transaction, run_id: int) -> None:
    """Keep all arrays of the run in Postgres until the transaction ends."""
    tx.execute(query("hold_run_archive"), {"run_id": run_id})


def prune_range(
    tx: Transaction, run_id: int, family: Family, allowed: PruneLimits, after: int, dry_run: bool = False
) -> PrunedRows:
    """Delete the rows within the limits in one range of ids, which begins after an id."""
    values = {"run_id": run_id, "after": after, "until": after + family.size, **asdict(allowed)}
    if family is PAYLOADS and not dry_run:
        hold_archive(tx, run_id)
    rows = _find(tx, family, values, hold=not dry_run)
    archived = sum(row["bytes"] is None for row in rows)
    if rows and not dry_run:
        chosen = values | {"ids": [row["id"] for row in rows]}
        if archived:
            tx.execute(query("discount_archived"), chosen)
        tx.execute(query(family.prune), chosen)
    return PrunedRows(len(rows), sum(row["bytes"] or 0 for row in rows), archived)


def _decide(
    database: Database, run: runs.Run, family: Family, allowed: PruneLimits, after: int, dry_run: bool
) -> PrunedRows:
    def decide() -> PrunedRows:
        with database.transaction() as tx:
            return prune_range(tx, run.id, family, allowed, after, dry_run)

    try:
        return database.retry(decide)
    except TrinityError as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        raise TrinityError(
            f"This login may not prune ({error.__cause__.diag.message_primary}): only the owner of the "
            "tables may; set TRINITY_DB_URL to the owner's URL."
        ) from error


def _find(tx: Transaction, family: Family, values: dict[str, Any], hold: bool) -> list[DictRow]:
    if family is not PAYLOADS:
        return tx.execute(query(family.find), values).fetchall()
    # A separate statement before: the next one must see the changes that it waited for.
    oldest = tx.execute(query("hold_oldest_checkpoint" if hold else "oldest_checkpoint"), values).fetchone()
    values = values | {"oldest": oldest["version"] if oldest else None}
    rows = tx.execute(query(family.find), values).fetchall()
    if not rows or not hold:
        return rows
    # A run may be adopting some of these rows. Its copies are visible once it releases their groups.
    ids = [row["id"] for row in rows]
    tx.execute(query("hold_groups_of"), {"ids": ids})
    held_ids = set(ids)
    return [row for row in tx.execute(query(family.find), values) if row["id"] in held_ids]
