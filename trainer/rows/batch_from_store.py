"""Reads rows from the store into the batches that the learner takes: arrays, columns and stored scores."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from trinity_db.database import Transaction
from trinity_db.store import attempts, batches, offline, scores
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.parts.columns import COLUMNS, Origin

HELD_OUT_ROWS = 512  # rows or pairs of an evaluation; its error is then a few percent


def drawn_batch(
    tx: Transaction,
    rows: Sequence[batches.Row],
    experts: int,
    score_names: Iterable[scores.Name],
    compares: Collection[str] = (),
    version: int | None = None,
) -> Batch:
    """Make a batch of drawn rows.

    Args:
        rows: the expert rows come last. A column in which they have no number gets 0 there.
        experts: the number of expert rows.
        score_names: the stored scores that are read with the rows.
        compares: the columns of `store.attempts` that are read too, for advantages that a step recomputes.
        version: the policy version with the weights of before the step; None if there is none.
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
    return Batch([row.payload for row in rows], known, _stored_scores(tx, rows, score_names), version)


def held_out_batch(
    tx: Transaction, rows: Sequence[offline.HeldOut], score_names: Iterable[scores.Name]
) -> Batch:
    """Make a batch of held-out rows. Pairs come as chosen, rejected, chosen, rejected, ..."""
    rewards = [row.reward for row in rows]
    known = {} if None in rewards else {"rewards": np.array(rewards)}
    return Batch([row.payload for row in rows], known, _stored_scores(tx, rows, score_names))


def _stored_scores(
    tx: Transaction,
    rows: Sequence[batches.Row] | Sequence[offline.HeldOut],
    score_names: Iterable[scores.Name],
) -> dict[str, Any]:
    arrays = [(row.experience_id, row.payload) for row in rows]
    return {name: scores.read(tx, name, arrays) for name in score_names}
