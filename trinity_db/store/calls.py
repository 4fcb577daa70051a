"""Programs that ask the policy over HTTP, and each of their calls, stored before it is answered."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from psycopg.types.json import Jsonb

from trinity_db import arrays
from trinity_db.database import Transaction, storable
from trinity_db.errors import LeaseLost
from trinity_db.schema.queries import query
from trinity_db.store.groups import ClaimedGroup, Rollout


@dataclass(frozen=True)
class Call:
    """One request that an agent made of the policy, with what was sampled."""

    agent_id: int
    number: int
    """Its place among the agent's calls, from 0."""
    digest: bytes
    """Of the request."""
    prompt: str
    payload: arrays.Payload
    """The tokens of prompt and response; the mask says which were sampled."""
    finish_reason: str


@dataclass(frozen=True)
class Resumed:
    """An agent that an explorer before this one let in, with what it did."""

    id: int
    key_hash: bytes
    started_at: datetime
    rewards: dict[str, float]
    calls: list[Call]


@dataclass(frozen=True)
class Entered:
    """An agent that was let in."""

    id: int
    key: str
    retry: int
    """How many attempts at the same member failed before this one."""
    rewards: dict[str, float]
    """What the attempt has said to have earned."""
    started_at: datetime
    """When the attempt began."""


@dataclass(frozen=True)
class Fate:
    """What became of an agent's attempt."""

    run_id: int
    ended: bool
    """Whether no call of it is taken any more."""
    rollout_id: int | None
    """None: no rollout was written."""
    state: str | None
    """finished, failed or refused."""


KEY_BYTES = 24  # of randomness in a key
KEY = re.compile(r"trinity-[A-Za-z0-9_-]{32}")
"""The form of a key."""


def new_key() -> str:
    """A key that no other program has."""
    return f"trinity-{secrets.token_urlsafe(KEY_BYTES)}"


def hash_of(key: str) -> bytes:
    """What the store keeps of a key. Keys are random, so that their hash needs no salt."""
    return sha256(key.encode(errors="surrogateescape")).digest()  # a header may have any bytes


def begin(tx: Transaction, worker_id: int, group: ClaimedGroup, member: int, retry: int, key: str) -> int:
    """Let a program in by its key; returns the agent's id. An earlier agent of the member has ended then.

    Raises:
        LeaseLost: the worker does not hold the group any more.
    """
    values = {
        "worker_id": worker_id,
        "group_id": group.id,
        "attempt": group.attempt,
        "ordinal": member,
        "retry": retry,
        "key_hash": hash_of(key),
    }
    tx.execute(query("supersede_agents"), values)
    tx.execute(query("begin_agent"), values)
    row = tx.execute(query("agent_of_key"), values).fetchone()
    if row is None:
        raise LeaseLost(f"Another explorer has group {group.id} by now.")
    return int(row["id"])


def record(tx: Transaction, worker_id: int, calls: Sequence[Call]) -> set[tuple[int, int]]:
    """Store calls, each once; returns agent and number of those that are stored.

    The others came after their agent's end, or after the end of the worker's lease.
    """
    columns: dict[str, list[Any]] = {
        "agent_ids": [call.agent_id for call in calls],
        "numbers": [call.number for call in calls],
        "digests": [call.digest for call in calls],
        "prompts": [storable(call.prompt) for call in calls],
        "codecs": [arrays.CODEC] * len(calls),
        "num_tokens": [call.payload.num_tokens for call in calls],
        "data": [arrays.encode(call.payload) for call in calls],
        "finish_reasons": [call.finish_reason for call in calls],
    }
    values = {"worker_id": worker_id, **columns}
    return {(row["agent_id"], row["number"]) for row in tx.execute(query("record_calls"), values)}


def end(tx: Transaction, worker_id: int, rollouts: Sequence[Rollout]) -> None:
    """End the agents of rollouts that this transaction has written. Calls of accepted rollouts go."""
    values = {
        "worker_id": worker_id,
        "group_ids": [rollout.group.id for rollout in rollouts],
        "attempts": [rollout.group.attempt for rollout in rollouts],
        "ordinals": [rollout.member for rollout in rollouts],
    }
    tx.execute(query("end_agents"), values)


def resume(tx: Transaction, worker_id: int, group: ClaimedGroup, member: int) -> Resumed | None:
    """Take over the agent of a member that may still call, with its calls in order; None: there is none.

    The worker holds the group, so that no other one stores calls of the agent from now on.
    """
    values = {"worker_id": worker_id, "group_id": group.id, "attempt": group.attempt, "ordinal": member}
    row = tx.execute(query("resume_agent"), values).fetchone()
    if row is None:
        return None
    return Resumed(
        row["id"], bytes(row["key_hash"]), row["started_at"], row["rewards"] or {}, read(tx, row["id"])
    )


def read(tx: Transaction, agent_id: int) -> list[Call]:
    """The calls of an agent in their order."""
    return [
        Call(
            agent_id,
            call["number"],
            bytes(call["digest"]),
            call["prompt"],
            arrays.decode(call["codec"], call["data"], call["num_tokens"]),
            call["finish_reason"],
        )
        for call in tx.execute(query("read_calls"), {"agent_id": agent_id})
    ]


def succeed(tx: Transaction, worker_id: int, before: int, num_calls: int, key: str) -> Entered:
    """Let an agent in that goes on with another's attempt after its first calls, which become its own.

    The worker holds the group of both.
    """
    tx.execute(query("end_agent"), {"agent_id": before})
    values = {"worker_id": worker_id, "agent_id": before, "key_hash": hash_of(key)}
    row = tx.execute(query("succeed_agent"), values).fetchone()
    assert row is not None
    tx.execute(query("move_calls"), {"agent_id": row["id"], "before": before, "calls": num_calls})
    return Entered(row["id"], key, row["retry"], row["rewards"] or {}, row["started_at"])


def reward(tx: Transaction, worker_id: int, agent_id: int, rewards: dict[str, float]) -> bool:
    """Keep what an agent says to have earned; False if it has ended or another worker has it."""
    values = {"worker_id": worker_id, "agent_id": agent_id, "rewards": Jsonb(rewards)}
    return tx.execute(query("reward_agent"), values).rowcount > 0


def dismiss(tx: Transaction, worker_id: int, agent_id: int) -> None:
    """Take no more calls of an agent whose attempt has failed. Its calls stay."""
    tx.execute(query("dismiss_agent"), {"worker_id": worker_id, "agent_id": agent_id})


def fate(tx: Transaction, key_hash: bytes) -> Fate | None:
    """What became of the agent with a key; None: there is none."""
    row = tx.execute(query("fate_of_agent"), {"key_hash": key_hash}).fetchone()
    return Fate(**row) if row else None
