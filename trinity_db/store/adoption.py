"""Adoption: a run copies the narrow rows of data sets and of other runs, and shares their text.

A data set is adopted in the transaction that opens the run, because that transaction is serialised with
imports. Another run may be active at the same time, so its rows are adopted in short transactions, each with
some of its groups locked; a reward waits until its row is copied. A crash loses no rows: the next role that
opens the run adopts the rest.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.rows import DictRow

from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import RunKind
from trinity_db.store import pair_labels

logger = logging.getLogger(__name__)

SLICE_GROUPS = 200  # per transaction; blocks their rewards and draws for some hundredths of a second
SLICE_PAIRS = 1_000


@dataclass(frozen=True)
class Sources:
    """The data sets and runs whose rows a run adopts."""

    names: Sequence[str] = ()
    holdout: float = 0.0
    """Share of the adopted rows of data sets that is held out for evaluation."""
    as_groups: bool = False
    """Adopt complete rollout groups, also those of data sets, and no pairs: the run learns from groups."""


def adopt_data(tx: Transaction, run_id: int, source_run_id: int, holdout: float) -> None:
    """Adopt the rows added to a data set since the last time. The caller holds the data set's lock."""
    values = {"run_id": run_id, "source_run_id": source_run_id, "holdout": holdout}
    tx.execute(query("adopt_experiences"), values)
    pair_labels.follow(tx, [row["id"] for row in tx.execute(query("adopt_preferences"), values)])


def hold_source(tx: Transaction, source_run_id: int) -> bool:
    """Block deletion of a run until this transaction ends; returns whether it is deleted or being deleted."""
    row = tx.execute(query("hold_source"), {"source_run_id": source_run_id}).fetchone()
    return row is None or bool(row["is_being_deleted"])


def missing(tx: Transaction, source_run_id: int, needed: str) -> bool:
    """Whether a run lacks the kind of row that another run needs: rows, rewards or pairs."""
    row = tx.execute(query("source_facts"), {"source_run_id": source_run_id}).fetchone()
    assert row is not None
    return not row[f"has_{needed}"]


def adopt_runs(
    database: Database,
    run_id: int,
    hold: Callable[[Transaction], None],
    sources: Sources,
    give_up: Callable[[], bool] = lambda: False,
) -> int:
    """Adopt the rows and pairs of other runs that this run does not have yet, SLICE_GROUPS per transaction.

    Waits while the database is away, until `give_up` returns true.

    Args:
        hold: called first in each of these transactions. It locks the run's configuration, or raises if the
            configuration has changed (`runs.hold_adopter`).
        sources: data sets among them are left to `adopt_data`, unless groups are adopted.

    Returns:
        number of adopted rows.
    """
    adopted = pairs = 0

    def list_sources() -> list[DictRow]:
        with database.transaction() as tx:
            return tx.execute(query("list_sources"), {"names": list(sources.names)}).fetchall()

    def adopt(following: str, statement: str, limit: int) -> int:
        return _in_slices(database, hold, following, statement, values, limit, give_up)

    for source in database.retry(list_sources, give_up):
        values = {"run_id": run_id, "source_run_id": source["id"], "holdout": sources.holdout}
        if sources.as_groups:
            rows = adopt("groups_to_adopt", "adopt_groups", SLICE_GROUPS)
        elif source["kind"] == RunKind.TRAIN:
            rows = adopt("rows_to_adopt", "adopt_rows", SLICE_GROUPS)
            pairs = adopt("pairs_to_adopt", "adopt_pairs", SLICE_PAIRS)
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
    give_up: Callable[[], bool],
) -> int:
    """Fetch the next ids and adopt their rows, in one transaction each time, until none are left."""
    after, adopted = 0, 0

    def adopt() -> tuple[list[int], int]:
        with database.transaction() as tx:
            hold(tx)
            rows = tx.execute(query(following), values | {"after": after, "limit": limit})
            ids = [row["id"] for row in rows]
            row = tx.execute(query(statement), values | {"ids": ids}).fetchone() if ids else None
            if row:
                pair_labels.follow(tx, row.get("labelled", ()))
        return ids, row["rows"] if row else 0

    while True:
        ids, count = database.retry(adopt, give_up)
        if not ids:
            return adopted
        after, adopted = ids[-1], adopted + count
