"""Rollout groups for explorers: pace, claim, and write the results."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
from psycopg.types.json import Jsonb

from trinity_db.arrays import codec
from trinity_db.postgres.connection import Transaction, storable
from trinity_db.schema.queries import query
from trinity_db.store import runs
from trinity_db.store.rewards import MAX_REWARD
from trinity_db.store.selection import TaskSelection, choose

WORKFLOW = "workflow"  # default name of a workflow's reward
MAX_NAMES = 100  # reward names per attempt or step: each is a row, and explorers' writes are serialised


@dataclass(frozen=True)
class Pace:
    """How far explorers may run ahead of the trainer, in rollout groups.

    Started groups that the explorer's version does not include never exceed
    `(max_staleness + 1) * per_version`, so no group arrives staler than the limit as long as every publish
    consumes `per_version` groups in order of their start; an overtaken group may expire. Counted from the
    groups that versions include, not from version numbers: a version may be early, or be withdrawn. None:
    no limit.
    """

    max_staleness: int | None
    per_version: int
    backlog: int | None = None
    """Without a staleness limit: number of groups that may be waiting or in exploration. None: unlimited."""
    most: int | None = None
    """Number of groups that the run may start in total. None: unlimited."""

    def capacity(self, unpublished: int, waiting: int, running: int, started: int) -> int | None:
        """Number of groups that may be started now; None: unlimited."""
        room = []
        if self.max_staleness is not None:
            room.append((self.max_staleness + 1) * self.per_version - unpublished - waiting - running)
        elif self.backlog is not None:
            room.append(self.backlog - waiting - running)
        if self.most is not None:
            room.append(self.most - started)
        return max(0, min(room)) if room else None


@dataclass(frozen=True)
class ClaimedGroup:
    """A group that this worker explores, with its missing members and the fencing token (`attempt`)."""

    id: int
    attempt: int
    task: dict[str, Any]
    members: list[int]
    greedy: int | None = None
    """Member to be sampled at temperature 0, as a baseline for the others."""
    key: int | None = None
    """Key of the task, the same in every store; seeds the random numbers of an evaluation. None: group id."""
    parked: frozenset[int] = frozenset()
    """Members that resume from where they parked."""
    stale: frozenset[int] = frozenset()
    """Parked members that are not resumed, because the group would be too stale for training."""
    waits: bool = False
    """Whether other members are parked and cannot be resumed yet."""

    @property
    def is_evaluation(self) -> bool:
        """Whether its members are attempts of an evaluation."""
        return self.key is not None

    @property
    def origin(self) -> tuple[int, ...]:
        """Origin of the random numbers of its attempts, in addition to a seed."""
        return (self.id, self.attempt) if self.key is None else (self.key,)


Reward: TypeAlias = float | Mapping[str, float] | None
"""Reward from a workflow: a number, numbers by name, or nothing."""


def named_rewards(reward: Reward) -> dict[str, float]:
    """Return a reward's values by name; a single number is named `workflow`.

    Raises:
        TypeError: if it is not a number, or a name is not text.
        ValueError: if a number is not finite or too large, a name cannot be stored, or there are over 100.
    """
    if reward is None:
        return {}
    if not isinstance(reward, Mapping):
        return {WORKFLOW: _value(reward, "The reward of a step")}
    if len(reward) > MAX_NAMES:
        raise ValueError(f"There are {len(reward)} rewards; at most {MAX_NAMES} names are stored.")
    for name in reward:
        if not isinstance(name, str):
            raise TypeError(f"The name of a reward is {type(name).__name__}, not text.")
        if not name.isprintable() or not 0 < len(name.encode()) <= runs.MAX_NAME_BYTES:
            raise ValueError(
                f"The name of a reward is {name!r:.80}; it has 1 to {runs.MAX_NAME_BYTES} printable bytes."
            )
    return {name: _value(value, f"The reward '{name}' of a step") for name, value in reward.items()}


def _value(value: Any, label: str) -> float:
    if not isinstance(value, int | float | np.integer | np.floating | np.bool_):
        raise TypeError(f"{label} is {type(value).__name__}, not a number.")
    try:
        number = float(value)
    except OverflowError:  # Python ints have no upper limit
        number = math.inf
    if not abs(number) <= MAX_REWARD:  # also nan
        raise ValueError(f"{label} is {number:g}, not a number up to {MAX_REWARD:g}.")
    return number


@dataclass(frozen=True)
class Step:
    """One prompt and response of an attempt."""

    prompt: str
    response: str
    payload: codec.Payload
    reward: Reward = None
    """Reward from the workflow; reward functions add theirs. None: 0 if other steps of the attempt have a
    reward."""
    state: str | None = None
    """State of the environment in which the response acted, for algorithms that compare actions in equal
    states of one task (GiGPO). None: the prompt is the state."""
    requests: Sequence[Mapping[str, Any]] = ()
    """Requests of programs that it answers: path, model and number of calls of each kind."""
    shares_reward: bool = False
    """Whether it is one of the attempt's sequences, each of which has the reward of the whole attempt."""

    def __post_init__(self) -> None:
        texts = {"prompt": self.prompt, "response": self.response}
        if self.state is not None:
            texts["state"] = self.state
        for name, text in texts.items():
            if not isinstance(text, str):
                raise TypeError(f"The {name} of a step is {type(text).__name__}, not text.")
        named_rewards(self.reward)  # raises if it is invalid


