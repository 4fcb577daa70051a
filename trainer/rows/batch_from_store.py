"""From rows of the store to what the learner takes: arrays, numbers, and what other models said of them."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from trinity_db.database import Transaction
from trinity_db.store import attempts, batches, offline, scores
from trinity_db.trainer.algorithms.columns import COLUMNS, Origin
from trinity_db.trainer.learner.gathered_columns import Batch

HELD_OUT_ROWS = 512  # rows or pairs of an evaluation; its error is then a few percent


def drawn(
    tx: Transaction,
    rows: Sequence[batches.Row],
    experts: int,
    said_by: Iterable[scores.Name],
    compares: Collection[str] = (),
) -> Batch:
    """The rows of a drawn batch; what the experts' rows, which come last, have no number of is 0.

    Args:
        said_by: whose scores are read with them.
        compares: which columns of `store.attempts` are, for advantages that a step computes anew.
    """
    live = len(rows) - experts
    columns: dict[str, list[Any]] = {
        column.name: [getattr(row, column.source) for row in rows]
        for column in COLUMNS.values()
        if column.origin is Origin.DRAW and column.source
    }
    known = {
        name: np.array([0 if value is None else value for value in values])
        for name, values in columns.items()
        if None not in values[:live]
    }
    if experts:
        known["is_expert"] = np.arange(len(rows)) >= live
    known |= attempts.read(tx, [row.experience_id for row in rows], compares)
    return Batch([row.payload for row in rows], known, _said(tx, rows, said_by))


def held_out(tx: Transaction, rows: Sequence[offline.HeldOut], said_by: Iterable[scores.Name]) -> Batch:
    """Rows that are kept for evaluation, or chosen and rejected ones in turn."""
    rewards = [row.reward for row in rows]
    known = {} if None in rewards else {"rewards": np.array(rewards)}
    return Batch([row.payload for row in rows], known, _said(tx, rows, said_by))


def _said(
    tx: Transaction, rows: Sequence[batches.Row] | Sequence[offline.HeldOut], said_by: Iterable[scores.Name]
) -> dict[str, Any]:
    arrays = [(row.experience_id, row.payload) for row in rows]
    return {name: scores.read(tx, name, arrays) for name in said_by}
