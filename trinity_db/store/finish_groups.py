"""Settling: a complete group whose rows are all processed becomes ready as a whole, or is dropped."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.rows import DictRow

from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.store import processing, runs


@dataclass(frozen=True)
class Rules:
    """Conditions under which a run's groups may be trained on, and what they wait for."""

    min_size: int
    """Minimum number of remaining members; smaller groups are dropped."""
    drop_equal_rewards: bool = False
    """Whether a group with equal rewards is dropped."""
    keep: str = "all"
    """positives: keep only rollouts that solved their task. negatives: only the others with a reward."""
    solved_reward: float = 1.0
    """Minimum reward of a rollout that solved its task."""
    requires_reward: str | None = None
    """Source that must judge each remaining member before the group settles; too small groups do not wait."""
    wait_seconds: float | None = None
    """Maximum wait of a complete group; members without any reward are then dropped. None: no limit."""
    are_sources: bool = False
    """Whether tasks and responses are synthesised from groups that are large enough."""

    def values(self) -> dict[str, Any]:
        """Parameters of the statements, by name."""
        return {
            "min_group_size": self.min_size,
            "drop_equal_rewards": self.drop_equal_rewards,
            "selection": self.keep,
            "solved_reward": self.solved_reward,
            "requires_reward": self.requires_reward,
            "wait_seconds": self.wait_seconds,
        }


def settle_groups(
    tx: Transaction, run_id: int, rules: Rules, limit: int, group_ids: Collection[int] | None = None
) -> int:
    """Make complete, processed groups ready, or drop unfit ones; returns the number of settled groups.

    It settles the given groups, or up to `limit` groups of the run, oldest first.
    """
    picked = _pick(tx, run_id, rules, limit, group_ids)
    settled = _judge(tx, rules, picked) if picked else []
    if not settled:
        return 0
    if rules.keep != "all":
        tx.execute(
            query("drop_unselected"), rules.values() | {"group_ids": [group["id"] for group in settled]}
        )
    tx.execute(
        query("ready_members"), {"group_ids": [group["id"] for group in settled if group["reason"] is None]}
    )
    if rules.are_sources:
        sources = [group["id"] for group in settled if group["reason"] in (None, "equal_rewards")]
        tx.execute(query("mark_sources"), {"group_ids": sources, "run_id": run_id})
    _count_solved(tx, run_id, settled)
    _drop(tx, run_id, [group for group in settled if group["reason"] is not None], rules.min_size)
    runs.announce(tx, run_id)
    return len(settled)


def _pick(
    tx: Transaction, run_id: int, rules: Rules, limit: int, group_ids: Collection[int] | None
) -> list[int]:
    """Lock groups that can be settled."""
    among = None if group_ids is None else list(group_ids)
    limits = {"run_id": run_id, "among": among, "limit": limit if among is None else len(among)}
    return [row["id"] for row in tx.execute(query("pick_groups"), rules.values() | limits)]


def _judge(tx: Transaction, rules: Rules, group_ids: Sequence[int]) -> list[DictRow]:
    """Drop the members of locked groups that cannot stay, and return for each group whether it is ready."""
    values = rules.values() | {"group_ids": group_ids}
    with tx.pipeline():
        if rules.requires_reward is not None:
            tx.execute(query("drop_unjudged"), values)
        tx.execute(query("drop_partial_attempts"), values)
        groups = tx.execute(query("settle_groups"), values)
    return groups.fetchall()


def _count_solved(tx: Transaction, run_id: int, groups: Sequence[DictRow]) -> None:
    tx.execute(
        query("count_solved"),
        {
            "run_id": run_id,
            "task_ids": [group["task_id"] for group in groups],
            "scored": [group["scored"] for group in groups],
            "solved": [group["solved"] for group in groups],
        },
    )


def _drop(tx: Transaction, run_id: int, groups: Sequence[DictRow], min_group_size: int) -> None:
    if not groups:
        return
    reasons = {group["id"]: group["reason"] for group in groups}
    # Includes the counts added to task_stat, which failures.retry subtracts.
    details = [
        (
            {"members": group["size"], "needed": min_group_size}
            if group["reason"] == "group_too_small"
            else {"members": group["size"], "reward": group["lowest"]}
        )
        | {"scored": group["scored"], "solved": group["solved"]}
        for group in groups
    ]
    members = tx.execute(query("drop_members"), {"group_ids": list(reasons)}).fetchall()
    drops = [processing.Drop(member["id"], reasons[member["group_id"]]) for member in members]
    processing.record_drops(tx, run_id, "group", drops)
    tx.execute(
        query("record_group_drops"),
        {
            "run_id": run_id,
            "stage": "group",
            "group_ids": list(reasons),
            "reasons": list(reasons.values()),
            "details": [json.dumps(detail) for detail in details],
        },
    )