@dataclass(frozen=True)
class Rollout:
    """One ended attempt, ready to be written: finished with steps, or failed with an error."""

    group: ClaimedGroup
    member: int
    started_at: datetime
    finished_at: datetime
    finish_reason: str | None = None
    error: str | None = None
    was_cancelled: bool = False
    """Whether the explorer ended the attempt: the error is unrelated to workflow and task."""
    given_back: bool = False
    """Whether it could not begin here, for a reason unrelated to the task: any explorer may retry it."""
    steps: Sequence[Step] = ()
    """All steps of the attempt, in order; none if it failed."""
    output: str | None = None
    """Last lines that its program wrote."""
    left_out: Mapping[int, str] = field(default_factory=dict)
    """Numbers of calls whose tokens are left out of training, and why."""

    def __post_init__(self) -> None:
        if bool(self.steps) == (self.error is not None):
            raise ValueError("A rollout needs steps, or an error if it failed.")
        if self.given_back and self.error is None:
            raise ValueError("A rollout that is given back needs an error.")
        if any(step.payload.versions is None for step in self.steps):
            raise ValueError("A rollout's payload needs log-probability and version of each sampled token.")


@dataclass(frozen=True)
class Unwanted:
    """Counts of written rollouts that did not become members of their groups."""

    refused: int
    """Refused because another worker holds the group, or it is complete; kept for the record."""
    spare: int
    """Refused rollouts whose groups were complete without them."""
    lost: int
    """Not stored, because the group no longer exists."""


@dataclass(frozen=True)
class GroupPlan:
    """How an explorer claims groups: how far ahead, of which tasks, and of what size."""

    pace: Pace
    selection: TaskSelection
    size: int
    """Members of a group, without the greedy one."""
    greedy: bool = False
    """Whether a group has one more member, its last, sampled at temperature 0."""
    spare: int = 0
    """Additional members that are attempted; the first ones written become the members of the group."""

    @property
    def attempts(self) -> int:
        """Attempts that are started together."""
        return self.size + self.greedy + self.spare


