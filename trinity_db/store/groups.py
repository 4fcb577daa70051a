"""Rollout groups as the explorer handles them: how many to start, which, and writing what came of them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
from psycopg.types.json import Jsonb

from trinity_db import arrays
from trinity_db.database import Transaction, storable
from trinity_db.schema.queries import query
from trinity_db.store import runs
from trinity_db.store.rewards import MAX_REWARD
from trinity_db.store.selection import Selection, choose

WORKFLOW = "workflow"  # the name of a reward that a workflow gives without one
MAX_NAMES = 100  # of rewards of an attempt or a step: each is a row, and the explorer's writes take turns


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
    backlog: int | None = None
    """Without a staleness limit: how many groups may wait or be explored. None: any number."""
    most: int | None = None
    """How many groups the run may start in all. None: any number."""

    def capacity(self, unpublished: int, waiting: int, running: int, started: int) -> int | None:
        """How many more groups may be started; None: any number."""
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
    """A group that this worker explores: the members that are missing, and the fencing token."""

    id: int
    attempt: int
    task: dict[str, Any]
    members: list[int]
    greedy: int | None = None
    """The member that is to be sampled at temperature 0, for the others to be compared with."""
    key: int | None = None
    """Tells the task in every store: random numbers of an evaluation follow from it. None: from the group."""
    parked: frozenset[int] = frozenset()
    """Those of its members that go on from where they parked."""
    stale: frozenset[int] = frozenset()
    """Those of the parked ones that do not go on, because the group would be too stale to be trained on."""
    waits: bool = False
    """Whether other members of it are parked, and may not go on yet."""

    @property
    def is_evaluation(self) -> bool:
        """Whether its members are attempts of an evaluation."""
        return self.key is not None

    @property
    def origin(self) -> tuple[int, ...]:
        """What the random numbers of its attempts follow from, beside a seed."""
        return (self.id, self.attempt) if self.key is None else (self.key,)


Reward: TypeAlias = float | Mapping[str, float] | None
"""What a workflow says was earned: a number, numbers by name, or nothing."""


def named_rewards(reward: Reward) -> dict[str, float]:
    """A reward's values by name; a single number has the name `workflow`.

    Raises:
        TypeError: it is no number, or a name no text.
        ValueError: a number is not finite or too large, or a name cannot be stored; or more than 100.
    """
    if reward is None:
        return {}
    if not isinstance(reward, Mapping):
        return {WORKFLOW: _value(reward, "The reward of a step")}
    if len(reward) > MAX_NAMES:
        raise ValueError(f"There are {len(reward)} rewards; at most {MAX_NAMES} names are stored.")
    for name in reward:
        if not isinstance(name, str):
            raise TypeError(f"The name of a reward is {type(name).__name__}, no text.")
        if not name.isprintable() or not 0 < len(name.encode()) <= runs.MAX_NAME_BYTES:
            raise ValueError(
                f"The name of a reward is {name!r:.80}; it has 1 to {runs.MAX_NAME_BYTES} printable bytes."
            )
    return {name: _value(value, f"The reward '{name}' of a step") for name, value in reward.items()}


def _value(value: Any, what: str) -> float:
    if not isinstance(value, int | float | np.integer | np.floating | np.bool_):
        raise TypeError(f"{what} is {type(value).__name__}, no number.")
    try:
        number = float(value)
    except OverflowError:  # a whole number of Python's has any size
        number = math.inf
    if not abs(number) <= MAX_REWARD:  # also nan
        raise ValueError(f"{what} is {number:g}, no number up to {MAX_REWARD:g}.")
    return number


@dataclass(frozen=True)
class Step:
    """One prompt and response of an attempt."""

    prompt: str
    response: str
    payload: arrays.Payload
    reward: Reward = None
    """What the workflow says it earned; what reward functions say is added. None: 0, where it says something
    of other steps of the attempt."""
    state: str | None = None
    """Of the environment that the response was an action in, for algorithms that compare what was done in
    equal states of one task (GiGPO). None: what stands in the prompt."""

    def __post_init__(self) -> None:
        for name, text in (("prompt", self.prompt), ("state", self.state)):
            if text is not None and not isinstance(text, str):
                raise TypeError(f"The {name} of a step is {type(text).__name__}, no text.")
        named_rewards(self.reward)  # refuses what is none


@dataclass(frozen=True)
class Rollout:
    """One attempt that ended, ready to be written: finished with payloads, or failed with an error."""

    group: ClaimedGroup
    member: int
    started_at: datetime
    finished_at: datetime
    prompt: str = ""
    response: str = ""
    payload: arrays.Payload | None = None
    finish_reason: str | None = None
    error: str | None = None
    was_cancelled: bool = False
    """Whether the explorer ended the attempt: the error says nothing about workflow or task."""
    given_back: bool = False
    """Whether it could not begin here, which is not the task's fault: any explorer may make it."""
    steps: Sequence[Step] = ()
    """In place of prompt, response and payload: all that an attempt consists of, in order."""

    def __post_init__(self) -> None:
        if (self.payload is not None) + (self.error is not None) + bool(self.steps) != 1:
            raise ValueError(
                "A rollout has a payload, or steps that each have one, or an error if it failed."
            )
        if self.given_back and self.error is None:
            raise ValueError("A rollout that is given back says why.")
        if any(step.payload.versions is None for step in self.all_steps):
            raise ValueError("A rollout's payload has the log-probability and version of each sampled token.")

    @property
    def all_steps(self) -> Sequence[Step]:
        """What it consists of; nothing where it failed."""
        return self.steps or ([Step(self.prompt, self.response, self.payload)] if self.payload else [])


