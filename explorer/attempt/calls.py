"""Records the calls of one attempt, and tracks which are stored."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trinity_db.arrays.codec import Payload
from trinity_db.explorer.attempt.conversations import Answer, Conversations
from trinity_db.explorer.attempt.history import History
from trinity_db.explorer.attempt.long_texts import CHARACTERS, work_on
from trinity_db.explorer.attempt.recorded import Requested, Sampled
from trinity_db.explorer.config import RequestsConfig
from trinity_db.explorer.engines.engine import Completion
from trinity_db.store.calls import Call

Keep = Callable[[int, str, Payload, str], Awaitable[None]]
"""Makes a call durable, given its number in the attempt, prompt, tokens, and finish reason."""


class Calls:
    """Records the calls of an attempt.

    Args:
        temperature: the run's temperature.
        tokenizer: the run's tokenizer.
        rules: which calls of programs are trained.
    """

    def __init__(self, temperature: float, tokenizer: Any, rules: RequestsConfig) -> None:
        self.begun = 0
        """Number of calls so far, including failed ones."""
        self.keep: Keep | None = None
        """Makes each call durable before it is answered; None: calls are only stored with the rollout."""
        self.conversations = Conversations(tokenizer)
        texts = self.conversations.text, self.conversations.whole_text
        self.history = History(temperature, *texts, rules)
        self._temperature = temperature
        self._stored: set[int] = set()
        """Numbers of the calls that are in the store."""
        self._keeping: set[asyncio.Task[None]] = set()
        """Pending writes of calls or of a park."""

    async def add(self, sampled: Sampled, temperature: float) -> None:
        """Record a call, after making it durable if required.

        A cancelled call is still recorded once it is stored: a policy that another explorer resumes includes
        it.
        """
        if sampled.prompt is None:  # a new sequence that starts with it needs its text
            ids = sampled.prompt_ids
            text = await work_on(CHARACTERS * len(ids), lambda: self.conversations.whole_text(ids))
            sampled = replace(sampled, prompt=text)
        if self.keep is None:
            self._record(sampled, temperature)
        else:
            await self.unbroken(self._kept(self.keep, sampled, temperature))

    async def unbroken(self, storing: Coroutine[Any, Any, None]) -> None:
        """Wait for a write to the store, which continues even if the caller is cancelled."""
        task = asyncio.create_task(storing)
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)
        # Mark its error as retrieved: the caller may be gone.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(task)

    async def settled(self) -> None:
        """Wait until all pending writes have succeeded or failed."""
        await asyncio.gather(*self._keeping, return_exceptions=True)

    @property
    def finish_reason(self) -> str | None:
        """Finish reason of the last call that is not left out of training; None if there is none."""
        history = self.history
        kept = [span for number, span in history.places.items() if number not in history.left_out]
        return kept[-1].finish_reason if kept else None

    def recall(self, number: int) -> Sampled:
        """Return a recorded call, by its number."""
        span = self.history.places[number]
        return Sampled(number, self.conversations.prompt(number), span.prompt_ids, span.completion)

    async def answer_of(self, sampled: Sampled, schemas: Sequence[Mapping[str, Any]]) -> Answer:
        """Return a call as an answer, with tool calls parsed by these JSON schemas."""
        characters = CHARACTERS * len(sampled.completion.token_ids)
        return await work_on(characters, lambda: self.conversations.answer(sampled, schemas))

    def unstored(self) -> list[Call]:
        """Return the calls that are not in the store. Their agent is set when they are stored."""
        return [self._as_call(number) for number in sorted(self.history.places.keys() - self._stored)]

    def restore(self, call: Call) -> Sampled:
        """Record a stored call as if it had just been sampled. Calls must be restored in order."""
        number, prompt, payload = call.number, call.prompt, call.payload
        assert payload.logprobs is not None
        assert payload.versions is not None
        length = payload.num_tokens - payload.num_trained
        prompt_ids, token_ids = payload.token_ids[:length].tolist(), payload.token_ids[length:].tolist()
        reason: Any = call.finish_reason
        completion = Completion(
            token_ids, payload.logprobs.tolist(), payload.versions.tolist(), reason, payload.routing
        )
        sampled = Sampled(number, prompt, prompt_ids, completion)
        if call.path is not None:
            self.history.requests[number] = Requested(call.digest, call.path, call.model or "")
        own = payload.temperatures
        self._record(sampled, self._temperature if own is None else float(own[0]))
        text = self.conversations.whole_text(token_ids)
        self.conversations.say(sampled, prompt, text, *self.conversations.continued(prompt))
        self.conversations.with_tools(sampled, ())  # lets its tool calls keep their tokens when passed back
        self._stored.add(number)
        self.begun = number + 1
        return sampled

    async def _kept(self, keep: Keep, sampled: Sampled, temperature: float) -> None:
        sequence = self.history.alone(sampled, temperature)
        await keep(sampled.number, sequence.prompt, sequence.payload, sampled.completion.finish_reason)
        self._stored.add(sampled.number)
        self._record(sampled, temperature)

    def _record(self, sampled: Sampled, temperature: float) -> None:
        self.history.add(sampled, temperature)

    def _as_call(self, number: int) -> Call:
        sampled, temperature = self.recall(number), self.history.places[number].temperature
        sequence = self.history.alone(sampled, temperature)
        return Call(0, number, b"", sequence.prompt, sequence.payload, sampled.completion.finish_reason)
