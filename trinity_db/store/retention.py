"""Removes rows that runs keep no longer, as their configuration says (`processors.retention`).

The processors of any run do it for all runs, so old rows of a run that has ended go too. A processor looks at
one family at a time, and at one range of ids in each transaction. The transaction that removes rows also
records how far the look has come, so after a crash the next processor goes on from there.
"""

from psycopg.rows import DictRow

from trinity_db import ages
from trinity_db.database import Transaction
from trinity_db.schema.queries import query
from trinity_db.store import pruning
from trinity_db.store.pruning import Limits

LOCK_SECONDS = 1.0  # the processor has other work than to wait for a session that stands still

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
"""By family, the statement that finds the runs with rows in a range of ids, and which of these may go."""


def enter(tx: Transaction, run_id: int) -> None:
    """Let processors remove what this run keeps no longer, if its configuration says so."""
    families = {"families": list(FAMILIES)}
    if tx.execute(query("enter_retention"), {"run_id": run_id, **families}).rowcount:
        tx.execute(query("begin_sweeps"), families)


def of(tx: Transaction, run_id: int) -> list[DictRow]:
    """By family: how long the run keeps rows (None: for ever), what went, and when all were looked at."""
    rows = tx.execute(query("retention_of"), {"run_id": run_id}).fetchall()
    return [{**row, "kept_for": row["kept_for"] and ages.words(row["kept_for"])} for row in rows]


def remove_next(tx: Transaction) -> bool:
    """Look at the next range of rows of all runs, and remove what is too old; False: no look is due.

    Raises:
        psycopg.errors.LockNotAvailable: another session holds such a row for longer than LOCK_SECONDS.
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
        limits = Limits(before=run["before"], version=None, step=None)
        found = pruning.prune_range(tx, run["run_id"], family, limits, after)
        if found.rows:
            counts = {"run_id": run["run_id"], "family": name, "rows": found.rows, "bytes": found.bytes}
            tx.execute(query("count_removed"), counts)
    tx.execute(query("move_sweep"), {"family": name, "after": after + family.size})
    return True
