"""Deletes the rows of a run or a data set in short transactions, and may be repeated.

A run that is being deleted is marked (`run.deleting_at`): no process serves it, and no run adopts its rows.
Its own row goes last, so that a deletion that was killed can be repeated, and finishes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
from psycopg.rows import DictRow

from trinity_db.database import Database, Transaction
from trinity_db.errors import ConfigError
from trinity_db.schema.queries import query
from trinity_db.schema.states import RunKind
from trinity_db.store import policies, runs, workers
from trinity_db.store.policies import PolicyVersion

LAST_ID = 2**63 - 1


@dataclass(frozen=True)
class Part:
    """Rows of a run that one statement takes away, some at a time."""

    name: str
    """What people call them."""
    statement: str
    size: int
    """Of one transaction: some tenths of a second, and few enough that their locks stall no role."""
    by_id: bool = False
    """Whether it takes a range of ids, since no index has all rows of a run."""


PARTS = (
    Part("batches", "delete_batches", 50),
    Part("preferences", "delete_preferences", 2_000),
    Part("experiences", "delete_experiences", 5_000, by_id=True),
    Part("groups", "delete_groups", 500),
    Part("marks", "delete_pairings", 10_000),
    Part("task statistics", "delete_task_stats", 10_000),
    Part("metrics", "delete_metrics", 10_000),
    Part("evaluations", "delete_evaluations", 10_000),
    Part("versions", "delete_versions", 10_000),
)
"""In an order in which no row refers to one that is gone."""


def made_from(tx: Transaction, run: runs.Run) -> dict[str, int]:
    """How many tasks and responses were made from rows of a run, and would lose their origin with it."""
    row = tx.execute(query("made_from"), {"run_id": run.id}).fetchone()
    assert row is not None
    return {name: int(row[name]) for name in ("tasks", "responses")}


def begin(tx: Transaction, run: runs.Run, lease_seconds: float) -> list[PolicyVersion]:
    """Say that a run is being deleted; from now on no role serves it or adopts its rows. May be repeated.

    Returns:
        its versions whose checkpoints are there.

    Raises:
        ConfigError: workers of it are alive, or other runs have its rows or started from it. It stays then.
    """
    runs.lock_tasksets(tx, [run.name])  # against adopting; see adopt_experiences
    if run.kind == RunKind.TRAIN:
        runs.hold(tx, run)  # against adopting, too
        workers.all_gone(tx, run, lease_seconds, "delete it")
    found = tx.execute(query("dependent_runs"), {"run_id": run.id, "name": run.name}).fetchall()
    if found:
        names = ", ".join(f"'{row['name']}'" for row in found)
        uses = {"train on rows of it": "adopts", "started from a checkpoint of it": "starts"}
        why = " or ".join(use for use, column in uses.items() if any(row[column] for row in found))
        raise ConfigError(f"'{run.name}' stays: other runs {why} ({names}); delete them first.")
    tx.execute(query("begin_deletion"), {"run_id": run.id})
    runs.announce(tx, run.id)
    return policies.with_checkpoint(tx, run.id)


def delete_rows(
    database: Database, run: runs.Run, progress: Callable[[str, int], None] = lambda name, count: None
) -> dict[str, int]:
    """Take away all rows of a run whose deletion was begun but its own; returns how many of each part.

    Raises:
        ConfigError: another run has adopted rows of it after all. It can be repeated when that run is gone.
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
    """The run itself goes, with its settings and workers: its name is free."""
    tx.execute(query("delete_run"), {"run_id": run.id})


def empty(tx: Transaction, run_id: int) -> None:
    """Take away all rows of a run that has only few, and none that matter, in the caller's transaction."""
    for part in PARTS:
        tx.execute(query(part.statement), {"run_id": run_id, "limit": None, "after": 0, "until": LAST_ID})


NEXT_EXPERIENCE = "next_experience"
"""The statement that `ranges` asks where ids of experiences are meant. Pruning goes by them too."""


def ranges(database: Database, next_row: str, size: int) -> Iterator[int]:
    """The ids after which ranges of ids begin, up to the last row of any run that there is at the beginning.

    Gaps are left out: a copy of a run may have brought ids that lie far apart.

    Args:
        next_row: the statement that looks for the next id.
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


def _ranges(database: Database, part: Part) -> Iterator[dict[str, int]]:
    if not part.by_id:
        yield {"limit": part.size}
        return
    for after in ranges(database, NEXT_EXPERIENCE, part.size):
        yield {"after": after, "until": after + part.size}


def _delete(database: Database, run: runs.Run, part: Part, values: dict[str, int]) -> int:
    def decide() -> int:
        with database.transaction() as tx:
            return tx.execute(query(part.statement), {"run_id": run.id, **values}).rowcount

    try:
        return database.retry(decide)
    except psycopg.errors.ForeignKeyViolation as error:
        raise ConfigError(f"'{run.name}' is not deleted: another run has adopted rows of it.") from error
