"""Dead letters: rows that processing steps could not judge. List them, and return them to the steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import psycopg

from trinity_db.errors import TrinityError
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.typed_rows import FailedRow
from trinity_db.store import pruning, runs

GROUPS = 200  # per transaction; draws wait for it


@dataclass(frozen=True)
class Retried:
    """Result of retrying dead letters."""

    rows: int
    """Rows returned to the processors."""
    groups: int
    """Rollout groups of these rows."""
    left: Mapping[str, int]
    """Number of rows that stay dropped, by obstacle."""


def failures(tx: Transaction, run: str, limit: int) -> list[FailedRow]:
    """List the dead letters of a run, latest first."""
    return cast(list[FailedRow], tx.execute(query("list_failures"), {"run": run, "limit": limit}).fetchall())


def retry(database: Database, run: runs.Run, progress: Callable[[int], None] = lambda rows: None) -> Retried:
    """Return every dead letter without an obstacle to the stage that gave it up.

    If the group processor dropped the row's group, the group becomes complete again and waits for the row.
    Each transaction handles some groups; an interrupted call can be repeated and continues.

    Args:
        progress: called with the number of rows so far.

    Raises:
        TrinityError: if the login lacks the privilege.
    """
    rows = groups = after = 0
    try:
        while True:
            last, more, taken = database.retry(partial(_retry_some, database, run, after))
            if last is None:
                break
            rows, groups, after = rows + more, groups + taken, last
            progress(rows)
    except TrinityError as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        raise TrinityError(
            f"This login may not give rows back ({error.__cause__.diag.message_primary}): only the owner of "
            "the tables may; set TRINITY_DB_URL to the owner's URL."
        ) from error
    with database.transaction(read_only=True) as tx:
        obstacles = tx.execute(query("count_failures_by_obstacle"), {"run": run.name})
        return Retried(rows, groups, {row["obstacle"]: row["rows"] for row in obstacles})


def _retry_some(database: Database, run: runs.Run, after: int) -> tuple[int | None, int, int]:
    """Run one transaction; returns the last group (None if there was none), rows and groups."""
    with database.transaction() as tx:
        pruning.hold_archive(tx, run.id)
        tx.execute(query("hold_draws"), {"run_id": run.id})  # before groups, the lock order of draws
        picked = tx.execute(query("next_failed_groups"), {"run": run.name, "after": after, "limit": GROUPS})
        group_ids = [row["id"] for row in picked]
        if not group_ids:
            return None, 0, 0
        values = {"run": run.name, "run_id": run.id, "group_ids": group_ids}
        tx.execute(query("lock_failed_members"), values)
        returned = tx.execute(query("retry_failures"), values).rowcount
        returned += tx.execute(query("retry_priorities"), values).rowcount
        returned += tx.execute(query("retry_syntheses"), values).rowcount
        tx.execute(query("reopen_dropped_groups"), values)
        runs.announce(tx, run.id)
    return group_ids[-1], returned, len(group_ids)
