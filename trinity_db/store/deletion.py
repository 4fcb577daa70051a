"""Delete the rows of a run or a data set in short transactions; can be repeated.

A run that is being deleted is marked (`run.deleting_at`): no process serves it, and no run adopts its rows.
Its own row is deleted last, so an interrupted deletion can be repeated until it completes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
from psycopg.rows import DictRow

from trinity_db.errors import ConfigError
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import RunKind
from trinity_db.store import policies, runs, workers
from trinity_db.store.policies import PolicyVersion

LAST_ID = 2**63 - 1


@dataclass(frozen=True)
class DeletionPart:
    """A kind of rows of a run, deleted in portions with one statement."""

    name: str
    """Name for progress output."""
    statement: str
    size: int
    """Rows per transaction: some tenths of a second, few enough that the locks stall no role."""
    by_id: bool = False
    """Whether it deletes a range of ids, because no index covers all rows of a run."""


PARTS = (
    DeletionPart("batches", "delete_batches", 50),
    DeletionPart("preferences", "delete_preferences", 2_000),
    DeletionPart("experiences", "delete_experiences", 5_000, by_id=True),
    DeletionPart("groups", "delete_groups", 500),
    DeletionPart("marks", "delete_pairings", 10_000),
    DeletionPart("task statistics", "delete_task_stats", 10_000),
    DeletionPart("metrics", "delete_metrics", 10_000),
    DeletionPart("evaluations", "delete_evaluations", 10_000),
    DeletionPart("versions", "delete_versions", 10_000),
)
"""In an order in which no row refers to a deleted one."""


def made_from(tx: Transaction, run: runs.Run) -> dict[str, int]:
    """Number of tasks and responses made from rows of a run; they would lose their origin with it."""
    row = tx.execute(query("made_from"), {"run_id": run.id}).fetchone()
    assert row is not None
    return {name: int(row[name]) for name in ("tasks", "responses")}


def begin(tx: Transaction, run: runs.Run, lease_seconds: float) -> list[PolicyVersion]:
    """Mark a run as being deleted: no role serves it or adopts its rows from now on. Can be repeated.

    Returns:
        its versions whose checkpoints exist.

    Raises:
        ConfigError: if its workers are alive, or other runs have its rows or started from it.
    """
    runs.lock_tasksets(tx, [run.name])  # blocks adoption; see adopt_experiences
    if run.kind == RunKind.TRAIN:
        runs.hold(tx, run)  # blocks adoption, too
        workers.all_gone(tx, run, lease_seconds, "delete it")
    dependents = tx.execute(query("dependent_runs"), {"run_id": run.id, "name": run.name}).fetchall()
    if dependents:
        names = ", ".join(f"'{row['name']}'" for row in dependents)
        uses = {"train on rows of it": "adopts", "started from a checkpoint of it": "starts"}
        why = " or ".join(use for use, column in uses.items() if any(row[column] for row in dependents))
        raise ConfigError(f"'{run.name}' is not deleted: other runs {why} ({names}); delete them first.")
    tx.execute(query("begin_deletion"), {"run_id": run.id})
    runs.announce(tx, run.id)
    return policies.with_checkpoint(tx, run.id)


def delete_rows(
    database: Database, run: runs.Run, progress: Callable[[str, int], None] = lambda name, count: None
) -> dict[str, int]:
    """Delete all rows of a run marked by `begin`, except the run itself; returns the number per part.

    Raises:
        ConfigError: if another run has adopted its rows meanwhile. Can be repeated once that run is gone.
    """
    deleted = {}
    for part in PARTS:
        deleted[part.name] = 0
        for values in _ranges(database, part):
            while True:
                count = _delete(database, run, part, values)
                deleted[part.name] += count
                progress(part.name, deleted[part.name])
                if part.by_id or count < part.size:
                    break
    return deleted


def finish(tx: Transaction, run: runs.Run) -> None:
    """Delete the run itself, with its settings and workers; its name becomes free."""
    tx.execute(query("delete_run"), {"run_id": run.id})


def empty(tx: Transaction, run_id: int) -> None:
    """Delete all rows of a run with few rows, all disposable, in the caller's transaction."""
    for part in PARTS:
        tx.execute(query(part.statement), {"run_id": run_id, "limit": None, "after": 0, "until": LAST_ID})


NEXT_EXPERIENCE = "next_experience"
"""Statement for `ranges` over ids of experiences; pruning uses it, too."""


def ranges(database: Database, next_row: str, size: int) -> Iterator[int]:
    """Yield the ids after which ranges of ids begin, up to the highest id of any run at the start.

    Gaps are skipped: ids copied from another run may be far apart.

    Args:
        next_row: statement that returns the next id.
    """

    def look() -> DictRow:
        with database.transaction() as tx:
            row = tx.execute(query(next_row), {"after": after}).fetchone()
        assert row is not None
        return row

    after, last = 0, None
    while (row := database.retry(look))["id"] is not None:
        last = row["last"] if last is None else last
        if row["id"] > last:
            return
        yield row["id"] - 1
        after = row["id"] - 1 + size


def _ranges(database: Database, part: DeletionPart) -> Iterator[dict[str, int]]:
    if not part.by_id:
        yield {"limit": part.size}
        return
    for after in ranges(database, NEXT_EXPERIENCE, part.size):
        yield {"after": after, "until": after + part.size}


def _delete(database: Database, run: runs.Run, part: DeletionPart, values: dict[str, int]) -> int:
    def decide() -> int:
        with database.transaction() as tx:
            return tx.execute(query(part.statement), {"run_id": run.id, **values}).rowcount

    try:
        return database.retry(decide)
    except psycopg.errors.ForeignKeyViolation as error:
        raise ConfigError(f"'{run.name}' is not deleted: another run has adopted rows of it.") from error
