"""A program that makes one attempt: what it asked, and what it was answered."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime

from trinity_db.arrays import Payload
from trinity_db.explorer.conversations import Answer
from trinity_db.explorer.engines.engine import EngineFailed
from trinity_db.explorer.long_texts import CHARACTERS, work_on
from trinity_db.explorer.policy import Policy
from trinity_db.explorer.recording.dialects.dialect import Answered, Asked, Refused
from trinity_db.explorer.recording.log import CallLog
from trinity_db.explorer.sampling import Sampling
from trinity_db.store.calls import Call, Resumed
from trinity_db.store.groups import named_rewards

_DIGEST: ContextVar[bytes] = ContextVar("digest", default=b"")
"""Of the request that the current task answers; empty for calls that a workflow makes itself."""


class AttemptFailed(Exception):
    """The program says that its attempt has failed."""


@dataclass
class _Reply:
    """A request that is answered, or will be."""

    task: asyncio.Task[int]
    """Its result is the number of the call. The policy has the tokens, once for a whole conversation."""
    retry: int = 0
    """The highest number of a retry that it was given to; 0: to none."""


class Agent:
    """One program, its policy, and its requests so far.

    Args:
        url: the endpoint's base URL.
        key: empty for an agent that an explorer before this one let in.
        place: the group that it makes a member of, and which.
        forget: called when the agent is answered no more.
    """

    def __init__(
        self,
        id: int,
        url: str,
        key: str,
        place: tuple[int, int],
        policy: Policy,
        log: CallLog,
        forget: Callable[[], None],
    ) -> None:
        self.id = id
        self.url = url
        self.key = key
        self.place = place
        self.policy = policy
        self.rewards: dict[str, float] = {}
        """What the program said to have earned."""
        self.started_at = datetime.now(UTC)
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the program says that the attempt is, or when it cannot go on; its exception says why."""
        self._log = log
        self._forget = forget
        self._replies: dict[bytes, list[_Reply]] = {}
        self.reading = asyncio.Lock()
        """Held while a request is parsed: requests are answered in the order in which they came."""
        self._earning = asyncio.Lock()
        self._heard_at = time.monotonic()
        self._under_way = 0
        """Requests that are being answered."""
        self._is_concluded = False
        """Whether the rollout's rewards are known."""
        policy.calls.keep = self._keep

    def restore(self, resumed: Resumed) -> None:
        """Take up what the program did before."""
        self.started_at, self.rewards = resumed.started_at, resumed.rewards
        for call in resumed.calls:
            sampled = self.policy.calls.restore(call.number, call.prompt, call.payload, call.finish_reason)
            done = asyncio.create_task(_given(sampled.number))
            self._replies.setdefault(call.digest, []).append(_Reply(done))

    async def answer(self, asked: Asked, digest: bytes, retry: int | None) -> Answered:
        """Answer a request, or one that is repeated in the same way as before.

        A client library that lost a connection repeats its request and says so. Such a request gets the
        answer that is there or under way. Without that word an equal request is another one.

        Args:
            digest: of the request.
            retry: which repetition the client says that it is, from 1; 0: none; None: all requests with this
                digest are one and the same.
        """
        with self._heard():
            return await self._answer(asked, digest, retry)

    async def _answer(self, asked: Asked, digest: bytes, retry: int | None) -> Answered:
        replies = self._replies.setdefault(digest, [])
        found = next((one for one in reversed(replies) if retry is None or one.retry < retry), None)
        if found is None:
            found = _Reply(asyncio.create_task(self._sample(asked, digest)))
            found.task.add_done_callback(lambda task: self._forget_failed(digest, task))
            replies.append(found)
        found.retry = max(found.retry, retry or 0)
        # A client that leaves does not end the call: its repetition asks for the same.
        number = await asyncio.shield(found.task)
        answer = await self.policy.calls.answer_of(self.policy.calls.recall(number), asked.tools)
        characters = CHARACTERS * len(answer.sampled.completion.token_ids)
        return await work_on(characters, lambda: self._answered(asked, answer))

    @property
    def silent_seconds(self) -> float:
        """How long the program has asked for nothing, nor waited for an answer."""
        return 0.0 if self._under_way else time.monotonic() - self._heard_at

    @contextmanager
    def _heard(self) -> Iterator[None]:
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._heard_at = time.monotonic()

    async def earn(self, rewards: Mapping[str, float]) -> None:
        """Keep what the program says to have earned. It is durable when this returns.

        Raises:
            LeaseLost: the attempt has ended.
            Refused: it ends right now. Once its rollout is written, a reward is an event about that.
            ValueError: together with the earlier ones, they are too many.
        """
        async with self._earning:
            self._heard_at = time.monotonic()
            self._check_is_open()
            named_rewards({**self.rewards, **rewards})
            await self._log.reward(self.id, dict(rewards))
            self.rewards |= rewards

    async def conclude(self) -> Mapping[str, float]:
        """What the program said to have earned, once all of it is stored. It keeps no more from now on.

        Raises:
            AttemptFailed: the program said that its attempt has failed.
        """
        async with self._earning:
            self._is_concluded = True
        if self.finished.done() and (error := self.finished.exception()) is not None:
            raise error
        return self.rewards

    async def fail(self, error: str) -> None:
        """End the attempt as a failed one.

        Raises:
            Refused: it ends right now, by another word.
        """
        async with self._earning:
            self._check_is_open()
            await self._log.dismiss(self.id)
            self.break_off(AttemptFailed(error))

    def _check_is_open(self) -> None:
        if self._is_concluded:
            raise Refused(503, "The attempt is about to be written: say it again in a moment.")

    def finish(self) -> None:
        """End the attempt: the workflow that waits for it returns."""
        if not self.finished.done():
            self.finished.set_result(None)

    def break_off(self, error: Exception) -> None:
        """End the attempt by an error."""
        if not self.finished.done():
            self.finished.set_exception(error)
            self.finished.exception()  # a workflow that looks at something else is no bug

    def close(self) -> None:
        """Give up what is under way, and answer no more."""
        self._forget()
        for replies in self._replies.values():
            for reply in replies:
                reply.task.cancel()
        self.finished.cancel()

    async def _sample(self, asked: Asked, digest: bytes) -> int:
        if self.policy.failure is not None:
            raise self.policy.failure
        _DIGEST.set(digest)
        how: Sampling = {
            "max_new_tokens": asked.max_new_tokens,
            "temperature": asked.temperature,
            "stop": asked.stop,
        }
        try:
            return (await self._ask(asked, how)).sampled.number
        except EngineFailed as error:
            self.break_off(error)
            raise

    async def _ask(self, asked: Asked, how: Sampling) -> Answer:
        if asked.messages:
            return await self.policy.chat(asked.messages, tools=asked.tools, **how)
        if isinstance(asked.prompt, str):
            return await self.policy.complete(asked.prompt, **how)
        return await self.policy.extend(asked.prompt, **how)

    async def _keep(self, number: int, prompt: str, payload: Payload, finish_reason: str) -> None:
        await self._log.add(Call(self.id, number, _DIGEST.get(), prompt, payload, finish_reason))

    def _answered(self, asked: Asked, answer: Answer) -> Answered:
        sampled = answer.sampled
        text, calls = str(answer), [call for call in answer.tool_calls if call.problem is None]
        if len(calls) < len(answer.tool_calls):  # what is no call is a part of the text
            token_ids = sampled.completion.token_ids
            text, calls = self.policy.tokenizer.decode(token_ids, skip_special_tokens=True), []
        for stop in asked.stop:  # the protocols leave it out; the policy learns to say it
            text = text.removesuffix(stop)
        return Answered(
            id=f"{self.id:x}-{sampled.number:x}",
            created=int(self.started_at.timestamp()),
            text=text,
            tool_calls=calls,
            finish_reason=sampled.completion.finish_reason,
            prompt_ids=sampled.prompt_ids,
            token_ids=sampled.completion.token_ids,
        )

    def _forget_failed(self, digest: bytes, task: asyncio.Task[int]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._replies[digest] = [one for one in self._replies[digest] if one.task is not task]


async def _given(number: int) -> int:
    return number
