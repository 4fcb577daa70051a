"""A program that makes one attempt: its requests and the responses to them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from trinity_db.arrays.codec import Payload
from trinity_db.explorer.attempt.conversations import Answer
from trinity_db.explorer.attempt.long_texts import CHARACTERS, work_on
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.attempt.recorded import Requested, Sampled
from trinity_db.explorer.attempt.sampling import Sampling
from trinity_db.explorer.attempt.tools import CALL_END
from trinity_db.explorer.engines.engine import EngineFailed
from trinity_db.explorer.http.dialects.dialect import Answered, ParsedRequest
from trinity_db.explorer.http.dialects.options import Refused
from trinity_db.explorer.http.log import CallLog
from trinity_db.models.chat.decoding import response_text
from trinity_db.models.chat.prompts import encode
from trinity_db.models.chat.thoughts import split
from trinity_db.postgres.connection import storable
from trinity_db.store.calls import Call, ResumedAgent
from trinity_db.store.groups import named_rewards

MODEL = 200  # characters of a model's name that are stored

_REQUESTED: ContextVar[Requested | None] = ContextVar("requested", default=None)
"""The request that the current task answers; None for calls made by the workflow itself."""
_REPLACED: ContextVar[Mapping[str, Any] | None] = ContextVar("replaced", default=None)
"""Options of that request that are replaced."""


class AttemptFailed(Exception):
    """Reported by a program whose attempt has failed."""


@dataclass(frozen=True, eq=False)
class Incoming:
    """A request as it came over HTTP."""

    path: str
    digest: bytes
    """Equal for repetitions of the request."""
    retry: int | None
    """Retry number that the client sent, from 1; 0: none; None: all requests with this digest are the
    same."""
    is_connected: Callable[[], bool]
    """Whether the client still waits for the answer."""


@dataclass
class _Reply:
    """A finished or pending reply to a request."""

    task: asyncio.Task[int]
    """Returns the number of the call. The policy holds the tokens, once per conversation."""
    retry: int = 0
    """Highest retry number that received this reply; 0: none."""
    requests: list[Incoming] = field(default_factory=list)
    """Requests whose answers are being sampled or sent."""

    @property
    def is_in_flight(self) -> bool:
        """Whether a client waits for it."""
        return any(request.is_connected() for request in self.requests)

    @property
    def has_failed(self) -> bool:
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)


class Agent:
    """One program with its policy and its requests.

    Args:
        url: the endpoint's base URL.
        key: empty for an agent admitted by an earlier explorer.
        place: id of the rollout group, and the member's number in it.
        forget: called when the agent is no longer served.
    """

    def __init__(
        self,
        id: int,
        url: str,
        key: str,
        group_member: tuple[int, int],
        policy: Policy,
        log: CallLog,
        forget: Callable[[], None],
    ) -> None:
        self.id = id
        self.url = url
        self.key = key
        self.group_member = group_member
        self.policy = policy
        self.rewards: dict[str, float] = {}
        """Rewards that the program reported."""
        self.started_at = datetime.now(UTC)
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the program finishes the attempt, or cannot continue; its exception contains the
        reason."""
        self._log = log
        self._forget = forget
        self._replies: dict[bytes, list[_Reply]] = {}
        self.reading = asyncio.Lock()
        """Held while a request is parsed, so that requests are answered in their order of arrival."""
        self._earning = asyncio.Lock()
        self._heard_at = time.monotonic()
        self._under_way = 0
        """Number of requests in progress."""
        self._is_concluded = False
        """Whether the rollout's rewards are final."""
        policy.calls.keep = self._keep
        policy.calls.conversations.thoughts_are_apart = bool(policy.renderer.thought_marks)

    def restore(self, resumed: ResumedAgent) -> None:
        """Restore the program's rewards and calls from the store."""
        self.started_at, self.rewards = resumed.started_at, resumed.rewards
        for call in resumed.calls:
            sampled = self.policy.calls.restore(call)
            done = asyncio.create_task(_number_of(sampled.number))
            self._replies.setdefault(call.digest, []).append(_Reply(done))

    @asynccontextmanager
    async def answering(self, question: ParsedRequest, request: Incoming) -> AsyncIterator[Answered]:
        """Answer a request, or yield the answer of an earlier one if this request repeats it.

        The answer counts as in flight until it is sent, at the end of the context.
        """
        with self._heard():
            reply = self._repeated(request)
            if reply is None:
                reply = _Reply(asyncio.create_task(self._sample(question, request)))
                reply.task.add_done_callback(lambda _: self._forget_failed(request.digest))
                self._replies.setdefault(request.digest, []).append(reply)
            reply.retry = max(reply.retry, request.retry or 0)
            reply.requests.append(request)
            try:
                # A client that disconnects does not cancel the call: its repetition gets the same answer.
                number = await asyncio.shield(reply.task)
                answer = await self.policy.calls.answer_of(self.policy.calls.recall(number), question.tools)
                characters = CHARACTERS * len(answer.sampled.completion.token_ids)
                yield await work_on(characters, lambda: self._answered(question, answer))
            finally:
                reply.requests.remove(request)

    def _repeated(self, request: Incoming) -> _Reply | None:
        """Return the reply that a request repeats; None if it is a new request.

        A client library that lost a connection may say so by a retry number. Without one, an equal request
        repeats the earlier one if no client waits for that reply any more, and nothing continues it. So two
        equal requests at once get an answer each.
        """
        replies = reversed([reply for reply in self._replies.get(request.digest, ()) if not reply.has_failed])
        if request.retry is None:
            return next(replies, None)
        if request.retry:
            retry = request.retry
            return next((reply for reply in replies if reply.retry < retry), None)
        if self.policy.rules.repeats == "sample":
            return None
        return next((reply for reply in replies if not reply.is_in_flight and self._is_last(reply)), None)

    def _is_last(self, reply: _Reply) -> bool:
        return not reply.task.done() or self.policy.calls.history.is_last(reply.task.result())

    @property
    def silent_seconds(self) -> float:
        """Seconds since the program's last request ended; 0 while one is in progress."""
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
        """Store rewards that the program reported. They are durable when this returns.

        Raises:
            LeaseLost: if the attempt has ended.
            Refused: if it is ending right now. After its rollout is written, a reward becomes an event.
            ValueError: if there are too many rewards, including earlier ones.
        """
        async with self._earning:
            self._heard_at = time.monotonic()
            self._check_is_open()
            named_rewards({**self.rewards, **rewards})
            await self._log.reward(self.id, dict(rewards))
            self.rewards |= rewards

    async def conclude(self) -> Mapping[str, float]:
        """Return the program's rewards once all are stored, and accept none afterwards.

        Raises:
            AttemptFailed: if the program reported that its attempt has failed.
        """
        async with self._earning:
            self._is_concluded = True
        if self.finished.done() and (error := self.finished.exception()) is not None:
            raise error
        return self.rewards

    async def fail(self, error: str) -> None:
        """End the attempt as failed.

        Raises:
            Refused: if it is already ending.
        """
        async with self._earning:
            self._check_is_open()
            await self._log.dismiss(self.id)
            self.break_off(AttemptFailed(error))

    def _check_is_open(self) -> None:
        if self._is_concluded:
            raise Refused(503, "The attempt is being written: retry in a moment.")

    def finish(self) -> None:
        """End the attempt: the workflow that waits for it returns."""
        if not self.finished.done():
            self.finished.set_result(None)

    def break_off(self, error: Exception) -> None:
        """End the attempt with an error."""
        if not self.finished.done():
            self.finished.set_exception(error)
            self.finished.exception()  # mark as retrieved: a workflow need not await it

    def close(self) -> None:
        """Cancel pending replies, and stop serving the agent."""
        self._forget()
        for replies in self._replies.values():
            for reply in replies:
                reply.task.cancel()
        self.finished.cancel()

    async def _sample(self, question: ParsedRequest, request: Incoming) -> int:
        if self.policy.failure is not None:
            raise self.policy.failure
        _REQUESTED.set(Requested(request.digest, request.path, storable(question.model[:MODEL])))
        _REPLACED.set(question.replaced)
        how: Sampling = {
            "max_new_tokens": question.max_new_tokens,
            "temperature": question.temperature,
            "stop": [*question.stop, CALL_END] if question.one_call else question.stop,
        }
        try:
            return (await self._ask(question, how)).sampled.number
        except EngineFailed as error:
            self.break_off(error)
            raise

    async def _ask(self, question: ParsedRequest, how: Sampling) -> Answer:
        if question.messages:
            return await self.policy.chat(
                question.messages,
                tools=question.tools,
                begun=question.begun,
                variables=question.variables,
                **how,
            )
        if isinstance(question.prompt, str):
            return await self.policy.complete(question.prompt, **how)
        return await self.policy.extend(question.prompt, **how)

    async def _keep(self, number: int, prompt: str, payload: Payload, finish_reason: str) -> None:
        call = Call(self.id, number, b"", prompt, payload, finish_reason, _REPLACED.get() or {})
        if (requested := _REQUESTED.get()) is not None:
            call = replace(call, digest=requested.digest, path=requested.path, model=requested.model)
            self.policy.calls.history.requests[number] = requested
        await self._log.add(call)

    def _answered(self, question: ParsedRequest, answer: Answer) -> Answered:
        sampled = answer.sampled
        text, calls = str(answer), [call for call in answer.tool_calls if call.problem is None]
        if len(calls) < len(answer.tool_calls):  # keep malformed calls as part of the text
            token_ids = sampled.completion.token_ids
            text, calls = response_text(token_ids, self.policy.tokenizer), []
        stop = self._stop_of(question, sampled)
        if stop is not None:  # the protocols omit the stop string; it stays in the trained tokens
            text = text.partition(stop)[0]
        thought = ""
        if question.messages:
            thought, text = split(text, sampled.prompt or "", self.policy.renderer.thought_marks)
        return Answered(
            id=f"{self.id:x}-{sampled.number:x}",
            created=int(self.started_at.timestamp()),
            thought=thought,
            text=text,
            tool_calls=calls,
            finish_reason=sampled.completion.finish_reason,
            stop=stop,
            prompt_ids=sampled.prompt_ids,
            token_ids=sampled.completion.token_ids,
            thought_tokens=len(encode(thought, self.policy.tokenizer)) if thought else 0,
        )

    def _stop_of(self, question: ParsedRequest, sampled: Sampled) -> str | None:
        """Return the stop string that ended an answer; None if none did."""
        if sampled.completion.finish_reason != "stop" or not question.stop:
            return None
        text = self.policy.calls.conversations.whole_text(sampled.completion.token_ids)
        places = [(text.find(stop), -len(stop), stop) for stop in question.stop if stop in text]
        return min(places)[2] if places else None

    def _forget_failed(self, digest: bytes) -> None:
        self._replies[digest] = [reply for reply in self._replies[digest] if not reply.has_failed]


async def _number_of(number: int) -> int:
    return number
