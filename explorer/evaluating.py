"""When an explorer evaluates and when it explores for training: one engine has one version at a time.

An evaluation is pinned to its version, so that no other one is loaded while an attempt of it is under way. If
that version is the one that training uses, both share the places. If it is another one, they take turns.
"""

import time
from dataclasses import dataclass, replace

import numpy as np

from trinity_db.explorer.attempts import Attempts
from trinity_db.store.evaluations import Due
from trinity_db.store.groups import ClaimedGroup, Rollout, Step
from trinity_db.store.policies import PolicyVersion

TURN_SECONDS = 60.0  # of evaluation, then of training; to load weights twice takes a small part of it
SHARE = (
    0.5  # of the places, for an evaluation of the version that training uses; more if training leaves more
)


@dataclass
class Turns:
    """Whether evaluation or training has the engine, where each needs another version."""

    evaluates: bool = False
    since: float | None = None
    """When its version was there, in seconds of a clock that is never set back. None: not yet."""

    def look(self) -> bool:
        """Whether it is the turn of evaluation."""
        if self.since is not None and time.monotonic() - self.since > TURN_SECONDS:
            self.give(not self.evaluates)
        return self.evaluates

    def give(self, to_evaluation: bool) -> None:
        """Let the other one have the engine. Its turn begins when its version is there."""
        self.evaluates, self.since = to_evaluation, None

    def begin(self) -> None:
        """The version of this turn is there."""
        if self.since is None:
            self.since = time.monotonic()


@dataclass(frozen=True)
class Look:
    """What an explorer reads before it claims."""

    is_finished: bool
    newest: PolicyVersion | None
    """None: there is none yet."""
    due: Due | None
    """The next evaluation with groups to claim."""

    @property
    def is_shared(self) -> bool:
        """Whether evaluation and training need the same version."""
        if self.due is None or self.newest is None:
            return False
        return policy_of(self.due) == self.newest


@dataclass(frozen=True)
class PinnedAttempts:
    """Makes the attempts of an evaluation, each the same whenever it is made with the same weights."""

    attempts: Attempts
    version: int

    @classmethod
    def of(cls, training: Attempts, due: Due) -> "PinnedAttempts":
        """Attempts by the run's workflow and engine, with the sampling options of an evaluation."""
        options = {"temperature": due.temperature, "max_new_tokens": due.max_new_tokens}
        config = training.config.model_copy(update=options)
        return cls(replace(training, config=config, seed=due.seed), due.version)

    async def make(self, group: ClaimedGroup, member: int) -> Rollout:
        """Attempt a member's task. A rollout with a token of another version is a failed one.

        Raises:
            EngineFailed: the attempt could not go on, and no other can.
        """
        rollout = await self.attempts.make(group, member)
        used = {version for step in rollout.all_steps for version in _versions(step)}
        if others := used - {self.version}:
            error = f"the engine sampled by version {min(others)} in an evaluation of version {self.version}"
            return Rollout(group, member, rollout.started_at, rollout.finished_at, error=error)
        return rollout


def policy_of(due: Due) -> PolicyVersion:
    """The version that an evaluation is pinned to."""
    return PolicyVersion(due.version, due.step, due.checkpoint, due.checkpoint_hash)


def _versions(step: Step) -> list[int]:
    """The policy versions of a step's tokens."""
    versions = step.payload.versions
    return [] if versions is None else np.unique(versions).tolist()