@dataclass(frozen=True)
class Unwanted:
    """How many rollouts of a write are no members of their groups."""

    refused: int
    """Another worker holds the group by now, or it is complete: they are kept for the record."""
    spare: int
    """Those of the refused ones whose groups were complete without them."""
    lost: int
    """The store has no such group any more: they are not stored."""


def claim(
    tx: Transaction,
    run_id: int,
    worker_id: int,
    version: int,
    pace: Pace,
    selection: Selection,
    group_size: int,
    limit: int,
    greedy: bool = False,
    spare: int = 0,
) -> list[ClaimedGroup]:
    """Up to `limit` groups to explore with a version: abandoned ones first, then new ones as the pace allows.

    With `greedy` each group has one more member, its last, which is to be sampled at temperature 0. With
    `spare` so many more members are attempted than a group has; the first that are written are its members.
    Explorers of a run take turns here, so that together they respect the limit.
    """
    values = {
        "run_id": run_id,
        "worker_id": worker_id,
        "spare": spare,
        "version": version,
        "max_staleness": pace.max_staleness,
    }
    with tx.pipeline():  # others wait meanwhile, so what needs no answer travels with the next statement
        tx.execute(query("lock_pace"), values)
        abandoned = tx.execute(query("claim_abandoned_groups"), {**values, "limit": limit})
        counted = tx.execute(query("count_pace"), values).fetchone()
        assert counted is not None
        rows = abandoned.fetchall()
        capacity = pace.capacity(**counted)
        room = limit - len(rows) if capacity is None else min(limit - len(rows), capacity)
        if room > 0:
            started = {"task_ids": choose(tx, run_id, selection, room), "group_size": group_size + greedy}
            rows += tx.execute(query("start_groups"), values | started).fetchall()
    return [
        ClaimedGroup(
            row["id"],
            row["attempt"],
            row["payload"],
            row["members"],
            row["expected"] - 1 if greedy else None,
            parked=frozenset(row.get("parked", ())),
            stale=frozenset(row.get("stale", ())),
            waits=row.get("waits", False),
        )
        for row in rows
    ]


def all_explored(tx: Transaction, run_id: int, most: int) -> bool:
    """Whether the run has started so many groups, and none of them is still being explored."""
    row = tx.execute(query("count_explored"), {"run_id": run_id}).fetchone()
    assert row is not None
    return row["started"] >= most and not row["open"]


