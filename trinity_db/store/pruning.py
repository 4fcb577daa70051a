"""Deletes payloads, calls, metrics and processing records that a run needs no more, in short transactions.

A payload goes only if no kept checkpoint can give its row back to be drawn. Its row stays and says when it
was pruned. A prune that was killed can be repeated, and goes on.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import DictRow

from trinity_db.database import Database, Transaction
from trinity_db.errors import TrinityError
from trinity_db.schema.queries import query
from trinity_db.store import deletion, runs


@dataclass(frozen=True)
class Family:
    """Rows of one kind, and the statements that look for them and take them away."""

    name: str
    """What people call them."""
    find: str
    prune: str
    next_row: str
    """Looks for the next of the ids by which it is looked for."""
    size: int
    """Ids that one transaction looks at: some tenths of a second, and few enough that locks stall no role."""


PAYLOADS = Family("payloads", "prunable_payloads", "prune_payloads", deletion.NEXT_EXPERIENCE, 5_000)
CALLS = Family("calls", "prunable_calls", "prune_calls", "next_agent", 500)
"""By the ids of agents, each with some tens of calls."""
METRICS = Family("metrics", "prunable_metrics", "prune_metrics", "next_metric", 10_000)
PROCESSING = Family(
    "processing records", "prunable_processing", "prune_processing", deletion.NEXT_EXPERIENCE, 5_000
)


@dataclass(frozen=True)
class Limits:
    """What may be pruned of a run: what both limits allow."""

    before: datetime | None
    """Written before this moment; None: at any."""
    version: int | None
    """Of this policy version or an older one; None: of any."""
    step: int | None
    """The last trainer step of that version."""


@dataclass(frozen=True)
class Pruned:
    """How much was found, or is gone."""

    rows: int = 0
    bytes: int = 0
    """In Postgres."""
    archived: int = 0
    """How many of the rows have their bytes in the archive."""


def limits(tx: Transaction, run: runs.Run, older_than: timedelta | None, keep_versions: int | None) -> Limits:
    """What these limits mean for a run now."""
    seconds = older_than.total_seconds() if older_than is not None else None
    values = {"run_id": run.id, "seconds": seconds, "keep_versions": keep_versions}
    row = tx.execute(query("pruning_limits"), values).fetchone()
    assert row is not None
    return Limits(**row)


def prune(
    database: Database,
    run: runs.Run,
    family: Family,
    allowed: Limits,
    dry_run: bool,
    progress: Callable[[str, int], None] = lambda name, count: None,
) -> Pruned:
    """Take away what the limits allow of a family; may be repeated.

    Args:
        dry_run: only count it.
        progress: called with the family's name and the number of rows so far.

    Raises:
        TrinityError: the login may not.
    """
    total = Pruned()
    for after in deletion.ranges(database, family.next_row, family.size):
        found = _decide(database, run, family, allowed, after, dry_run)
        total = Pruned(total.rows + found.rows, total.bytes + found.bytes, total.archived + found.archived)
        progress(family.name, total.rows)
    return total


def hold_archive(tx: Transaction, run_id: int) -> None:
    """Until the transaction ends, no array of the run leaves Postgres."""
    tx.execute(query("hold_run_archive"), {"run_id": run_id})


def prune_range(
    tx: Transaction, run_id: int, family: Family, allowed: Limits, after: int, dry_run: bool = False
) -> Pruned:
    """Take away what the limits allow of the rows whose ids are in the one range that begins after an id."""
    values = {"run_id": run_id, "after": after, "until": after + family.size, **asdict(allowed)}
    if family is PAYLOADS and not dry_run:
        hold_archive(tx, run_id)
    found = _find(tx, family, values, hold=not dry_run)
    archived = sum(row["bytes"] is None for row in found)
    if found and not dry_run:
        chosen = values | {"ids": [row["id"] for row in found]}
        if archived:
            tx.execute(query("discount_archived"), chosen)
        tx.execute(query(family.prune), chosen)
    return Pruned(len(found), sum(row["bytes"] or 0 for row in found), archived)


def _decide(
    database: Database, run: runs.Run, family: Family, allowed: Limits, after: int, dry_run: bool
) -> Pruned:
    def decide() -> Pruned:
        with database.transaction() as tx:
            return prune_range(tx, run.id, family, allowed, after, dry_run)

    try:
        return database.retry(decide)
    except TrinityError as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        raise TrinityError(
            f"This login may not prune ({error.__cause__.diag.message_primary}): only the tables' owner "
            "may; say its URL in TRINITY_DB_URL."
        ) from error


def _find(tx: Transaction, family: Family, values: dict[str, Any], hold: bool) -> list[DictRow]:
    if family is not PAYLOADS:
        return tx.execute(query(family.find), values).fetchall()
    # In a statement before: what it waited for has to be seen by the next one.
    oldest = tx.execute(query("hold_oldest_checkpoint" if hold else "oldest_checkpoint"), values).fetchone()
    values = values | {"oldest": oldest["version"] if oldest else None}
    found = tx.execute(query(family.find), values).fetchall()
    if not found or not hold:
        return found
    # A run may be adopting some of these rows. Its copies show once it has let go of their groups.
    ids = [row["id"] for row in found]
    tx.execute(query("hold_groups_of"), {"ids": ids})
    held = set(ids)
    return [row for row in tx.execute(query(family.find), values) if row["id"] in held]
