"""Reads rows from the store into the learner's batches: arrays, columns and stored scores."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from trinity_db.postgres.connection import Transaction
from trinity_db.store import attempts, batches, offline, scores
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.recipes.parts.columns import COLUMNS, Origin

HELD_OUT_ROWS = 512  # rows or pairs of an evaluation, for an error of a few percent


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
        rows: Drawn rows, expert rows last. A numeric column that they lack is 0 there.
        experts: Number of expert rows.
        score_names: Stored scores to read with the rows.
        compares: Columns of `store.attempts` to read too, for advantages that a step recomputes.
        version: Policy version with the weights before the step, or None.
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
    """Make a batch of held-out rows. Pairs are in the order chosen, rejected, chosen, rejected, ..."""
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
