"""Runs one attempt from its start to a rollout that can be written, whatever happens in it."""

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any

from trinity_db.config.shared import PromptConfig
from trinity_db.config.user_functions import describe_error
from trinity_db.errors import TrinityError
from trinity_db.explorer.attempt.long_texts import CHARACTERS, SHORT, work_on
from trinity_db.explorer.attempt.parking import AttemptParked
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.attempt.sampling import seed_of
from trinity_db.explorer.attempt.serving import Listener
from trinity_db.explorer.attempt.workflow import Workflow
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engines.engine import Engine, RequestFailed
from trinity_db.explorer.environments.environment import NotStarted
from trinity_db.models.chat.prompts import prompt_ids
from trinity_db.store.groups import ClaimedGroup, Reward, Rollout, Step, named_rewards
from trinity_db.store.parks import ResumedAttempt

logger = logging.getLogger(__name__)

PROMPTS = 1024  # size of the cache of tokenized prompts
LONG_PROMPTS = 16  # the same for prompts of more than `SHORT` characters, which may be megabytes
TOO_STALE = "parked until its rollout group was too stale for training"
NO_REWARD = (
    "the attempt ended without a reward: let the workflow return a number, or the program print "
    "'reward: 0.5'; or set explorer.workflow.check, processors.score, or requires_reward for a later one"
)
OUTPUT_LINE = 500  # characters stored of each line of a program's output
GRACE_SECONDS = 10.0  # for a cancelled attempt to clean up; longer than closing an environment takes


class _TookTooLong(Exception):
    """The attempt exceeded `attempt_seconds`."""


class NoReward(Exception):
    """The attempt has no reward, and nothing else gives one."""


