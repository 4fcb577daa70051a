"""Compare the members of drawn groups: by reward, and by position within their attempts."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg.rows import DictRow

from trinity_db.errors import TrinityError
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query

Advantage = Callable[[Mapping[str, NDArray[Any]]], NDArray[np.float64]]
"""Computes advantages [n] from the rows' `rewards` and `groups`, and the columns requested from `read`."""


def compare(
    tx: Transaction, members: Sequence[DictRow], advantage: Advantage, columns: Collection[str]
) -> tuple[list[float], NDArray[np.bool_]]:
    """Return the advantages [n] of members, and which members [n] were sampled only as a baseline (greedy).

    Raises:
        TrinityError: if a member has no reward.
    """
    known = {
        "rewards": np.array([member["reward"] for member in members], np.float64),
        "groups": np.array([member["group_id"] for member in members], np.int64),
        **read(tx, [member["id"] for member in members], columns),
    }
    with np.errstate(invalid="ignore"):  # missing rewards are reported below
        values = advantage(known)
    if (unknown := np.isnan(values)).any():
        raise TrinityError(
            f"Experience {members[int(unknown.argmax())]['id']} has no advantage, since it or another member "
            "of its group has no reward: name a step under processors.score."
        )
    return values.tolist(), known.get("greedy", np.zeros(len(members), np.bool_))


def read(tx: Transaction, experience_ids: Sequence[int], columns: Collection[str]) -> dict[str, NDArray[Any]]:
    """Read the requested columns (those of origin ATTEMPT), [n] each. No columns: no query."""
    if not columns:
        return {}
    values = {"ids": experience_ids, "with_states": "states" in columns}
    rows = tx.execute(query("read_attempts"), values).fetchall()
    return {name: np.array([row[name] for row in rows]) for name in columns}
