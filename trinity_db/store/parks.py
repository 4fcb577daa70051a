"""Attempts that wait without a place in an explorer: how they park, are answered, and go on."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from trinity_db.database import Transaction
from trinity_db.errors import LeaseLost, NotFound, TrinityError
from trinity_db.schema.queries import query
from trinity_db.store import calls, runs
from trinity_db.store.calls import Call, Entered
from trinity_db.store.groups import ClaimedGroup, Reward

MAX_BYTES = 2**20  # of a state or an answer, as JSON: they are read whole each time that people look
Mark = tuple[list[int], Reward, str | None]
"""A rollout step: the numbers of its calls, what it earned, and the state of its environment."""


@dataclass(frozen=True)
class Point:
    """A point of an attempt from which it goes on."""

    state: Any
    """What the workflow gave: any JSON value."""
    calls: int
    """How many calls of the policy there were."""
    steps: Sequence[Mark]
    """The rollout steps that were made of them."""
    version_min: int | None
    """Oldest policy version of its tokens; None: it has none."""
    seconds: float | None
    """After which it goes on without an answer; None: it waits for one."""


@dataclass(frozen=True)
class Resumed:
    """A parked attempt that goes on."""

    state: Any
    answer: Any
    is_answered: bool
    calls: int
    steps: Sequence[Mark]
    attempt: int
    agent: Entered
    """The agent that goes on with it."""
    said: list[Call]
    """Its calls in their order."""


@dataclass(frozen=True)
class Answered:
    """What came of an answer."""

    run: str
    run_state: str
    parked_at: datetime | None
    """None: the attempt has not parked yet, and goes on at once when it does."""


def check(value: Any, what: str) -> None:
    """Refuse what would not come back from the store as it is.

    Raises:
        TypeError: it is no JSON, as a key of a dict that is no text.
        ValueError: a number is not finite, a text has a character that Postgres does not take, or it is too
            large.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} has half of a surrogate pair, which the store does not take.") from None
    except (TypeError, ValueError, RecursionError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{what} is no JSON: {error}") from None
    if size > MAX_BYTES:
        raise ValueError(f"{what} has {size} bytes as JSON; at most {MAX_BYTES} are stored.")
    _check_texts(value, what)


def _check_texts(value: Any, what: str) -> None:
    if isinstance(value, str) and "\x00" in value:
        raise ValueError(f"{what} has the character NUL, which the store does not take.")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{what} has the key {key!r:.80}; the keys of JSON are texts.")
            _check_texts(key, what)
            _check_texts(value[key], what)
    elif isinstance(value, list | tuple):
        for one in value:
            _check_texts(one, what)


def ticket(tx: Transaction, worker_id: int, agent_id: int) -> int:
    """The number by which the next park of an agent's attempt is answered. It is the same until it parks.

    Raises:
        LeaseLost: the agent has ended, or another worker has its group.
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
    said: Sequence[Call],
) -> None:
    """Park an attempt by its ticket, with the calls that are not stored yet. Harmless when repeated.

    Args:
        attempt: of the group's lease under which it began; its random numbers follow from it.

    Raises:
        LeaseLost: the agent has ended, or another worker has its group. Nothing is stored then.
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
    known = calls.record(tx, worker_id, said)
    tx.execute(query("leave_park"), values)
    if tx.execute(query("park_attempt"), values).fetchone() is None or len(known) < len(said):
        raise LeaseLost("The attempt has ended.")


def answer(tx: Transaction, number: int, value: Any, by: str | None) -> Answered:
    """Answer a parked attempt, which any explorer of its run goes on with. Harmless when repeated.

    Raises:
        NotFound: there is no such ticket.
        TrinityError: it has another answer, or its attempt went on without one, or has ended.
    """
    values = {"ticket": number, "answer": Jsonb(value), "by": by}
    is_new = tx.execute(query("answer_park"), values).fetchone() is not None
    found = tx.execute(query("find_park"), values).fetchone()
    if found is None:
        raise NotFound(f"There is no ticket {number}; trinity-db parked RUN lists those of a run.")
    if not is_new and not found["is_same"]:
        raise TrinityError(f"Ticket {number} takes no answer: {_reason(found)}.")
    runs.announce(tx, found["run_id"])
    return Answered(found["run"], found["run_is"], found["parked_at"])


def _reason(found: DictRow) -> str:
    if found["answered_at"] is not None:
        by = "" if found["answered_by"] is None else f" by {found['answered_by']}"
        return f"it was answered{by} at {found['answered_at']:%Y-%m-%d %H:%M:%S %Z}"
    if found["resumed_at"] is not None:
        return f"its attempt went on without one at {found['resumed_at']:%Y-%m-%d %H:%M:%S %Z}"
    return f"its attempt ended at {found['ended_at']:%Y-%m-%d %H:%M:%S %Z}"


def resume(tx: Transaction, worker_id: int, group: ClaimedGroup, member: int, key: str) -> Resumed | None:
    """Go on with a parked member of a group that the worker holds, by a new agent; None: there is none.

    Calls that the attempt made after it parked, as by an explorer that died, stay with the agent before.
    """
    values = {"worker_id": worker_id, "group_id": group.id, "attempt": group.attempt, "ordinal": member}
    found = tx.execute(query("resume_park"), values).fetchone()
    if found is None:
        return None
    record = found["record"]
    agent = calls.succeed(tx, worker_id, found["agent_id"], record["calls"], key)
    tx.execute(query("move_parks"), {"agent_id": agent.id, "before": found["agent_id"]})
    steps = [(numbers, reward, state) for numbers, reward, state in record["steps"]]
    said = calls.read(tx, agent.id)
    asked = found["state"], found["answer"], found["is_answered"]
    return Resumed(*asked, record["calls"], steps, record["attempt"], agent, said)


def woken(
    tx: Transaction,
    worker_id: int,
    group_ids: Sequence[int],
    version: int | None,
    max_staleness: int | None,
    greedy: bool,
) -> list[ClaimedGroup]:
    """Parked members that may go on, of groups that the worker holds.

    Args:
        version: the one that the worker has loaded; staleness is counted from it.
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
    """End parked attempts of groups that are complete without them."""
    tx.execute(query("end_spare_parks"), {"group_ids": list(group_ids)})


def parked(tx: Transaction, run_id: int, limit: int) -> list[DictRow]:
    """Attempts of a run that are parked now, the longest first."""
    return tx.execute(query("list_parks"), {"run_id": run_id, "limit": limit}).fetchall()
