"""When an explorer evaluates and when it explores for training: one engine has one version at a time.

An evaluation is pinned to its version, so that no other one is loaded while an attempt of it is under way. If
that version is the one that training uses, both share the places. If it is another one, they take turns.
"""

import logging
import time
from dataclasses import dataclass, replace

import numpy as np

from trinity_db.explorer.attempts import Attempts
from trinity_db.explorer.config import EndpointConfig
from trinity_db.explorer.engines.engine import NotLoadedYet
from trinity_db.explorer.given_back import GivenBack
from trinity_db.explorer.loading import LoadedVersion
from trinity_db.explorer.staging import Staging
from trinity_db.explorer.store_thread import StoreThread
from trinity_db.explorer.under_way import UnderWay
from trinity_db.store import evaluations
from trinity_db.store.evaluations import Due
from trinity_db.store.groups import ClaimedGroup, Rollout, Step
from trinity_db.store.policies import PolicyVersion

logger = logging.getLogger(__name__)

TURN_SECONDS = 60.0  # of evaluation, then of training; to load weights twice takes a small part of it
# Of the places, for an evaluation of the version that training uses; more if training leaves more.
SHARE = 0.5
NOT_LOADED_SECONDS = 600.0  # that an evaluation waits for other people to load its version


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
        due, newest = policy_of(self.due), self.newest
        return (due.version, due.checkpoint_hash) == (newest.version, newest.checkpoint_hash)


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

        Where other people load the weights, they have gone on to another version: the attempt is given back,
        for an explorer that has the version, or for the time when it comes again.

        Raises:
            EngineFailed: the attempt could not go on, and no other can.
        """
        rollout = await self.attempts.make(group, member)
        used = {version for step in rollout.all_steps for version in _versions(step)}
        if others := used - {self.version}:
            error = f"the engine sampled by version {min(others)} in an evaluation of version {self.version}"
            engine = self.attempts.config.engine
            moves = isinstance(engine, EndpointConfig) and not engine.load_weights
            times = rollout.started_at, rollout.finished_at
            return Rollout(group, member, *times, error=error, given_back=moves)
        return rollout


class Evaluator:
    """Starts the attempts of evaluations in one explorer.

    Args:
        attempts: those of training, with the run's workflow and engine.
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
        """The version that other people have not loaded yet, and since when it is awaited."""

    async def begin(self, due: Due, share: float = 1.0) -> bool:
        """Start attempts of an evaluation in a share of the places.

        Where another version is loaded, the attempts that are under way end by it first.

        Returns:
            Whether the explorer is to look again as soon as it can.
        """
        policy = policy_of(due)
        if not self._loaded.is_at(policy):
            here = await self._staging.for_evaluation(policy)
            if here is None:
                self.turns.give(to_evaluation=False)
                return False
            policy = here
            if self._under_way:
                return True  # as soon as they have ended
            if (error := await self._loaded.try_to_load(policy)) is not None:
                if isinstance(error, NotLoadedYet) and self._may_come(policy, error):
                    self.turns.give(to_evaluation=False)
                    return False
                logger.warning("the evaluation of version %d is given up: %s", policy.version, error)
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

    def _limit(self, due: Due, share: float) -> int:
        """How many groups to claim: at least one where no attempt of an evaluation is under way."""
        evaluating = len(self._under_way.evaluating)
        places = min(self._under_way.free, int(share * self._under_way.places) - evaluating)
        limit = max(places // due.samples, int(not evaluating))
        return min(limit, 1) if self._given_back.is_in_trouble else limit

    def _may_come(self, policy: PolicyVersion, error: NotLoadedYet) -> bool:
        """Whether an evaluation still waits for other people to load its version."""
        if self._awaited is None or self._awaited[0] != policy:
            self._awaited = policy, time.monotonic()
            logger.warning("the evaluation of version %d waits: %s", policy.version, error)
        return time.monotonic() - self._awaited[1] < NOT_LOADED_SECONDS


def policy_of(due: Due) -> PolicyVersion:
    """The version that an evaluation is pinned to."""
    return PolicyVersion(due.version, due.step, due.checkpoint, due.checkpoint_hash, weights=due.weights)


def _versions(step: Step) -> list[int]:
    """The policy versions of a step's tokens."""
    versions = step.payload.versions
    return [] if versions is None else np.unique(versions).tolist()
