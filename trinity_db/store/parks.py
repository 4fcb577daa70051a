"""Parked attempts: they wait without using an explorer's capacity, are answered, and resume."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from trinity_db.errors import LeaseLost, NotFound, TrinityError
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.typed_rows import ParkedAttempt
from trinity_db.store import calls, runs
from trinity_db.store.calls import Call, Entered
from trinity_db.store.groups import ClaimedGroup, Reward

MAX_BYTES = 2**20  # size limit of a state or an answer as JSON; listings read them in full
Mark = tuple[list[int], Reward, str | None]
"""A rollout step: the numbers of its calls, its reward, and the state of its environment."""


@dataclass(frozen=True)
class Point:
    """Point from which a parked attempt resumes."""

    state: Any
    """State from the workflow: any JSON value."""
    calls: int
    """Number of policy calls so far."""
    steps: Sequence[Mark]
    """Rollout steps made of these calls."""
    version_min: int | None
    """Oldest policy version of its tokens; None without tokens."""
    seconds: float | None
    """Seconds until it resumes without an answer; None: it waits for an answer."""


@dataclass(frozen=True)
class ResumedAttempt:
    """A resumed attempt."""

    state: Any
    answer: Any
    is_answered: bool
    calls: int
    steps: Sequence[Mark]
    attempt: int
    agent: Entered
    """Agent that continues it."""
    recorded: list[Call]
    """Its calls in order."""


@dataclass(frozen=True)
class Answered:
    """Result of answering a ticket."""

    run: str
    run_state: str
    parked_at: datetime | None
    """None: the attempt has not parked yet, and resumes as soon as it does."""


def check(value: Any, label: str) -> None:
    """Check that a value survives a round trip through the store.

    Raises:
        TypeError: if it is not JSON, for example a dict with a key that is not text.
        ValueError: if a number is not finite, a text has a character that Postgres rejects, or it is too
        large.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{label} has half of a surrogate pair, which the store cannot hold.") from None
    except (TypeError, ValueError, RecursionError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{label} is not JSON: {error}") from None
    if size > MAX_BYTES:
        raise ValueError(f"{label} has {size} bytes as JSON; at most {MAX_BYTES} are stored.")
    _check_texts(value, label)


def _check_texts(value: Any, label: str) -> None:
    if isinstance(value, str) and "\x00" in value:
        raise ValueError(f"{label} has the character NUL, which the store cannot hold.")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{label} has the key {key!r:.80}; JSON keys are text.")
            _check_texts(key, label)
            _check_texts(value[key], label)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_texts(item, label)


def ticket(tx: Transaction, worker_id: int, agent_id: int) -> int:
    """Return the ticket for the next park of an agent's attempt. The number is the same until it parks.

    Raises:
        LeaseLost: if the agent has ended, or another worker holds its group.
    """
    values = {"worker_id": worker_id, "agent_id": agent_id}
    tx.execute(query("give_ticket"), values)
    row = tx.execute(query("open_ticket"), values).fetchone()
    if row is None:
        raise LeaseLost("The attempt has ended.")
    return int(row["id"])


def park(
    tx: Transaction,
    worker_id: int,
    agent_id: int,
    number: int,
    attempt: int,
    point: Point,
    unstored: Sequence[Call],
) -> None:
    """Park an attempt with its ticket, and store its calls that are not stored yet. Idempotent.

    Args:
        attempt: lease number of the group at the attempt's start; it seeds the random numbers.

    Raises:
        LeaseLost: if the agent has ended, or another worker holds its group. Nothing is stored then.
    """
    record = {"calls": point.calls, "steps": point.steps, "attempt": attempt}
    values = {
        "worker_id": worker_id,
        "agent_id": agent_id,
        "ticket": number,
        "given": Jsonb(point.state),
        "record": Jsonb(record),
        "version_min": point.version_min,
        "seconds": point.seconds,
    }
    known = calls.record(tx, worker_id, unstored)
    tx.execute(query("leave_park"), values)
    if tx.execute(query("park_attempt"), values).fetchone() is None or len(known) < len(unstored):
        raise LeaseLost("The attempt has ended.")


def answer(tx: Transaction, number: int, value: Any, by: str | None) -> Answered:
    """Answer a parked attempt, so that any explorer of its run resumes it. Idempotent.

    Raises:
        NotFound: if the ticket does not exist.
        TrinityError: if it has another answer, or its attempt resumed without one, or has ended.
    """
    values = {"ticket": number, "answer": Jsonb(value), "by": by}
    is_new = tx.execute(query("answer_park"), values).fetchone() is not None
    row = tx.execute(query("find_park"), values).fetchone()
    if row is None:
        raise NotFound(f"There is no ticket {number}; trinity-db parked RUN lists those of a run.")
    if not is_new and not row["is_same"]:
        raise TrinityError(f"Ticket {number} cannot be answered: {_reason(row)}.")
    runs.announce(tx, row["run_id"])
    return Answered(row["run"], row["run_is"], row["parked_at"])


def _reason(row: DictRow) -> str:
    if row["answered_at"] is not None:
        by = "" if row["answered_by"] is None else f" by {row['answered_by']}"
        return f"it was answered{by} at {row['answered_at']:%Y-%m-%d %H:%M:%S %Z}"
    if row["resumed_at"] is not None:
        return f"its attempt resumed without one at {row['resumed_at']:%Y-%m-%d %H:%M:%S %Z}"
    return f"its attempt ended at {row['ended_at']:%Y-%m-%d %H:%M:%S %Z}"


def resume(
    tx: Transaction, worker_id: int, group: ClaimedGroup, member: int, key: str
) -> ResumedAttempt | None:
    """Resume a parked member of a group that the worker holds, with a new agent; None if none exists.

    Calls made after the attempt parked, for example by an explorer that died, stay with the earlier agent.
    """
    values = {"worker_id": worker_id, "group_id": group.id, "attempt": group.attempt, "ordinal": member}
    row = tx.execute(query("resume_park"), values).fetchone()
    if row is None:
        return None
    record = row["record"]
    agent = calls.succeed(tx, worker_id, row["agent_id"], record["calls"], key)
    tx.execute(query("move_parks"), {"agent_id": agent.id, "before": row["agent_id"]})
    steps = [(numbers, reward, state) for numbers, reward, state in record["steps"]]
    stored = calls.read(tx, agent.id)
    state_and_answer = row["state"], row["answer"], row["is_answered"]
    return ResumedAttempt(*state_and_answer, record["calls"], steps, record["attempt"], agent, stored)


def woken(
    tx: Transaction,
    worker_id: int,
    group_ids: Sequence[int],
    version: int | None,
    max_staleness: int | None,
    greedy: bool,
) -> list[ClaimedGroup]:
    """Return parked members that may resume, in groups that the worker holds.

    Args:
        version: the version that the worker has loaded; staleness is counted from it.
    """
    values = {
        "worker_id": worker_id,
        "group_ids": list(group_ids),
        "version": version,
        "max_staleness": max_staleness,
    }
    return [
        ClaimedGroup(
            row["id"],
            row["attempt"],
            row["payload"],
            row["members"],
            row["expected"] - 1 if greedy and row["key"] is None else None,
            row["key"],
            parked=frozenset(row["members"]),
            stale=frozenset(row["stale"]),
        )
        for row in tx.execute(query("woken_members"), values)
    ]


def end_spare(tx: Transaction, group_ids: Sequence[int]) -> None:
    """End parked attempts in groups that are complete without them."""
    tx.execute(query("end_spare_parks"), {"group_ids": list(group_ids)})


def parked(tx: Transaction, run_id: int, limit: int) -> list[ParkedAttempt]:
    """List the parked attempts of a run, longest first."""
    return cast(
        list[ParkedAttempt], tx.execute(query("list_parks"), {"run_id": run_id, "limit": limit}).fetchall()
    )
