"""One attempt from its start to a rollout that can be written, whatever happens in it."""

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any

from trinity_db.config import PromptConfig
from trinity_db.errors import TrinityError
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engines.engine import Engine
from trinity_db.explorer.environments.environment import NotStarted
from trinity_db.explorer.long_texts import CHARACTERS, SHORT, work_on
from trinity_db.explorer.parking import AttemptParked
from trinity_db.explorer.policy import Policy
from trinity_db.explorer.sampling import seed_of
from trinity_db.explorer.serving import Listener
from trinity_db.explorer.workflow import Workflow
from trinity_db.functions import describe_error
from trinity_db.prompts import prompt_ids
from trinity_db.store.groups import ClaimedGroup, Reward, Rollout, Step, named_rewards
from trinity_db.store.parks import Resumed

logger = logging.getLogger(__name__)

PROMPTS = 1024  # that are kept with their tokens
LONG_PROMPTS = 16  # of more than `SHORT` characters, which may be megabytes
TOO_STALE = "parked until its rollout group was too stale to be trained on"
GRACE_SECONDS = 10.0  # that a cancelled attempt has to clean up; longer than the end of an environment takes


class _TookTooLong(Exception):
    """The attempt has used up `attempt_seconds`."""


@dataclass(frozen=True)
class Attempts:
    """Makes the attempts of a run."""

    workflow: Workflow
    engine: Engine
    config: ExplorerConfig
    prompts: PromptConfig
    seed: int
    listener: Callable[[ClaimedGroup, int, int, Resumed | None], Listener] | None = None
    """Lets programs ask a policy over HTTP. It is called with the group, its member, the number of the retry,
    and the point from which the member goes on, if it was parked."""
    resume: Callable[[ClaimedGroup, int], Awaitable[Resumed | None]] | None = None
    """Goes on with a parked member of a group."""

    async def make(self, group: ClaimedGroup, member: int) -> Rollout:
        """Attempt a member's task, and once more after an error as often as the configuration says.

        Where its environment does not start, the attempt is given back, and no retry is used up.

        Raises:
            AttemptParked: it waits, or another explorer has its group by now. There is no rollout.
            EngineFailed: the attempt could not go on, and no other can.
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
            except TrinityError as problem:  # what the policy refuses, it refuses again
                error = str(problem)
                break
            except NotStarted as problem:  # another explorer may have what it needs
                error, given_back = describe_error(problem), True
                break
            except _TookTooLong as problem:
                error = str(problem)
            except (Exception, SystemExit) as problem:  # a workflow is a user's own code
                error = describe_error(problem)
            except asyncio.CancelledError as problem:
                error = describe_error(problem)
                if was_cancelled := _is_cancelled():  # by the explorer
                    break
            else:
                return _finished(group, member, started_at, steps, policy.calls.finish_reason)
            finally:
                policy.close()
                if policy.failure is not None:
                    raise policy.failure
        now = datetime.now(UTC)
        return Rollout(
            *(group, member, started_at, now),
            error=error,
            was_cancelled=was_cancelled,
            given_back=given_back,
        )

    async def _steps(self, group: ClaimedGroup, policy: Policy) -> list[Step]:
        seconds = self.config.attempt_seconds
        # A task of its own, so that an attempt which goes on although it is cancelled holds nothing up.
        attempt = asyncio.create_task(self._outcome(group, policy))
        try:
            _, late = await asyncio.wait([attempt], timeout=seconds)
        finally:
            if not attempt.done():
                await _give_up(attempt, policy)
        if policy.is_parked:  # whatever the workflow did then
            raise AttemptParked
        if late:  # also when the workflow caught the cancellation and returned
            raise _TookTooLong(f"took longer than {seconds:g} s")
        returned, problem = attempt.result()
        if problem is not None:
            raise problem
        earned = await policy.earned(_earned(returned))
        await policy.calls.settled()
        steps = await work_on(CHARACTERS * policy.calls.history.num_tokens, lambda: policy.steps(earned))
        if not steps:
            raise ValueError("the workflow asked the policy for nothing")
        return steps

    async def _outcome(self, group: ClaimedGroup, policy: Policy) -> tuple[Any, BaseException | None]:
        """What the workflow returned or raised. A SystemExit that left a task would end the event loop."""
        try:
            return await self.workflow(group.task, policy), None
        except (Exception, SystemExit) as problem:  # a workflow is a user's own code
            return None, problem
        except BaseException:  # as a group of them, where a task of the workflow has parked
            if not policy.is_parked:
                raise
            return None, None

    def _policy(self, group: ClaimedGroup, member: int, number: int, resumed: Resumed | None) -> Policy:
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
        )
        if resumed is not None:
            policy.go_on(resumed)
        return policy

    @cached_property
    def _prompt_ids(self) -> Callable[[str], Sequence[int]]:
        """The tokens of a prompt; the members of a group mostly ask with the same one."""

        # An array has 4 bytes for a token, a tuple 36: prompts may be long.
        def encoded(prompt: str) -> "array[int]":
            return array("i", prompt_ids(prompt, self.engine.tokenizer))

        short, long = lru_cache(PROMPTS)(encoded), lru_cache(LONG_PROMPTS)(encoded)
        return lambda prompt: (short if len(prompt) <= SHORT else long)(prompt)


def _earned(returned: Any) -> Reward:
    """What a workflow returned, if it is a reward.

    Raises:
        TypeError: it is something else.
        ValueError: a number in it is not finite.
    """
    try:
        return returned if named_rewards(returned) else None
    except TypeError as error:
        if isinstance(returned, Mapping):
            raise
        raise TypeError(
            f"the workflow returned {type(returned).__name__}, neither a number nor None, nor numbers by name"
        ) from error


async def _give_up(attempt: "asyncio.Task[Any]", policy: Policy) -> None:
    """Cancel an attempt, and wait for its end as long as it may take."""
    attempt.cancel()
    _, left = await asyncio.wait([attempt], timeout=GRACE_SECONDS)
    if left:
        policy.leave()
        logger.warning("an attempt goes on %g s after it was cancelled: it is left alone", GRACE_SECONDS)


def _is_cancelled() -> bool:
    """Whether the attempt itself was cancelled, and not only something that it awaited."""
    attempt = asyncio.current_task()
    return attempt is not None and attempt.cancelling() > 0


def _finished(
    group: ClaimedGroup, member: int, started_at: datetime, steps: list[Step], finish_reason: str | None
) -> Rollout:
    now = datetime.now(UTC)
    first = steps[0]
    if len(steps) == 1 and first.reward is None and first.state is None:
        texts = first.prompt, first.response
        return Rollout(group, member, started_at, now, *texts, first.payload, finish_reason)
    return Rollout(group, member, started_at, now, finish_reason=finish_reason, steps=steps)
