"""Agents that call the policy over HTTP, and each of their calls, stored before it is answered."""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from math import isfinite
from typing import Any

from psycopg.types.json import Jsonb

from trinity_db.arrays import codec
from trinity_db.errors import LeaseLost
from trinity_db.postgres.connection import Transaction, storable
from trinity_db.schema.queries import query
from trinity_db.store.groups import ClaimedGroup, Rollout


@dataclass(frozen=True)
class Call:
    """One request of an agent to the policy, with the sampled response."""

    agent_id: int
    number: int
    """Position among the agent's calls, from 0."""
    digest: bytes
    """Digest of the request."""
    prompt: str
    payload: codec.Payload
    """Tokens of prompt and response; the mask marks the sampled ones."""
    finish_reason: str
    replaced: Mapping[str, Any] = field(default_factory=dict)
    """Values of options that the request gave and the call did not follow, by their place in the request."""
    path: str | None = None
    """Path of the request. None: the workflow itself asked."""
    model: str | None = None
    """Model name in the request."""


@dataclass(frozen=True)
class ResumedAgent:
    """An agent that an earlier explorer admitted, with its calls and rewards so far."""

    id: int
    key_hash: bytes
    started_at: datetime
    rewards: dict[str, float]
    calls: list[Call]


@dataclass(frozen=True)
class Entered:
    """An agent that was admitted."""

    id: int
    key: str
    retry: int
    """Number of failed attempts at the same member before this one."""
    rewards: dict[str, float]
    """Rewards reported by the attempt so far."""
    started_at: datetime
    """Start of the attempt."""


@dataclass(frozen=True)
class Fate:
    """State of an agent's attempt."""

    run_id: int
    ended: bool
    """Whether its calls are no longer accepted."""
    rollout_id: int | None
    """None: no rollout was written."""
    state: str | None
    """finished, failed or refused."""


KEY_BYTES = 24  # random bytes per key
MAX_DEPTH = 100  # stored levels of an option: a deeper one would fail all calls of its transaction
KEY = re.compile(r"trinity-[A-Za-z0-9_-]{32}")
"""The form of a key."""


def new_key() -> str:
    """Generate a random key."""
    return f"trinity-{secrets.token_urlsafe(KEY_BYTES)}"


def hash_of(key: str) -> bytes:
    """Hash a key; only the hash is stored. Keys are random, so the hash needs no salt."""
    return sha256(key.encode(errors="surrogateescape")).digest()  # a header may contain any bytes


