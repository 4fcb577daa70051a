"""Rollout groups as the explorer handles them: how many to start, which, and writing what came of them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from trinity_db import arrays
from trinity_db.database import Transaction, storable
from trinity_db.schema.queries import query
from trinity_db.schema.states import RolloutState
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
    after a commit whose outcome was unclear, is left alone.
    """
    held = _held_groups(tx, worker_id, rollouts)
    known = _known_rollouts(tx, rollouts)
    new = [r for r in rollouts if (r.group.id, r.group.attempt, r.member) not in known]
    fresh = [r for r in new if (r.group.id, r.group.attempt) in held]
    late = [r for r in new if (r.group.id, r.group.attempt) not in held]
    if fresh:
        _copy(tx, run_id, worker_id, fresh)
        _arrive(tx, fresh)
        runs.announce(tx, run_id)
    if late:
        _record_late(tx, run_id, _copy(tx, run_id, worker_id, late, refused=True))
    return len(late) + sum(state == RolloutState.REFUSED for state in known.values())


def _held_groups(tx: Transaction, worker_id: int, rollouts: Iterable[Rollout]) -> set[tuple[int, int]]:
    """The groups, each with the attempt, that are still this worker's; all of them are locked."""
    leases = list({(r.group.id, r.group.attempt) for r in rollouts})
    rows = tx.execute(
        query("hold_groups"),
        {
            "worker_id": worker_id,
            "group_ids": [group for group, _ in leases],
            "attempts": [attempt for _, attempt in leases],
        },
    )
    return {(row["id"], row["attempt"]) for row in rows if row["held"]}


def _known_rollouts(tx: Transaction, rollouts: Iterable[Rollout]) -> dict[tuple[int, int, int], RolloutState]:
    """The state of each rollout that is stored already, by its group, attempt and member."""
    keys = [(r.group.id, r.group.attempt, r.member) for r in rollouts]
    rows = tx.execute(
        query("known_rollouts"),
        {
            "group_ids": [group for group, _, _ in keys],
            "attempts": [attempt for _, attempt, _ in keys],
            "ordinals": [member for _, _, member in keys],
        },
    )
    return {(row["group_id"], row["attempt"], row["ordinal"]): RolloutState(row["state"]) for row in rows}


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


def _record_late(tx: Transaction, run_id: int, experience_ids: Sequence[int]) -> None:
    num_late = len(experience_ids)
    tx.execute(
        query("record_drops"),
        {
            "run_id": run_id,
            "stage": "explore",
            "ids": experience_ids,
            "reasons": ["late"] * num_late,
            "details": [None] * num_late,
        },
    )


def _copy(
    tx: Transaction, run_id: int, worker_id: int, rollouts: Sequence[Rollout], refused: bool = False
) -> list[int]:
    """Binary COPY, one stream a table; returns the ids of the experiences.

    Ids are taken first so that the rows can refer to one another.
    """
    ids = tx.execute(query("reserve_ids"), {"count": len(rollouts)}).fetchall()
    rollout_rows, experience_rows, text_rows, payload_rows = [], [], [], []
    for reserved, rollout in zip(ids, rollouts, strict=True):
        rollout_id, experience_id = reserved["rollout_id"], reserved["experience_id"]
        payload = rollout.payload
        oldest, newest = _versions(payload)
        rollout_rows.append(
            (rollout_id, run_id, rollout.group.id, rollout.member, rollout.group.attempt,
             *_ending(rollout, refused), worker_id, oldest, newest, rollout.started_at, rollout.finished_at)
        )  # fmt: skip
        if payload is None:
            continue
        num_trained = payload.num_trained
        experience_rows.append(
            (experience_id, run_id, rollout.group.id, rollout_id, 0, "dropped" if refused else "raw",
             oldest, newest, payload.num_tokens - num_trained, num_trained)
        )  # fmt: skip
        prompt, response = storable(rollout.prompt), storable(rollout.response)
        text_rows.append((experience_id, prompt, response, _messages(rollout.group.task)))
        payload_rows.append((experience_id, arrays.CODEC, payload.num_tokens, arrays.encode(payload)))
    copy_rows(tx, "rollout", ROLLOUT_COLUMNS, rollout_rows)
    copy_rows(tx, "experience", EXPERIENCE_COLUMNS, experience_rows)
    copy_rows(tx, "experience_text", TEXT_COLUMNS, text_rows)
    copy_rows(tx, "payload", PAYLOAD_COLUMNS, payload_rows)
    return [row[0] for row in experience_rows]


def _ending(rollout: Rollout, refused: bool) -> tuple[RolloutState, str | None, str | None]:
    """State, finish reason and error. Only a failed rollout has an error: a refused one ended with it."""
    reason, error = (text and storable(text) for text in (rollout.finish_reason, rollout.error))
    if refused:
        return RolloutState.REFUSED, error or reason, None
    return RolloutState.FINISHED if error is None else RolloutState.FAILED, reason, error


# Column names with their types: a binary COPY converts nothing.
ROLLOUT_COLUMNS = {
    "id": "int8", "run_id": "int8", "group_id": "int8", "ordinal": "int2", "attempt": "int4",
    "state": "trinity.rollout_state", "finish_reason": "text", "error": "text", "worker_id": "int8",
    "version_min": "int4", "version_max": "int4", "started_at": "timestamptz", "finished_at": "timestamptz",
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
