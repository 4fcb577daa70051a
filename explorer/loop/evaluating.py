"""Switches an explorer between evaluation and training: its engine has one version at a time.

An evaluation is pinned to its version: no other one is loaded during its attempts. If training uses the same
version, both share the slots. Otherwise they take turns.
"""

import logging
import time
from dataclasses import dataclass, replace

import numpy as np

from trinity_db.explorer.attempt.attempts import Attempts
from trinity_db.explorer.engines.engine import NotLoadedYet
from trinity_db.explorer.loop.backoff import GivenBack
from trinity_db.explorer.loop.loading import LoadedVersion
from trinity_db.explorer.loop.staging import Staging
from trinity_db.explorer.loop.store_thread import StoreThread
from trinity_db.explorer.loop.under_way import UnderWay
from trinity_db.store import evaluations
from trinity_db.store.evaluations import DueEvaluation
from trinity_db.store.groups import ClaimedGroup, Rollout, Step
from trinity_db.store.policies import PolicyVersion

logger = logging.getLogger(__name__)

TURN_SECONDS = 60.0  # for evaluation, then for training; loading weights twice takes a small part of it
# Share of the slots for an evaluation of training's version; more if training leaves slots free.
SHARE = 0.5
NOT_LOADED_SECONDS = 600.0  # how long an evaluation waits for another program to load its version


@dataclass
class Turns:
    """Whether evaluation or training has the engine, if they need different versions."""

    evaluates: bool = False
    since: float | None = None
    """When its version was loaded, by the monotonic clock. None: not yet."""

    def look(self) -> bool:
        """Switch turns if the time is up, and return whether it is evaluation's turn."""
        if self.since is not None and time.monotonic() - self.since > TURN_SECONDS:
            self.give(not self.evaluates)
        return self.evaluates

    def give(self, to_evaluation: bool) -> None:
        """Give the engine to evaluation or training. The turn starts when its version is loaded."""
        self.evaluates, self.since = to_evaluation, None

    def begin(self) -> None:
        """Start the turn, as its version is loaded."""
        if self.since is None:
            self.since = time.monotonic()


@dataclass(frozen=True)
class Look:
    """State that an explorer reads before it claims groups."""

    is_finished: bool
    newest: PolicyVersion | None
    """None: no version yet."""
    due: DueEvaluation | None
    """Next evaluation with groups to claim."""

    @property
    def is_shared(self) -> bool:
        """Whether evaluation and training need the same version."""
        if self.due is None or self.newest is None:
            return False
        due, newest = policy_of(self.due), self.newest
        return (due.version, due.checkpoint_hash) == (newest.version, newest.checkpoint_hash)


@dataclass(frozen=True)
class PinnedAttempts:
    """Runs the attempts of an evaluation, which are reproducible with the same weights."""

    attempts: Attempts
    version: int

    @classmethod
    def of(cls, training: Attempts, due: DueEvaluation) -> "PinnedAttempts":
        """Return attempts with the run's workflow and engine, and an evaluation's sampling options."""
        options = {"temperature": due.temperature, "max_new_tokens": due.max_new_tokens}
        config = training.config.model_copy(update=options)
        return cls(replace(training, config=config, seed=due.seed), due.version)

    async def make(self, group: ClaimedGroup, member: int) -> Rollout:
        """Attempt a member's task. A rollout with a token of another version counts as failed.

        If another program loads the weights and has switched to another version, the attempt is released
        instead, for an explorer that has the version, or until it is loaded again.

        Raises:
            EngineFailed: if the engine failed; no other attempt can continue either.
        """
        rollout = await self.attempts.make(group, member)
        used = {version for step in rollout.steps for version in _versions(step)}
        if others := used - {self.version}:
            error = f"the engine sampled with version {min(others)} when evaluating version {self.version}"
            moves = self.attempts.config.engine.changes_versions_itself
            times = rollout.started_at, rollout.finished_at
            return Rollout(group, member, *times, error=error, given_back=moves)
        return rollout


class Evaluator:
    """Starts the attempts of evaluations in one explorer.

    Args:
        attempts: training's attempts, with the run's workflow and engine.
    """

    def __init__(
        self,
        store: StoreThread,
        attempts: Attempts,
        loaded: LoadedVersion,
        staging: Staging,
        under_way: UnderWay,
        given_back: GivenBack,
    ) -> None:
        self.turns = Turns()
        self._store = store
        self._attempts = attempts
        self._loaded = loaded
        self._staging = staging
        self._under_way = under_way
        self._given_back = given_back
        self._awaited: tuple[PolicyVersion, float] | None = None
        """Version that another program has not loaded yet, and since when the evaluation waits for it."""

    async def begin(self, due: DueEvaluation, share: float = 1.0) -> bool:
        """Start attempts of an evaluation in a share of the slots.

        If another version is loaded, attempts in progress finish first.

        Returns:
            Whether the explorer should look again as soon as possible.
        """
        policy = policy_of(due)
        if not self._loaded.is_at(policy):
            here = await self._staging.for_evaluation(policy)
            if here is None:
                self.turns.give(to_evaluation=False)
                return False
            policy = here
            if self._under_way:
                return True  # wait for them to end
            if (error := await self._loaded.try_to_load(policy)) is not None:
                if isinstance(error, NotLoadedYet) and self._may_come(policy, error):
                    self.turns.give(to_evaluation=False)
                    return False
                logger.warning("giving up the evaluation of version %d: %s", policy.version, error)
                reason = str(error)
                await self._store.once(lambda tx: evaluations.give_up(tx, self._store.run_id, due.id, reason))
                return True
        self.turns.begin()
        limit = self._limit(due, share)
        if not limit:
            return False
        claimed = await self._store.once(
            lambda tx: evaluations.claim(tx, self._store.worker_id, due.id, limit)
        )
        self._under_way.begin(claimed, PinnedAttempts.of(self._attempts, due).make)
        return bool(claimed)

    def _limit(self, due: DueEvaluation, share: float) -> int:
        """Return how many groups to claim: at least one if no attempt of an evaluation is in progress."""
        evaluating = len(self._under_way.evaluating)
        places = min(self._under_way.free, int(share * self._under_way.places) - evaluating)
        limit = max(places // due.samples, int(not evaluating))
        return min(limit, 1) if self._given_back.is_in_trouble else limit

    def _may_come(self, policy: PolicyVersion, error: NotLoadedYet) -> bool:
        """Whether an evaluation should still wait for another program to load its version."""
        if self._awaited is None or self._awaited[0] != policy:
            self._awaited = policy, time.monotonic()
            logger.warning("the evaluation of version %d is waiting: %s", policy.version, error)
        return time.monotonic() - self._awaited[1] < NOT_LOADED_SECONDS


def policy_of(due: DueEvaluation) -> PolicyVersion:
    """Return the version that an evaluation is pinned to."""
    return PolicyVersion(due.version, due.step, due.checkpoint, due.checkpoint_hash, weights=due.weights)


def _versions(step: Step) -> list[int]:
    """Return the policy versions of a step's tokens."""
    versions = step.payload.versions
    return [] if versions is None else np.unique(versions).tolist()