def claim(
    tx: Transaction, run_id: int, worker_id: int, plan: GroupPlan, version: int, limit: int
) -> list[ClaimedGroup]:
    """Claim up to `limit` groups to explore: abandoned ones first, then new ones within the pace.

    Explorers of a run are serialised here, so together they respect the pace.

    Args:
        version: policy version that the groups start with.
    """
    values = {
        "run_id": run_id,
        "worker_id": worker_id,
        "spare": plan.spare,
        "version": version,
        "max_staleness": plan.pace.max_staleness,
    }
    with tx.pipeline():  # others wait meanwhile: save round trips
        tx.execute(query("lock_pace"), values)
        abandoned = tx.execute(query("claim_abandoned_groups"), {**values, "limit": limit})
        counted = tx.execute(query("count_pace"), values).fetchone()
        assert counted is not None
        rows = abandoned.fetchall()
        capacity = plan.pace.capacity(**counted)
        room = limit - len(rows) if capacity is None else min(limit - len(rows), capacity)
        if room > 0:
            task_ids, size = choose(tx, run_id, plan.selection, room), plan.size + plan.greedy
            started = {"task_ids": task_ids, "group_size": size}
            rows += tx.execute(query("start_groups"), values | started).fetchall()
    return [
        ClaimedGroup(
            row["id"],
            row["attempt"],
            row["payload"],
            row["members"],
            row["expected"] - 1 if plan.greedy else None,
            parked=frozenset(row.get("parked", ())),
            stale=frozenset(row.get("stale", ())),
            waits=row.get("waits", False),
        )
        for row in rows
    ]


def all_explored(tx: Transaction, run_id: int, most: int) -> bool:
    """Whether the run has started `most` groups, and all of them are explored."""
    row = tx.execute(query("count_explored"), {"run_id": run_id}).fetchone()
    assert row is not None
    return row["started"] >= most and not row["open"]


def write_rollouts(tx: Transaction, run_id: int, worker_id: int, rollouts: Sequence[Rollout]) -> Unwanted:
    """Store rollouts with their experiences, texts and arrays; returns the counts of unwanted ones.

    A refused rollout is kept with the lease (`attempt`) under which it was made. A rollout that is stored
    already, for example after a commit with unknown outcome, is skipped. All statements are sent in one
    pipeline.
    """
    group_ids = list({rollout.group.id for rollout in rollouts})
    steps = [(rollout, number, step) for rollout in rollouts for number, step in enumerate(rollout.steps)]
    later = [(rollout, number, step) for rollout, number, step in steps if number]
    rewarded = [item for item in steps if any(step.reward is not None for step in item[0].steps)]
    with tx.pipeline():
        tx.execute(query("hold_groups"), {"group_ids": group_ids})
        written = tx.execute(
            query("write_rollouts"),
            {"run_id": run_id, "worker_id": worker_id, **_columns(rollouts)},
        )
        if later:
            tx.execute(query("write_steps"), _steps(later))
        if rewarded:
            tx.execute(query("reward_steps"), _rewards(rewarded))
        runs.announce(tx, run_id)
    row = written.fetchone()
    assert row is not None
    return Unwanted(refused=row["refused"], spare=row["spare"], lost=len(rollouts) - row["known"])


def give_back(
    tx: Transaction, run_id: int, worker_id: int, rollouts: Sequence[Rollout], group_ids: Sequence[int]
) -> None:
    """Record attempts that did not begin, and release groups to other explorers. Idempotent.

    Args:
        group_ids: groups without an attempt in progress here, and whose ended attempts are all written.
    """
    values = {
        "worker_id": worker_id,
        "group_ids": [rollout.group.id for rollout in rollouts],
        "ordinals": [rollout.member for rollout in rollouts],
        "attempts": [rollout.group.attempt for rollout in rollouts],
        "greedy": [rollout.member == rollout.group.greedy for rollout in rollouts],
        "reasons": [storable(f"given back: {rollout.error}") for rollout in rollouts],
        "started_at": [rollout.started_at for rollout in rollouts],
        "finished_at": [rollout.finished_at for rollout in rollouts],
    }
    tx.execute(query("write_given_back"), values)
    tx.execute(query("give_back_groups"), {"worker_id": worker_id, "group_ids": list(group_ids)})
    runs.announce(tx, run_id)