def write_rollouts(tx: Transaction, run_id: int, worker_id: int, rollouts: Sequence[Rollout]) -> Unwanted:
    """Store rollouts with their experiences, texts and arrays; returns how many were unwanted.

    Refused ones are kept under the attempt they were made in. A rollout that is stored already, as after a
    commit whose outcome was unclear, is left alone. All statements travel together.
    """
    group_ids = list({rollout.group.id for rollout in rollouts})
    steps = [(rollout, number, step) for rollout in rollouts for number, step in enumerate(rollout.all_steps)]
    later = [(rollout, number, step) for rollout, number, step in steps if number]
    rewarded = [one for one in steps if any(step.reward is not None for step in one[0].all_steps)]
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
    """Record attempts that did not begin, and let other explorers take groups. Harmless when repeated.

    Args:
        group_ids: groups that have no attempt under way here, and whose ended attempts are all written.
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
    """Those of some groups that have all their members."""
    rows = tx.execute(query("find_complete_groups"), {"group_ids": list(group_ids)}).fetchall()
    return {row["id"] for row in rows}


COLUMNS = (
    "group_ids", "attempts", "ordinals", "finish_reasons", "errors", "greedy", "started_at", "finished_at",
    "prompts", "responses", "messages", "states", "codecs", "payloads", "prompt_lengths", "response_lengths",
    "oldest", "newest",
)  # fmt: skip


def _columns(rollouts: Iterable[Rollout]) -> dict[str, list[Any]]:
    """What `write_rollouts` asks of each rollout and its first step, a list for each of its arrays."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for rollout in rollouts:
        group, first = rollout.group, next(iter(rollout.all_steps), None)
        reason, error = (text and storable(text) for text in (rollout.finish_reason, rollout.error))
        member = (group.id, group.attempt, rollout.member, reason, error, rollout.member == group.greedy)
        texts = _texts(first) if first else (storable(rollout.prompt), storable(rollout.response), None)
        prompt, response, state = texts
        content = (prompt, response, _messages(group.task), state, *_packed(first.payload if first else None))
        row = (*member, rollout.started_at, rollout.finished_at, *content)
        for values, value in zip(columns.values(), row, strict=True):
            values.append(value)
    return columns


Steps = Sequence[tuple[Rollout, int, Step]]
"""Steps with their rollouts, and their numbers within these."""


def _places(steps: Steps) -> dict[str, list[int]]:
    """Where steps belong, a list for each array of a statement."""
    return {
        "group_ids": [rollout.group.id for rollout, _, _ in steps],
        "attempts": [rollout.group.attempt for rollout, _, _ in steps],
        "ordinals": [rollout.member for rollout, _, _ in steps],
        "steps": [number for _, number, _ in steps],
    }


def _rewards(steps: Steps) -> dict[str, list[Any]]:
    """What `reward_steps` asks of each reward. A step without one has 0 under all names of its attempt."""
    given = []
    for one in steps:
        attempt = (name for step in one[0].all_steps for name in named_rewards(step.reward))
        given += [
            (one, *said) for said in (named_rewards(one[2].reward) or dict.fromkeys(attempt, 0.0)).items()
        ]
    names, values = [name for _, name, _ in given], [value for _, _, value in given]
    return {**_places([one for one, _, _ in given]), "names": names, "rewards": values}


def _steps(steps: Steps) -> dict[str, list[Any]]:
    """What `write_steps` asks of each step."""
    names = (
        "prompts",
        "responses",
        "states",
        "codecs",
        "payloads",
        "prompt_lengths",
        "response_lengths",
        "oldest",
        "newest",
    )
    rows = [(*_texts(step), *_packed(step.payload)) for _, _, step in steps]
    return _places(steps) | dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def _texts(step: Step) -> tuple[str, str, str | None]:
    """Prompt, response and state as Postgres takes them."""
    return storable(step.prompt), storable(step.response), step.state and storable(step.state)


def _packed(payload: arrays.Payload | None) -> tuple[Any, ...]:
    """The codec and the bytes, tokens of prompt and response, oldest and newest version."""
    if payload is None or payload.versions is None:
        return (None,) * 6
    num_trained = len(payload.versions)
    versions = int(payload.versions.min()), int(payload.versions.max())
    packed = arrays.CODEC, arrays.encode(payload)
    return *packed, payload.num_tokens - num_trained, num_trained, *versions


def _messages(task: dict[str, Any]) -> Jsonb | None:
    return Jsonb(task["messages"]) if task.get("messages") else None
