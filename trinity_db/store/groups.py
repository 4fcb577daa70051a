"""Rollout groups as the explorer handles them: how many to start, which, and writing what came of them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from trinity_db import arrays
from trinity_db.database import Transaction
from trinity_db.schema.queries import query
from trinity_db.store import runs


@dataclass(frozen=True)
class Pace:
    """How far explorers may run ahead of the trainer, in rollout groups.

    Of the groups started, those that the explorer's version does not include never exceed
    `(max_staleness + 1) * per_version`, so none can arrive staler than the limit as long as every publish
    consumes `per_version` groups. Counted from what versions include, and not from their number: a version
    may come early, or be withdrawn. None: no limit.
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
    """One finished or failed attempt, ready to be written."""

    group: ClaimedGroup
    member: int
    started_at: datetime
    finished_at: datetime
    prompt: str = ""
    response: str = ""
    payload: arrays.Payload | None = None
    finish_reason: str | None = None
    error: str | None = None


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

    Refused are those whose group another worker holds by now. A rollout that is stored already,
    as after a commit whose outcome was unclear, is left alone.
    """
    held = _held_groups(tx, worker_id, rollouts)
    known = _known_members(tx, rollouts)
    fresh = [r for r in rollouts if r.group.id in held and (r.group.id, r.member) not in known]
    refused = sum(r.group.id not in held and (r.group.id, r.member) not in known for r in rollouts)
    if fresh:
        _copy(tx, run_id, worker_id, fresh)
        _arrive(tx, fresh)
        runs.announce(tx, run_id)
    return refused


def _held_groups(tx: Transaction, worker_id: int, rollouts: Iterable[Rollout]) -> set[int]:
    groups = {r.group.id: r.group.attempt for r in rollouts}
    rows = tx.execute(
        query("hold_groups"),
        {"worker_id": worker_id, "group_ids": list(groups), "attempts": list(groups.values())},
    )
    return {row["id"] for row in rows}


def _known_members(tx: Transaction, rollouts: Iterable[Rollout]) -> set[tuple[int, int]]:
    members = [(r.group.id, r.member) for r in rollouts]
    rows = tx.execute(
        query("known_members"), {"group_ids": [g for g, _ in members], "ordinals": [m for _, m in members]}
    )
    return {(row["group_id"], row["ordinal"]) for row in rows}


def _arrive(tx: Transaction, rollouts: Iterable[Rollout]) -> None:
    groups: dict[int, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        groups[rollout.group.id].append(rollout)
    versions = {
        group: [
            int(r.payload.versions.min()) for r in members if r.payload and r.payload.versions is not None
        ]
        for group, members in groups.items()
    }
    tx.execute(
        query("arrive_members"),
        {
            "group_ids": list(groups),
            "arrived": [sum(r.error is None for r in members) for members in groups.values()],
            "failed": [sum(r.error is not None for r in members) for members in groups.values()],
            "versions": [min(found) if found else None for found in versions.values()],
        },
    )


def _copy(tx: Transaction, run_id: int, worker_id: int, rollouts: Sequence[Rollout]) -> None:
    """Binary COPY, one stream a table; ids are taken first so that the rows can refer to one another."""
    ids = tx.execute(query("reserve_ids"), {"count": len(rollouts)}).fetchall()
    rollout_rows, experience_rows, text_rows, payload_rows = [], [], [], []
    for reserved, rollout in zip(ids, rollouts, strict=True):
        rollout_id, experience_id = reserved["rollout_id"], reserved["experience_id"]
        payload = rollout.payload
        oldest, newest = _versions(payload)
        failed = rollout.error is not None
        rollout_rows.append(
            (rollout_id, run_id, rollout.group.id, rollout.member, rollout.group.attempt,
             "failed" if failed else "finished", worker_id, oldest, newest, rollout.finish_reason,
             rollout.error, rollout.started_at, rollout.finished_at)
        )  # fmt: skip
        if payload is None:
            continue
        num_trained = payload.num_trained
        experience_rows.append(
            (experience_id, run_id, rollout.group.id, rollout_id, 0, "raw", oldest, newest,
             payload.num_tokens - num_trained, num_trained)
        )  # fmt: skip
        text_rows.append((experience_id, rollout.prompt, rollout.response, _messages(rollout.group.task)))
        payload_rows.append((experience_id, arrays.CODEC, payload.num_tokens, arrays.encode(payload)))
    copy_rows(tx, "rollout", ROLLOUT_COLUMNS, rollout_rows)
    copy_rows(tx, "experience", EXPERIENCE_COLUMNS, experience_rows)
    copy_rows(tx, "experience_text", TEXT_COLUMNS, text_rows)
    copy_rows(tx, "payload", PAYLOAD_COLUMNS, payload_rows)


# Column names with their types: a binary COPY converts nothing.
ROLLOUT_COLUMNS = {
    "id": "int8", "run_id": "int8", "group_id": "int8", "ordinal": "int2", "attempt": "int4",
    "state": "trinity.rollout_state", "worker_id": "int8", "version_min": "int4", "version_max": "int4",
    "finish_reason": "text", "error": "text", "started_at": "timestamptz", "finished_at": "timestamptz",
}  # fmt: skip
EXPERIENCE_COLUMNS = {
    "id": "int8", "run_id": "int8", "group_id": "int8", "rollout_id": "int8", "step": "int2",
    "state": "trinity.experience_state", "version_min": "int4", "version_max": "int4",
    "prompt_length": "int4", "response_length": "int4",
}  # fmt: skip
TEXT_COLUMNS = {"experience_id": "int8", "prompt": "text", "response": "text", "messages": "jsonb"}
PAYLOAD_COLUMNS = {"experience_id": "int8", "codec": "text", "num_tokens": "int4", "data": "bytea"}


def copy_rows(tx: Transaction, table: str, columns: dict[str, str], rows: Iterable[tuple[Any, ...]]) -> None:
    """Write rows into a table of the store by COPY in binary form."""
    statement = f"COPY trinity.{table} ({', '.join(columns)}) FROM STDIN (FORMAT binary)"
    with tx.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        # An enum travels as its text; psycopg knows no binary form of the type's name.
        copy.set_types(["text" if "." in kind else kind for kind in columns.values()])
        for row in rows:
            copy.write_row(row)


def _versions(payload: arrays.Payload | None) -> tuple[int | None, int | None]:
    if payload is None or payload.versions is None:
        return None, None
    return int(payload.versions.min()), int(payload.versions.max())


def _messages(task: dict[str, Any]) -> Jsonb | None:
    return Jsonb(task["messages"]) if task.get("messages") else None
