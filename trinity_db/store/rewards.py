"""Reward events and everything that follows from them, in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass

from trinity_db.database import Transaction
from trinity_db.schema.queries import query
from trinity_db.store import runs


@dataclass(frozen=True)
class RewardEvent:
    """One statement about a rollout. Of each name the latest counts, with its weight."""

    rollout_id: int
    name: str
    value: float
    weight: float = 1.0


def record(
    tx: Transaction, run_id: int, source: str, events: Sequence[RewardEvent], created_by: str | None = None
) -> None:
    """Write events, then the rewards of their experiences and the statistics of their groups.

    What a batch used stays in batch_item; the next draw sees the new reward.
    """
    if not events:
        return
    about = {"rollout_ids": sorted({event.rollout_id for event in events})}
    tx.execute(query("lock_groups"), about)
    tx.execute(
        query("insert_reward_events"),
        {
            "run_id": run_id,
            "source": source,
            "created_by": created_by,
            "rollout_ids": [event.rollout_id for event in events],
            "names": [event.name for event in events],
            "values": [event.value for event in events],
            "weights": [event.weight for event in events],
        },
    )
    tx.execute(query("refresh_rewards"), about)
    tx.execute(query("refresh_groups"), about)
    runs.announce(tx, run_id)
