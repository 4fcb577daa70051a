"""Rollout groups as the explorer handles them: how many to start, which, and writing what came of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from trinity_db import arrays
from trinity_db.database import Transaction, storable
from trinity_db.schema.queries import query
from trinity_db.store import runs


@dataclass(frozen=True)
class Pace:
    """How far explorers may run ahead of the trainer, in rollout groups.

    Of the groups started, those that the explorer's version does not include never exceed
    `(max_staleness + 1) * per_version`, so none arrives staler than the limit as long as every publish
    consumes `per_version` groups in the order of their start; one that was overtaken may expire. Counted
    from what versions include, not from their number: one may come early, or be withdrawn. None: no limit.
    """

    max_staleness: int | None
    per_version: int

    def capacity(self, unpublished: int, waiting: int, running: int) -> int | None:
        """How many more groups may be started; None: any number."""
        if self.max_staleness is None:
            return None
        return max(0, (self.max_staleness + 1) * self.per_version - unpublished - waiting - running)


@dataclass(frozen=True)
class Selection:
    """Which tasks come next: those issued least, in order or shuffled anew in each pass."""

    taskset_id: int
    shuffle: bool
    seed: int


@dataclass(frozen=True)
class ClaimedGroup:
    """A group that this worker explores: the members that are missing, and the fencing token."""

    id: int
    attempt: int
    task: dict[str, Any]
    members: list[int]


@dataclass(frozen=True)
class Rollout:
    """One attempt that ended, ready to be written: finished with a payload, or failed with an error."""

    group: ClaimedGroup
    member: int
    started_at: datetime
    finished_at: datetime
    prompt: str = ""
    response: str = ""
    payload: arrays.Payload | None = None
    finish_reason: str | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if (self.payload is None) == (self.error is None):
            raise ValueError("A rollout has a payload, or an error if it failed.")
        if self.payload is not None and self.payload.versions is None:
            raise ValueError("A rollout's payload has the log-probability and version of each sampled token.")


def claim(
    tx: Transaction,
    run_id: int,
    worker_id: int,
    version: int,
    pace: Pace,
    selection: Selection,
    group_size: int,
    limit: int,
) -> list[ClaimedGroup]:
    """Up to `limit` groups to explore with a version: abandoned ones first, then new ones as the pace allows.

    Explorers of a run take turns here, so that together they respect the limit.
    """
    values = {"run_id": run_id, "worker_id": worker_id}
    tx.execute(query("lock_pace"), values)
    rows = tx.execute(query("claim_abandoned_groups"), {**values, "limit": limit}).fetchall()
    counts = tx.execute(query("count_pace"), {**values, "version": version}).fetchone()
    assert counts is not None
    capacity = pace.capacity(**counts)
    room = limit - len(rows) if capacity is None else min(limit - len(rows), capacity)
    if room > 0:
        rows += tx.execute(
            query("start_groups"),
            {
                **values,
                "taskset_id": selection.taskset_id,
                "shuffle": selection.shuffle,
                "seed": selection.seed,
                "group_size": group_size,
                "limit": room,
            },
        ).fetchall()
    return [ClaimedGroup(row["id"], row["attempt"], row["payload"], row["members"]) for row in rows]


def write_rollouts(tx: Transaction, run_id: int, worker_id: int, rollouts: Sequence[Rollout]) -> int:
    """Store rollouts with their experiences, texts and arrays; returns how many were refused.

    Refused are those whose group another worker holds by now: they are kept for the record, under the
    attempt they were made in, and are no members of their group. A rollout that is stored already, as
    after a commit whose outcome was unclear, is left alone. All statements travel together.
    """
    group_ids = list({rollout.group.id for rollout in rollouts})
    with tx.pipeline():
        tx.execute(query("hold_groups"), {"group_ids": group_ids})
        written = tx.execute(
            query("write_rollouts"),
            {"run_id": run_id, "worker_id": worker_id, "codec": arrays.CODEC, **_columns(rollouts)},
        )
        runs.announce(tx, run_id)
    row = written.fetchone()
    assert row is not None
    return int(row["refused"])


COLUMNS = (
    "group_ids", "attempts", "ordinals", "finish_reasons", "errors", "started_at", "finished_at",
    "prompts", "responses", "messages", "payloads", "prompt_lengths", "response_lengths", "oldest", "newest",
)  # fmt: skip


def _columns(rollouts: Iterable[Rollout]) -> dict[str, list[Any]]:
    """What `write_rollouts` asks of each rollout, a list for each of its arrays."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for rollout in rollouts:
        group = rollout.group
        texts = (rollout.finish_reason, rollout.error, rollout.prompt, rollout.response)
        reason, error, prompt, response = (text and storable(text) for text in texts)
        member = (group.id, group.attempt, rollout.member, reason, error)
        content = (prompt, response, _messages(group.task), *_packed(rollout.payload))
        row = (*member, rollout.started_at, rollout.finished_at, *content)
        for values, value in zip(columns.values(), row, strict=True):
            values.append(value)
    return columns


def _packed(payload: arrays.Payload | None) -> tuple[Any, ...]:
    """The bytes, tokens of prompt and response, oldest and newest version."""
    if payload is None or payload.versions is None:
        return (None,) * 5
    num_trained = len(payload.versions)
    versions = int(payload.versions.min()), int(payload.versions.max())
    return arrays.encode(payload), payload.num_tokens - num_trained, num_trained, *versions


def _messages(task: dict[str, Any]) -> Jsonb | None:
    return Jsonb(task["messages"]) if task.get("messages") else None