def complete(tx: Transaction, group_ids: Iterable[int]) -> set[int]:
    """Return those of the given groups that have all their members."""
    rows = tx.execute(query("find_complete_groups"), {"group_ids": list(group_ids)}).fetchall()
    return {row["id"] for row in rows}


COLUMNS = (
    "group_ids", "attempts", "ordinals", "reasons", "errors", "greedy", "started_at", "finished_at",
    "outputs", "prompts", "responses", "messages", "states", "requests", "codecs", "payloads",
    "prompt_lengths", "response_lengths", "oldest", "newest",
)  # fmt: skip


def _columns(rollouts: Iterable[Rollout]) -> dict[str, list[Any]]:
    """Build the arrays of `write_rollouts`: for each rollout its values, with its first step."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for rollout in rollouts:
        group, first = rollout.group, next(iter(rollout.steps), None)
        texts = rollout.finish_reason, rollout.error, rollout.output
        reason, error, output = (text and storable(text) for text in texts)
        member = (group.id, group.attempt, rollout.member, reason, error, rollout.member == group.greedy)
        prompt, response, *about_step = _about(first) if first else (None,) * 4
        content = (prompt, response, _messages(group.task), *about_step)
        packed = _packed(first.payload if first else None)
        row = (*member, rollout.started_at, rollout.finished_at, output, *content, *packed)
        for values, value in zip(columns.values(), row, strict=True):
            values.append(value)
    return columns


Steps = Sequence[tuple[Rollout, int, Step]]
"""Steps with their rollouts, and their positions in these."""


def _places(steps: Steps) -> dict[str, list[int]]:
    """Build the arrays that locate steps in a statement."""
    return {
        "group_ids": [rollout.group.id for rollout, _, _ in steps],
        "attempts": [rollout.group.attempt for rollout, _, _ in steps],
        "ordinals": [rollout.member for rollout, _, _ in steps],
        "steps": [number for _, number, _ in steps],
    }


def _rewards(steps: Steps) -> dict[str, list[Any]]:
    """Build the arrays of `reward_steps`. A step without a reward gets 0 for each name of its attempt."""
    entries = []
    for item in steps:
        attempt = (name for step in item[0].steps for name in named_rewards(step.reward))
        entries += [
            (item, *pair) for pair in (named_rewards(item[2].reward) or dict.fromkeys(attempt, 0.0)).items()
        ]
    names, values = [name for _, name, _ in entries], [value for _, _, value in entries]
    return {**_places([item for item, _, _ in entries]), "names": names, "rewards": values}


def _steps(steps: Steps) -> dict[str, list[Any]]:
    """Build the arrays of `write_steps`."""
    names = (
        "prompts",
        "responses",
        "states",
        "requests",
        "codecs",
        "payloads",
        "prompt_lengths",
        "response_lengths",
        "oldest",
        "newest",
        "shares",
    )
    rows = [(*_about(step), *_packed(step.payload), step.shares_reward) for _, _, step in steps]
    return _places(steps) | dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def _about(step: Step) -> tuple[str, str, str | None, Jsonb | None]:
    """Prompt, response and state without characters that Postgres rejects, and requests."""
    state, requests = step.state and storable(step.state), [dict(request) for request in step.requests]
    return storable(step.prompt), storable(step.response), state, Jsonb(requests) if requests else None


def _packed(payload: codec.Payload | None) -> tuple[Any, ...]:
    """Codec, bytes, number of prompt and response tokens, oldest and newest version."""
    if payload is None or payload.versions is None:
        return (None,) * 6
    num_trained = len(payload.versions)
    versions = int(payload.versions.min()), int(payload.versions.max())
    packed = codec.CODEC, codec.encode(payload)
    return *packed, payload.num_tokens - num_trained, num_trained, *versions


def _messages(task: dict[str, Any]) -> Jsonb | None:
    return Jsonb(task["messages"]) if task.get("messages") else None
