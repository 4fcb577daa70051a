"""Compares the members of drawn groups: by their rewards, and by their places within their attempts."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg.rows import DictRow

from trinity_db.database import Transaction
from trinity_db.errors import TrinityError
from trinity_db.schema.queries import query

Advantage = Callable[[Mapping[str, NDArray[Any]]], NDArray[np.float64]]
"""From `rewards` and `groups` of rows, and those columns of `read` that it asks for, to advantages [n]."""


def compare(
    tx: Transaction, members: Sequence[DictRow], advantage: Advantage, columns: Collection[str]
) -> tuple[list[float], NDArray[np.bool_]]:
    """[n] Their advantages, and which of them were sampled only for the others to be compared with.

    Raises:
        TrinityError: one of them has no reward.
    """
    known = {
        "rewards": np.array([member["reward"] for member in members], np.float64),
        "groups": np.array([member["group_id"] for member in members], np.int64),
        **read(tx, [member["id"] for member in members], columns),
    }
    with np.errstate(invalid="ignore"):  # of rewards that are not known; said below
        values = advantage(known)
    if (unknown := np.isnan(values)).any():
        raise TrinityError(
            f"Experience {members[int(unknown.argmax())]['id']} has no advantage, since it or another member "
            "of its group has no reward: name a step under processors.score."
        )
    return values.tolist(), known.get("greedy", np.zeros(len(members), np.bool_))


def read(tx: Transaction, experience_ids: Sequence[int], columns: Collection[str]) -> dict[str, NDArray[Any]]:
    """Those of rollouts, steps, states and greedy that are asked for, [n] each; where none is, no query."""
    if not columns:
        return {}
    values = {"ids": experience_ids, "with_states": "states" in columns}
    rows = tx.execute(query("read_attempts"), values).fetchall()
    return {name: np.array([row[name] for row in rows]) for name in columns}