def begin(tx: Transaction, worker_id: int, group: ClaimedGroup, member: int, retry: int, key: str) -> int:
    """Admit an agent with its key and end an earlier agent of the same member; returns the agent's id.

    Raises:
        LeaseLost: if the worker no longer holds the group.
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
        raise LeaseLost(f"Another explorer holds group {group.id} now.")
    return int(row["id"])


def record(tx: Transaction, worker_id: int, calls: Sequence[Call]) -> set[tuple[int, int]]:
    """Store calls, each once; returns agent id and number of the stored calls.

    The others arrived after their agent had ended, or after the worker's lease had expired.
    """
    columns: dict[str, list[Any]] = {
        "agent_ids": [call.agent_id for call in calls],
        "numbers": [call.number for call in calls],
        "digests": [call.digest for call in calls],
        "prompts": [storable(call.prompt) for call in calls],
        "codecs": [codec.CODEC] * len(calls),
        "num_tokens": [call.payload.num_tokens for call in calls],
        "data": [codec.encode(call.payload) for call in calls],
        "finish_reasons": [call.finish_reason for call in calls],
        "replaced": [Jsonb(_storable(call.replaced)) if call.replaced else None for call in calls],
        "paths": [call.path for call in calls],
        "models": [call.model and storable(call.model) for call in calls],
    }
    values = {"worker_id": worker_id, **columns}
    return {(row["agent_id"], row["number"]) for row in tx.execute(query("record_calls"), values)}


def _storable(value: Any, depth: int = 0) -> Any:
    """Return a JSON value in a form that Postgres accepts.

    A number that it cannot hold becomes text, and so do lists and objects below `MAX_DEPTH` levels.
    """
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, Mapping | list) and depth == MAX_DEPTH:
        return "nested too deeply"
    if isinstance(value, Mapping):
        return {storable(str(key)): _storable(below, depth + 1) for key, below in value.items()}
    return [_storable(below, depth + 1) for below in value] if isinstance(value, list) else value


def end(tx: Transaction, worker_id: int, rollouts: Sequence[Rollout]) -> None:
    """End the agents of rollouts written in this transaction.

    Calls of accepted rollouts are deleted; those with replaced options lose their tokens only, and those that
    are left out of training stay.
    """
    left_out = [
        (rollout.group.id, rollout.member, *call) for rollout in rollouts for call in rollout.left_out.items()
    ]
    if left_out:
        names = ("group_ids", "ordinals", "numbers", "reasons")
        columns = dict(zip(names, map(list, zip(*left_out, strict=True)), strict=True))
        tx.execute(query("leave_out_calls"), {"worker_id": worker_id, **columns})
    values = {
        "worker_id": worker_id,
        "group_ids": [rollout.group.id for rollout in rollouts],
        "attempts": [rollout.group.attempt for rollout in rollouts],
        "ordinals": [rollout.member for rollout in rollouts],
    }
    tx.execute(query("end_agents"), values)


def resume(tx: Transaction, worker_id: int, group: ClaimedGroup, member: int) -> ResumedAgent | None:
    """Take over the agent of a member that may still call, with its calls in order; None if none exists.

    The worker holds the group, so no other worker can store calls of this agent.
    """
    values = {"worker_id": worker_id, "group_id": group.id, "attempt": group.attempt, "ordinal": member}
    row = tx.execute(query("resume_agent"), values).fetchone()
    if row is None:
        return None
    return ResumedAgent(
        row["id"], bytes(row["key_hash"]), row["started_at"], row["rewards"] or {}, read(tx, row["id"])
    )


def read(tx: Transaction, agent_id: int) -> list[Call]:
    """Read the calls of an agent in order."""
    return [
        Call(
            agent_id,
            call["number"],
            bytes(call["digest"]),
            call["prompt"],
            codec.decode(call["codec"], call["data"], call["num_tokens"]),
            call["finish_reason"],
            path=call["path"],
            model=call["model"],
        )
        for call in tx.execute(query("read_calls"), {"agent_id": agent_id})
    ]


def succeed(tx: Transaction, worker_id: int, before: int, num_calls: int, key: str) -> Entered:
    """Admit an agent that continues another agent's attempt and takes over its first calls.

    The worker holds the group of both.
    """
    tx.execute(query("end_agent"), {"agent_id": before})
    values = {"worker_id": worker_id, "agent_id": before, "key_hash": hash_of(key)}
    row = tx.execute(query("succeed_agent"), values).fetchone()
    assert row is not None
    tx.execute(query("move_calls"), {"agent_id": row["id"], "before": before, "calls": num_calls})
    return Entered(row["id"], key, row["retry"], row["rewards"] or {}, row["started_at"])


def reward(tx: Transaction, worker_id: int, agent_id: int, rewards: dict[str, float]) -> bool:
    """Store the rewards that an agent reports; False if it has ended or another worker holds it."""
    values = {"worker_id": worker_id, "agent_id": agent_id, "rewards": Jsonb(rewards)}
    return tx.execute(query("reward_agent"), values).rowcount > 0


def dismiss(tx: Transaction, worker_id: int, agent_id: int) -> None:
    """Stop accepting calls of an agent whose attempt has failed. Its calls are kept."""
    tx.execute(query("dismiss_agent"), {"worker_id": worker_id, "agent_id": agent_id})


def fate(tx: Transaction, key_hash: bytes) -> Fate | None:
    """State of the agent with a key; None if unknown."""
    row = tx.execute(query("fate_of_agent"), {"key_hash": key_hash}).fetchone()
    return Fate(**row) if row else None
