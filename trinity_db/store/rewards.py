"""Reward events and their effects, in one transaction.

The latest event of each name counts; the reward of a row is the weighted sum of their values. A transaction
that changes rewards locks the groups first, then the rows, each in order of id. For rows of a data set, it
locks the data set before these, like imports into it and runs that adopt it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from psycopg.rows import DictRow

from trinity_db.errors import ConfigError, NotFound
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.store import runs

MAX_REWARD = 1e100  # value times weight; its square must not overflow in a group's variance
MAX_ID = 2**63 - 1  # maximum of a bigint
MAX_WORD_BYTES = 200  # length of a name, source or person; names are indexed


@dataclass(frozen=True)
class RewardEvent:
    """One reward of a rollout, or of an experience (without a rollout, or one of several steps)."""

    rollout_id: int | None
    name: str
    value: float
    weight: float = 1.0
    experience_id: int | None = None
    detail: Mapping[str, Any] | None = None
    """Further details, such as a judge's explanation."""


@dataclass(frozen=True)
class Judgement:
    """Reward of an experience from a person or a program."""

    experience_id: int
    value: float
    name: str
    source: str
    by: str | None
    weight: float
    detail: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Change:
    """Effect of judgements on an experience's reward and its group's mean; None: no value."""

    experience: int
    before: float | None
    after: float | None
    group_mean: float | None


def check_words(words: Sequence[str], label: str) -> None:
    """Check that an index can hold and a terminal can show the names.

    Raises:
        ConfigError: if not; its message begins with the `label`.
    """
    if not all(word.strip() and word.isprintable() for word in words):
        raise ConfigError(f"{label} must be printable text in one line")
    if any(len(word.encode()) > MAX_WORD_BYTES for word in words):
        raise ConfigError(f"{label} may have {MAX_WORD_BYTES} bytes each")


def lock(tx: Transaction, events: Sequence[RewardEvent]) -> tuple[list[int], list[int]]:
    """Lock the groups and experiences that these events affect; returns their ids.

    Call it first in a transaction that also changes such rows otherwise.
    """
    if not events:
        return [], []
    about = _about(events)
    groups = [row["id"] for row in tx.execute(query("lock_groups"), about)]
    groups += [row["id"] for row in tx.execute(query("lock_new_copies"), {"ids": groups})]
    return groups, [row["id"] for row in tx.execute(query("lock_rewarded"), about)]


def record(
    tx: Transaction,
    run_id: int,
    source: str,
    events: Sequence[RewardEvent],
    created_by: str | None = None,
    processor_version: int | None = None,
) -> None:
    """Write events, then update the rewards of experiences, the statistics of groups and the counts of tasks.

    Rewards recorded in batch_item stay unchanged; the next draw uses the new reward.

    Args:
        processor_version: version of the list of steps, if the source is a processor.
    """
    if not events:
        return
    locked = lock(tx, events)
    write(tx, run_id, source, events, created_by, processor_version)
    follow(tx, run_id, *locked)


def write(
    tx: Transaction,
    run_id: int,
    source: str,
    events: Sequence[RewardEvent],
    created_by: str | None = None,
    processor_version: int | None = None,
) -> None:
    """Write events only, under the locks of `lock`; the caller calls `follow` later in the transaction."""
    if not events:
        return
    tx.execute(
        query("insert_reward_events"),
        {
            **_about(events),
            "run_id": run_id,
            "source": source,
            "created_by": created_by,
            "processor_version": processor_version,
            "names": [event.name for event in events],
            "values": [event.value for event in events],
            "weights": [event.weight for event in events],
            "details": [json.dumps(event.detail) if event.detail else None for event in events],
        },
    )


def follow(tx: Transaction, run_id: int, groups: Sequence[int], experiences: Sequence[int]) -> None:
    """Update rewards, pairs, statistics and counts of these locked rows from their events."""
    before = tx.execute(query("count_settled"), {"group_ids": groups}).fetchall()
    tx.execute(query("refresh_rewards"), {"ids": experiences})
    tx.execute(query("refresh_pairs"), {"ids": experiences})
    tx.execute(query("refresh_groups"), {"group_ids": groups})
    _correct_solved(tx, before)
    runs.announce(tx, run_id)


