"""Delete rows past the retention of their run's configuration (`processors.retention`).

The processors of any run do it for all runs, so rows of finished runs are deleted, too. A processor handles
one family at a time, and one range of ids per transaction. The transaction that deletes rows also records the
position, so that after a crash the next processor continues from there.
"""

from psycopg.rows import DictRow

from trinity_db.config import durations
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.store import pruning
from trinity_db.store.pruning import PruneLimits

LOCK_SECONDS = 1.0  # do not block the processor on an idle session's locks

FAMILIES = {
    "payloads": pruning.PAYLOADS,
    "calls": pruning.CALLS,
    "metrics": pruning.METRICS,
    "processing": pruning.PROCESSING,
}
RUNS = {
    "payloads": "runs_of_experiences",
    "calls": "runs_of_agents",
    "metrics": "runs_of_metrics",
    "processing": "runs_of_experiences",
}
"""By family, the statement that finds the runs with rows in a range of ids, and the rows to delete."""


def enter(tx: Transaction, run_id: int) -> None:
    """Add this run to retention, if its configuration asks for it."""
    families = {"families": list(FAMILIES)}
    if tx.execute(query("enter_retention"), {"run_id": run_id, **families}).rowcount:
        tx.execute(query("begin_sweeps"), families)


def of(tx: Transaction, run_id: int) -> list[DictRow]:
    """Return, by family, the run's retention (None: forever), the deletions, and the last full pass."""
    rows = tx.execute(query("retention_of"), {"run_id": run_id}).fetchall()
    return [{**row, "kept_for": row["kept_for"] and durations.words(row["kept_for"])} for row in rows]


def remove_next(tx: Transaction) -> bool:
    """Delete the outdated rows in the next range of ids of all runs; False if no range is due.

    Raises:
        psycopg.errors.LockNotAvailable: if another session holds such a row for longer than LOCK_SECONDS.
    """
    tx.execute(query("limit_waits"), {"lock_seconds": LOCK_SECONDS})
    sweep = tx.execute(query("continue_sweep")).fetchone() or tx.execute(query("take_sweep")).fetchone()
    if sweep is None:
        return False
    name, family = sweep["family"], FAMILIES[sweep["family"]]
    row = tx.execute(query(family.next_row), {"after": sweep["after_id"]}).fetchone()
    assert row is not None
    if row["id"] is None:
        tx.execute(query("move_sweep"), {"family": name, "after": None})
        return True
    after = row["id"] - 1
    reached = {"family": name, "after": after, "until": after + family.size}
    for run in tx.execute(query(RUNS[name]), reached).fetchall():
        if run["before"] is None:
            continue
        limits = PruneLimits(before=run["before"], version=None, step=None)
        pruned = pruning.prune_range(tx, run["run_id"], family, limits, after)
        if pruned.rows:
            counts = {"run_id": run["run_id"], "family": name, "rows": pruned.rows, "bytes": pruned.bytes}
            tx.execute(query("count_removed"), counts)
    tx.execute(query("move_sweep"), {"family": name, "after": after + family.size})
    return True
