"""The calls of one attempt: what was sampled, and which of them the store has."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trinity_db.arrays import Payload
from trinity_db.explorer.conversations import Answer, Conversations
from trinity_db.explorer.engines.engine import Completion
from trinity_db.explorer.history import History
from trinity_db.explorer.long_texts import CHARACTERS, work_on
from trinity_db.explorer.recorded import Sampled
from trinity_db.store.calls import Call

Keep = Callable[[int, str, Payload, str], Awaitable[None]]
"""Makes a call durable: its number in the attempt, the prompt, the tokens, and the finish reason."""


class Calls:
    """Records the calls of an attempt.

    Args:
        temperature: of the run.
        tokenizer: the run's.
    """

    def __init__(self, temperature: float, tokenizer: Any) -> None:
        self.begun = 0
        """How many calls there were; those that failed count."""
        self.keep: Keep | None = None
        """What makes each call durable before it is answered, if anything does."""
        self.finish_reason: str | None = None
        """Of the last call."""
        self.conversations = Conversations(tokenizer)
        self.history = History(temperature, self.conversations.text, self.conversations.whole_text)
        self._temperature = temperature
        self._stored: set[int] = set()
        """Numbers of the calls that the store has."""
        self._keeping: set[asyncio.Task[None]] = set()
        """Calls, and a park, that are being made durable."""

    async def add(self, sampled: Sampled, temperature: float) -> None:
        """Record a call, once it is durable if it is to be.

        A cancelled call is recorded all the same once it is stored: a policy that another explorer resumes
        has it too.
        """
        if sampled.prompt is None:  # a sequence that begins with it has its text
            ids = sampled.prompt_ids
            text = await work_on(CHARACTERS * len(ids), lambda: self.conversations.whole_text(ids))
            sampled = replace(sampled, prompt=text)
        if self.keep is None:
            self._record(sampled, temperature)
        else:
            await self.unbroken(self._kept(self.keep, sampled, temperature))

    async def unbroken(self, storing: Coroutine[Any, Any, None]) -> None:
        """Wait for the store. It goes on also if the caller is cancelled."""
        task = asyncio.create_task(storing)
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)
        # Nothing may wait for its error any more.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(task)

    async def settled(self) -> None:
        """Wait until each call that is being made durable is recorded, or could not be stored."""
        await asyncio.gather(*self._keeping, return_exceptions=True)

    def recall(self, number: int) -> Sampled:
        """A call that was recorded, by its number."""
        place = self.history.places[number]
        return Sampled(number, self.conversations.prompt(number), place.prompt_ids, place.completion)

    async def answer_of(self, sampled: Sampled, schemas: Sequence[Mapping[str, Any]]) -> Answer:
        """A call as an answer, with its calls of the tools that these JSON schemas describe."""
        characters = CHARACTERS * len(sampled.completion.token_ids)
        return await work_on(characters, lambda: self.conversations.answer(sampled, schemas))

    def unstored(self) -> list[Call]:
        """The calls that the store does not have. Their agent is set when they are stored."""
        return [self._as_call(number) for number in sorted(self.history.places.keys() - self._stored)]

    def restore(self, number: int, prompt: str, payload: Payload, finish_reason: str) -> Sampled:
        """Record a call that was stored before, as if it had just been sampled. Calls come in their order."""
        assert payload.logprobs is not None
        assert payload.versions is not None
        length = payload.num_tokens - payload.num_trained
        prompt_ids, token_ids = payload.token_ids[:length].tolist(), payload.token_ids[length:].tolist()
        reason: Any = finish_reason
        completion = Completion(
            token_ids, payload.logprobs.tolist(), payload.versions.tolist(), reason, payload.routing
        )
        sampled = Sampled(number, prompt, prompt_ids, completion)
        own = payload.temperatures
        self._record(sampled, self._temperature if own is None else float(own[0]))
        text = self.conversations.whole_text(token_ids)
        self.conversations.say(sampled, prompt, text, *self.conversations.continued(prompt))
        self.conversations.with_tools(sampled, ())  # its tool calls keep their tokens when they come back
        self._stored.add(number)
        self.begun = number + 1
        return sampled

    async def _kept(self, keep: Keep, sampled: Sampled, temperature: float) -> None:
        one = self.history.alone(sampled, temperature)
        await keep(sampled.number, one.prompt, one.payload, sampled.completion.finish_reason)
        self._stored.add(sampled.number)
        self._record(sampled, temperature)

    def _record(self, sampled: Sampled, temperature: float) -> None:
        self.finish_reason = sampled.completion.finish_reason
        self.history.add(sampled, temperature)

    def _as_call(self, number: int) -> Call:
        sampled, temperature = self.recall(number), self.history.places[number].temperature
        one = self.history.alone(sampled, temperature)
        return Call(0, number, b"", one.prompt, one.payload, sampled.completion.finish_reason)
