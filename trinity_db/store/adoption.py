"""Adoption: a run copies the narrow rows of data sets and of other runs, and shares their text.

A data set is adopted in the transaction that opens the run, since imports into it take turns with that.
Another run may be at work meanwhile. So its rows are adopted in short transactions, each under the lock of
some of its groups: a reward waits for the copy of its row. A crash loses none of them, and the next role that
opens the run goes on with the rest.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from trinity_db.database import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import RunKind
from trinity_db.store import pair_labels

logger = logging.getLogger(__name__)

SLICE_GROUPS = 200  # of a transaction: their rewards and draws wait for some hundredths of a second
SLICE_PAIRS = 1_000


def adopt_data(tx: Transaction, run_id: int, source_run_id: int, holdout: float) -> None:
    """Adopt what a data set has gained since the run last looked, under the lock of the data set."""
    values = {"run_id": run_id, "source_run_id": source_run_id, "holdout": holdout}
    tx.execute(query("adopt_experiences"), values)
    pair_labels.follow(tx, [row["id"] for row in tx.execute(query("adopt_preferences"), values)])


def hold_source(tx: Transaction, source_run_id: int) -> bool:
    """Let a deletion of a run wait until this transaction ends; returns whether one has begun, or ended."""
    row = tx.execute(query("hold_source"), {"source_run_id": source_run_id}).fetchone()
    return row is None or bool(row["is_being_deleted"])


def missing(tx: Transaction, source_run_id: int, needed: str) -> bool:
    """Whether a run has none of what another needs of it: rows, rewards or pairs."""
    row = tx.execute(query("source_facts"), {"source_run_id": source_run_id}).fetchone()
    assert row is not None
    return not row[f"has_{needed}"]


def adopt_runs(
    database: Database,
    run_id: int,
    hold: Callable[[Transaction], None],
    names: Sequence[str],
    holdout: float,
    as_groups: bool = False,
) -> int:
    """Adopt the rows and pairs that other runs have and this one has not, in transactions of SLICE_GROUPS.

    Args:
        hold: begins each of these transactions: it keeps the run's configuration as it is, or raises because
            it is another one by now (`runs.hold_adopter`).
        names: what `data` names; data sets among them are left to `adopt_data`.
        as_groups: adopt whole rollout groups, of data sets too, and no pairs.

    Returns:
        how many rows it adopted.
    """
    adopted = pairs = 0
    with database.transaction() as tx:
        sources = tx.execute(query("list_sources"), {"names": list(names)}).fetchall()
    for source in sources:
        values = {"run_id": run_id, "source_run_id": source["id"], "holdout": holdout}
        if as_groups:
            rows = _in_slices(database, hold, "groups_to_adopt", "adopt_groups", values, SLICE_GROUPS)
        elif source["kind"] == RunKind.TRAIN:
            rows = _in_slices(database, hold, "rows_to_adopt", "adopt_rows", values, SLICE_GROUPS)
            pairs = _in_slices(database, hold, "pairs_to_adopt", "adopt_pairs", values, SLICE_PAIRS)
        else:
            continue
        if rows or pairs:
            logger.info("adopted %d rows and %d pairs of run '%s'", rows, pairs, source["name"])
        adopted += rows
    return adopted


def _in_slices(
    database: Database,
    hold: Callable[[Transaction], None],
    following: str,
    statement: str,
    values: dict[str, Any],
    limit: int,
) -> int:
    """Look for the next ids and adopt what they name, in one transaction each time, until none is left."""
    after, adopted = 0, 0

    def adopt() -> tuple[list[int], int]:
        with database.transaction() as tx:
            hold(tx)
            found = tx.execute(query(following), values | {"after": after, "limit": limit})
            ids = [row["id"] for row in found]
            row = tx.execute(query(statement), values | {"ids": ids}).fetchone() if ids else None
            if row:
                pair_labels.follow(tx, row.get("labelled", ()))
        return ids, row["rows"] if row else 0

    while True:
        ids, count = database.retry(adopt)
        if not ids:
            return adopted
        after, adopted = ids[-1], adopted + count
