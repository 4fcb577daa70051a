"""A program that makes one attempt: what it asked, and what it was answered."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from trinity_db.arrays import Payload
from trinity_db.explorer.engines.engine import EngineFailed
from trinity_db.explorer.policy import Answer, Policy
from trinity_db.explorer.recording.dialects.dialect import Answered, Asked
from trinity_db.explorer.recording.log import CallLog
from trinity_db.explorer.sampling import Sampling
from trinity_db.store.calls import Call


@dataclass
class _Request:
    """What is being answered."""

    digest: bytes = b""
    number: int = 0
    """Of the call that answers it, once that is on record."""


_REQUEST: ContextVar[_Request | None] = ContextVar("request", default=None)
"""The request that the current task answers; None for calls that a workflow makes itself."""


@dataclass
class _Reply:
    """A request that is answered, or will be."""

    task: asyncio.Task[Answered]
    retry: int
    """The highest number of a retry that it was given to; 0: to none."""


class Agent:
    """One program, its policy, and its requests so far.

    Args:
        url: the endpoint's base URL.
        forget: called when the agent is answered no more.
    """

    def __init__(
        self, id: int, key: str, url: str, policy: Policy, log: CallLog, forget: Callable[[], None]
    ) -> None:
        self.id = id
        self.key = key
        self.url = url
        self.policy = policy
        self.rewards: dict[str, float] = {}
        """What the program said to have earned."""
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the attempt cannot go on; its exception says why."""
        self._log = log
        self._forget = forget
        self._replies: dict[bytes, list[_Reply]] = {}
        policy.keep = self._keep

    async def answer(self, asked: Asked, digest: bytes, retry: int | None) -> Answered:
        """Answer a request, or one that is repeated in the same way as before.

        A client library that lost a connection repeats its request and says so. Such a request gets the
        answer that is there or under way. Without that word an equal request is another one.

        Args:
            digest: of the request.
            retry: which repetition the client says that it is, from 1; 0: none; None: all requests with this
                digest are one and the same.
        """
        replies = self._replies.setdefault(digest, [])
        found = next((one for one in reversed(replies) if retry is None or one.retry < retry), None)
        if found is None:
            found = _Reply(asyncio.create_task(self._sample(asked, digest)), retry or 0)
            found.task.add_done_callback(lambda task: self._forget_failed(digest, task))
            replies.append(found)
        found.retry = max(found.retry, retry or 0)
        # A client that leaves does not end the call: its repetition asks for the same.
        return await asyncio.shield(found.task)

    def close(self) -> None:
        """Give up what is under way, and answer no more."""
        self._forget()
        for replies in self._replies.values():
            for reply in replies:
                reply.task.cancel()
        if not self.broken.done():
            self.broken.cancel()

    async def _sample(self, asked: Asked, digest: bytes) -> Answered:
        if self.policy.failure is not None:
            raise self.policy.failure
        request = _Request(digest)
        _REQUEST.set(request)
        how: Sampling = {
            "max_new_tokens": asked.max_new_tokens,
            "temperature": asked.temperature,
            "stop": asked.stop,
        }
        try:
            if asked.messages:
                answer = await self.policy.chat(asked.messages, tools=asked.tools, **how)
            elif isinstance(asked.prompt, str):
                answer = await self.policy.complete(asked.prompt, **how)
            else:
                answer = await self._continue(asked.prompt, how)
        except EngineFailed as error:
            if not self.broken.done():
                self.broken.set_exception(error)
            raise
        return self._answered(asked, request.number, answer)

    async def _continue(self, token_ids: Sequence[int], how: Sampling) -> Answer:
        completion = await self.policy.sample(token_ids, **how)
        text = self.policy.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        return Answer(text, token_ids, completion)

    async def _keep(self, number: int, prompt: str, payload: Payload, finish_reason: str) -> None:
        request = _REQUEST.get() or _Request()
        await self._log.add(Call(self.id, number, request.digest, prompt, payload, finish_reason))
        request.number = number

    def _answered(self, asked: Asked, number: int, answer: Answer) -> Answered:
        completion = answer.completion
        text, calls = str(answer), [call for call in answer.tool_calls if call.problem is None]
        if len(calls) < len(answer.tool_calls):  # what is no call is a part of the text
            text = self.policy.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
            calls = []
        for stop in asked.stop:  # the protocols leave it out; the policy learns to say it
            text = text.removesuffix(stop)
        return Answered(
            id=f"{self.id:x}-{number:x}",
            created=int(time.time()),
            text=text,
            tool_calls=calls,
            finish_reason=completion.finish_reason,
            prompt_ids=answer.prompt_ids,
            token_ids=completion.token_ids,
        )

    def _forget_failed(self, digest: bytes, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._replies[digest] = [one for one in self._replies[digest] if one.task is not task]
