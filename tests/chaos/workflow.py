"""The workflow of the chaos suite: single_turn with a journal of what was acknowledged, and some bad luck.

An explorer loads this file by its path. The journal is a folder with one file a process. A process adds a
rollout's line after the explorer's write of it has returned: by then the rollout must be durable. The journal
is read without the store.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from trinity_db.arrays import codec
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.attempt.workflow import single_turn
from trinity_db.explorer.loop.writing import RolloutWriter
from trinity_db.store.groups import Rollout

JOURNAL = "CHAOS_JOURNAL"  # the folder, in the environment of explorers
UNLUCKY_GROUPS = 8  # one of so many loses its first member for good
DOOMED_GROUPS = 40  # one of so many loses all members but one, and is too small then
SURVIVOR = 3  # its number


class Acknowledged(NamedTuple):
    """A line of the journal."""

    group: int
    member: int
    attempt: int
    content: str
    """A hash of the response's text and all token ids; empty for a failure."""


async def journaled(task: Mapping[str, Any], policy: Policy) -> None:
    """single_turn. Its file is what matters: an explorer that loads it keeps the journal."""
    await single_turn(task, policy)


def keep_journal() -> None:
    """Let explorers of this process fail the unlucky rollouts, and note what they have written.

    A workflow knows neither its group nor when its rollout is stored. So the one place that does is wrapped:
    the write of rollouts that ended, which returns when their transaction is committed.
    """
    write = RolloutWriter._write

    async def write_and_note(
        self: RolloutWriter, finished: list[Rollout], metrics: dict[str, float]
    ) -> set[int]:
        unequal = [_with_luck(rollout) for rollout in finished]
        complete = await write(self, unequal, metrics)
        _note(unequal)
        return complete

    RolloutWriter._write = write_and_note  # type: ignore[method-assign]


def read(folder: Path) -> list[Acknowledged]:
    """Every line of every process. A line that the end of its process cut short acknowledges nothing."""
    return [
        Acknowledged(*json.loads(line))
        for file in sorted(folder.iterdir())
        for line in file.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]


def _note(rollouts: Sequence[Rollout]) -> None:
    lines = [(r.group.id, r.member, r.group.attempt, _content(r)) for r in rollouts]
    path = Path(os.environ[JOURNAL]) / f"{os.getpid()}.jsonl"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, "".join(json.dumps(line) + "\n" for line in lines).encode())
    finally:
        os.close(descriptor)


def _content(rollout: Rollout) -> str:
    if rollout.error is not None:
        return ""
    [step] = rollout.steps
    return hashlib.sha256(step.response.encode() + codec.encode(step.payload)).hexdigest()


def _with_luck(rollout: Rollout) -> Rollout:
    """Fail some members for good; which ones is known from their numbers, so that a repetition fails too."""
    unlucky = rollout.group.id % UNLUCKY_GROUPS == 0 and rollout.member == 0
    doomed = rollout.group.id % DOOMED_GROUPS == 0 and rollout.member != SURVIVOR
    if not unlucky and not doomed:
        return rollout
    return replace(rollout, steps=(), finish_reason=None, error="out of luck")


if JOURNAL in os.environ:  # an explorer; the suite itself only reads the journal
    keep_journal()