@dataclass(frozen=True)
class Attempts:
    """Runs the attempts of a run."""

    workflow: Workflow
    engine: Engine
    config: ExplorerConfig
    prompts: PromptConfig
    seed: int
    listener: Callable[[ClaimedGroup, int, int, ResumedAttempt | None], Listener] | None = None
    """Serves a policy to programs over HTTP. Called with the group, the member's number, the retry number,
    and the point from which the member resumes if it was parked."""
    resume: Callable[[ClaimedGroup, int], Awaitable[ResumedAttempt | None]] | None = None
    """Resumes a parked member of a group."""
    needs_reward: bool = False
    """Whether an attempt without a reward is a failure, because nothing else gives one."""

    async def make(self, group: ClaimedGroup, member: int) -> Rollout:
        """Attempt a member's task, with the configured number of retries on errors.

        If the environment does not start, the attempt is released without using up a retry.

        Raises:
            AttemptParked: if it was parked, or another explorer has claimed its group. No rollout exists.
            EngineFailed: if the engine failed; no other attempt can continue either.
        """
        resumed, first = None, 0
        if self.resume is not None and member in group.parked:
            if (resumed := await self.resume(group, member)) is None:
                raise AttemptParked
            first = resumed.agent.retry
        started_at = datetime.now(UTC) if resumed is None else resumed.agent.started_at
        if member in group.stale:
            return Rollout(group, member, started_at, datetime.now(UTC), error=TOO_STALE)
        was_cancelled, given_back = False, False
        for number in range(first, max(first, self.config.retries) + 1):
            policy = self._policy(group, member, number, resumed if number == first else None)
            try:
                steps = await self._steps(group, policy)
            except (_TookTooLong, RequestFailed) as problem:
                error = str(problem)
            except TrinityError as problem:  # a retry would fail in the same way
                error = str(problem)
                break
            except NotStarted as problem:  # it may start in another explorer
                error, given_back = describe_error(problem), True
                break
            except (Exception, SystemExit) as problem:  # user code
                error = describe_error(problem)
            except asyncio.CancelledError as problem:
                error = describe_error(problem)
                if was_cancelled := _is_cancelled():  # by the explorer
                    break
            else:
                return _finished(group, member, started_at, steps, policy)
            finally:
                policy.close()
                if policy.failure is not None:
                    raise policy.failure
        now = datetime.now(UTC)
        return Rollout(
            *(group, member, started_at, now),
            error=policy.refusals.added_to(error),
            output=_last_lines(policy),
            was_cancelled=was_cancelled,
            given_back=given_back,
        )

    async def _steps(self, group: ClaimedGroup, policy: Policy) -> list[Step]:
        seconds = self.config.attempt_seconds
        # A separate task, so that a workflow which ignores its cancellation blocks nothing.
        attempt = asyncio.create_task(self._outcome(group, policy))
        try:
            _, late = await asyncio.wait([attempt], timeout=seconds)
        finally:
            if not attempt.done():
                await _give_up(attempt, policy)
        if policy.is_parked:  # whatever the workflow did afterwards
            raise AttemptParked
        if late:  # even if the workflow caught the cancellation and returned
            raise _TookTooLong(f"took longer than {seconds:g} s")
        returned, problem = attempt.result()
        if problem is not None:
            raise problem
        earned = await policy.earned(_earned(returned))
        await policy.calls.settled()
        steps = await work_on(CHARACTERS * policy.calls.history.num_tokens, lambda: policy.steps(earned))
        if not steps:
            if policy.calls.history.left_out:
                raise ValueError("no call of the attempt names a model of explorer.requests.train")
            raise ValueError("the workflow sampled nothing from the policy")
        if self.needs_reward and all(step.reward is None for step in steps):
            raise NoReward(NO_REWARD)
        return steps

    async def _outcome(self, group: ClaimedGroup, policy: Policy) -> tuple[Any, BaseException | None]:
        """Return the workflow's result or error. A SystemExit raised in a task would stop the event loop."""
        try:
            return await self.workflow(group.task, policy), None
        except (Exception, SystemExit) as problem:  # user code
            return None, problem
        except BaseException:  # such as an exception group, when a task of the workflow has parked
            if not policy.is_parked:
                raise
            return None, None

    def _policy(
        self, group: ClaimedGroup, member: int, number: int, resumed: ResumedAttempt | None
    ) -> Policy:
        begun = group if resumed is None else replace(group, attempt=resumed.attempt)
        policy = Policy(
            self.engine,
            self._prompt_ids,
            prompts=self.prompts,
            temperature=0.0 if member == group.greedy else self.config.temperature,
            max_new_tokens=self.config.max_new_tokens,
            seed=seed_of(self.seed, *begun.origin, member, number),
            group_seed=seed_of(self.seed, group.id if group.key is None else group.key),
            listener=self.listener and self.listener(group, member, number, resumed),
            rules=self.config.requests,
        )
        if resumed is not None:
            policy.go_on(resumed)
        return policy

    @cached_property
    def _prompt_ids(self) -> Callable[[str], Sequence[int]]:
        """Tokenizes prompts, with a cache, as the members of a group mostly use the same prompt."""

        # A text of a template and an equal plain text may have different tokens, so the type is part of the
        # key. An array takes 4 bytes per token, a tuple 36, and prompts may be long.
        def encoded(prompt: str) -> "array[int]":
            return array("i", prompt_ids(prompt, self.engine.tokenizer))

        short, long = lru_cache(PROMPTS, typed=True)(encoded), lru_cache(LONG_PROMPTS, typed=True)(encoded)
        return lambda prompt: (short if len(prompt) <= SHORT else long)(prompt)


def _earned(returned: Any) -> Reward:
    """Return the workflow's return value, if it is a reward.

    Raises:
        TypeError: if it is not a reward.
        ValueError: if a number in it is not finite.
    """
    try:
        return returned if named_rewards(returned) else None
    except TypeError as error:
        if isinstance(returned, Mapping):
            raise
        raise TypeError(
            f"the workflow returned {type(returned).__name__}, not a number, None or numbers by name"
        ) from error


async def _give_up(attempt: "asyncio.Task[Any]", policy: Policy) -> None:
    """Cancel an attempt, and wait for its end during the grace period."""
    attempt.cancel()
    _, left = await asyncio.wait([attempt], timeout=GRACE_SECONDS)
    if left:
        policy.leave()
        logger.warning("an attempt still runs %g s after its cancellation and is abandoned", GRACE_SECONDS)


def _is_cancelled() -> bool:
    """Whether the attempt itself was cancelled, not only something that it awaited."""
    attempt = asyncio.current_task()
    return attempt is not None and attempt.cancelling() > 0


def _finished(
    group: ClaimedGroup, member: int, started_at: datetime, steps: list[Step], policy: Policy
) -> Rollout:
    return Rollout(
        *(group, member, started_at, datetime.now(UTC)),
        finish_reason=policy.calls.finish_reason,
        steps=steps,
        output=_last_lines(policy),
        left_out=policy.calls.history.left_out,
    )


def _last_lines(policy: Policy) -> str | None:
    """Return the last lines that the attempt's program wrote; None without any."""
    return "\n".join(line[:OUTPUT_LINE] for line in policy.output) or None