def _correct_solved(tx: Transaction, before: Sequence[DictRow]) -> None:
    """Update the counts of tasks from the changed rewards of groups that they already include."""
    if not before:
        return
    rows = tx.execute(query("count_settled"), {"group_ids": [row["id"] for row in before]})
    after = {row["id"]: row for row in rows}
    moved = [
        (
            row["run_id"],
            row["task_id"],
            *(after[row["id"]][name] - row[name] for name in ("scored", "solved")),
        )
        for row in before
    ]
    if moved := [change for change in moved if any(change[2:])]:
        names = ("run_ids", "task_ids", "scored", "solved")
        values = {name: list(column) for name, column in zip(names, zip(*moved, strict=True), strict=True)}
        tx.execute(query("correct_solved"), values)


def judge(tx: Transaction, judgements: Sequence[Judgement]) -> list[Change]:
    """Record judgements in the order given; returns the change of each experience.

    A judgement applies to the experience's rollout, if it has one, and so to all its rows; for one of several
    steps, it applies to the step only.

    Raises:
        NotFound: naming the experiences that do not exist; nothing is written.
        ConfigError: if a member of a group that is drawn by its rewards would be left without a reward.
    """
    ids = list(dict.fromkeys(judgement.experience_id for judgement in judgements))
    experiences, events = hold(tx, judgements)
    members = {"ids": lock(tx, events)[1]}
    rewarded = {row["id"] for row in tx.execute(query("rewarded_members"), members)}
    before = _find(tx, ids)

    def speaker(pair: tuple[Judgement, RewardEvent]) -> tuple[int, str, str | None]:
        judgement = pair[0]
        return experiences[judgement.experience_id]["run_id"], judgement.source, judgement.by

    for (run_id, source, by), pairs in groupby(zip(judgements, events, strict=True), speaker):
        record(tx, run_id, source, [event for _, event in pairs], by)
    after = _find(tx, ids)
    if lost := rewarded - {row["id"] for row in tx.execute(query("rewarded_members"), members)}:
        raise ConfigError(
            f"Experience {min(lost)} keeps its reward, since its group is ready and may be drawn: "
            f"correct it with trinity-db reward {min(lost)} VALUE."
        )
    return [Change(id, before[id]["reward"], after[id]["reward"], after[id]["group_mean"]) for id in ids]


def hold(tx: Transaction, judgements: Sequence[Judgement]) -> tuple[dict[int, DictRow], list[RewardEvent]]:
    """Lock everything that judgements change; returns the experiences by id, and the events.

    Raises:
        NotFound: naming the experiences that do not exist.
    """
    ids = list(dict.fromkeys(judgement.experience_id for judgement in judgements))
    experiences = _find(tx, ids)
    if missing := [str(id) for id in ids if id not in experiences]:
        raise NotFound(f"There is no experience {', '.join(missing[:5])}{', ...' if missing[5:] else ''}.")
    events = [_event(judgement, experiences[judgement.experience_id]) for judgement in judgements]
    tx.execute(query("lock_judged_data"), {"ids": ids})
    lock(tx, events)
    return experiences, events


def _find(tx: Transaction, ids: Sequence[int]) -> dict[int, DictRow]:
    possible = [id for id in ids if 0 < id <= MAX_ID]
    return {row["id"]: row for row in tx.execute(query("find_rewarded"), {"ids": possible})}


def _event(judgement: Judgement, row: DictRow) -> RewardEvent:
    by_itself = row["rollout_id"] is None or row["is_step"]
    rollout, experience = (None, row["id"]) if by_itself else (row["rollout_id"], None)
    return RewardEvent(
        rollout, judgement.name, judgement.value, judgement.weight, experience, judgement.detail
    )


def _about(events: Sequence[RewardEvent]) -> dict[str, Any]:
    return {
        "rollout_ids": [event.rollout_id for event in events],
        "experience_ids": [event.experience_id for event in events],
    }
