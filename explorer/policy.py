"""The policy as one attempt sees it: it answers prompts, and records what it sampled.

A workflow never assembles what is trained. It asks the policy, and each call's tokens are recorded as they
were sampled. A call whose prompt begins with all tokens of an earlier call, response included, is joined with
it: an attempt of several turns becomes one sequence, in which only sampled tokens are trained. A prompt that
rewrites what came before begins another sequence.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from operator import index
from typing import Any, Protocol, Unpack

from trinity_db.arrays import Payload
from trinity_db.explorer import sampling
from trinity_db.explorer.engines.engine import Completion, Engine, EngineFailed, Request
from trinity_db.explorer.recorded import JoinedCalls, Sampled, check
from trinity_db.explorer.sampling import Sampling
from trinity_db.explorer.tools import Tool, ToolCall, answer, parse, schemas_of, tools_of
from trinity_db.prompts import encode, plain, prompt_text
from trinity_db.store.groups import Reward, Step, named_rewards


@dataclass
class _Conversation:
    """A conversation up to its latest answer. Its earlier answers are kept as places in it, not as copies."""

    text: str
    token_ids: list[int]
    ends: list[tuple[int, int]]
    """Where each answer ends: so many characters, so many tokens."""

    def begins(self, text: str) -> tuple[int, int]:
        """The last of its ends up to which a text is the same; zeros where there is none."""
        return next((end for end in reversed(self.ends) if text.startswith(self.text[: end[0]])), (0, 0))


class Answer(str):
    """The text of an answer without its tool calls, which stand beside it."""

    sampled: Sampled
    tool_calls: Sequence[ToolCall]

    def __new__(cls, text: str, sampled: Sampled, tool_calls: Sequence[ToolCall] = ()) -> "Answer":
        made = super().__new__(cls, text)
        made.sampled, made.tool_calls = sampled, tool_calls
        return made

    @property
    def message(self) -> dict[str, Any]:
        """As a message of the OpenAI protocol, with which a conversation goes on."""
        message: dict[str, Any] = {"role": "assistant", "content": str(self)}
        if self.tool_calls:
            message["tool_calls"] = [call.openai for call in self.tool_calls]
        return message


class Address(Protocol):
    """Where a program asks the policy over HTTP, in the protocol of OpenAI or Anthropic."""

    url: str
    """The base URL, without /v1."""
    key: str
    """Names the attempt. Empty where an earlier explorer gave it to the program."""

    async def conclude(self) -> Mapping[str, float]:
        """What the program said to have earned; it raises what the program said to have failed by."""

    def close(self) -> None:
        """Answer no more."""


class Listener(Protocol):
    """Lets programs ask a policy over HTTP."""

    async def open(self, policy: "Policy") -> Address:
        """By a new key."""

    async def resume(self, policy: "Policy") -> Address | None:
        """By the key that a program of the same attempt has of an explorer that is gone; None: none has."""


Keep = Callable[[int, str, Payload, str], Awaitable[None]]
"""Makes a call durable: its number in the attempt, the prompt, the tokens, and the finish reason."""


class Policy:
    """What an attempt may ask.

    Args:
        prompt_ids: the tokens of a text that a conversation begins with.
        temperature: of a call that names none; 0 in the greedy attempt of a group, for all calls.
        max_new_tokens: of a call that names no other limit.
        seed: differs between attempts, and is the same for the same attempt of another process.
        group_seed: of all attempts of one rollout group.
        listener: lets programs ask this policy over HTTP; None: they cannot.
    """

    def __init__(
        self,
        engine: Engine,
        prompt_ids: Callable[[str], Sequence[int]],
        *,
        template: str,
        temperature: float,
        max_new_tokens: int,
        seed: int,
        group_seed: int = 0,
        listener: Listener | None = None,
    ) -> None:
        self.template = template
        """The text around a plain prompt, `model.prompt_template`."""
        self.seed = seed
        """For what an environment leaves to chance."""
        self.group_seed = group_seed
        """The same for all attempts that are compared with one another: for what makes the task itself, as
        the secret word of a game."""
        self.failure: EngineFailed | None = None
        """Why the engine cannot go on; the explorer ends by it, whatever the workflow makes of it."""
        self.finish_reason: str | None = None
        """Of the last call."""
        self.keep: Keep | None = None
        """What makes each call durable before it is answered, if anything does."""
        self._listener = listener
        self._address: Address | None = None
        self._opening = asyncio.Lock()
        """Held while the address is asked for: two at a time would be two programs, and end each other."""
        self._engine = engine
        self._prompt_ids = prompt_ids
        self._temperature = temperature
        self._max_new_tokens = max_new_tokens
        self._calls = 0
        self._open: list[JoinedCalls] = []
        """Sequences that calls may still be joined with."""
        self._is_left = False
        """Whether the attempt goes on although it was cancelled."""
        self._steps: list[Step] = []
        self._with_calls: dict[str, tuple[Answer, str]] = {}
        """Answers with tool calls and their texts as they were sampled, by the id of the first call."""
        self._said: list[_Conversation] = []
        """Conversations so far, none the beginning of another."""

    @property
    def tokenizer(self) -> Any:
        """The run's tokenizer, of the transformers library."""
        return self._engine.tokenizer

    @property
    def context(self) -> int:
        """Longest sequence in tokens, prompt and response together."""
        return self._engine.context

    async def sample(
        self, token_ids: Sequence[int], *, prompt: str | None = None, **how: Unpack[Sampling]
    ) -> Completion:
        """Continue tokens.

        Args:
            prompt: their text, where it is known; else they are decoded.
            how: `max_new_tokens`, `temperature`, `stop`.

        Raises:
            PromptTooLong: they are none, or fill the context.
            TypeError: they are no whole numbers, or there is no such option.
            ValueError: an option is wrong, or the engine gave what cannot be trained on.
        """
        asked = [index(token) for token in token_ids]
        return (await self._call(asked, prompt, how)).completion

    async def extend(self, token_ids: Sequence[int], **how: Unpack[Sampling]) -> Answer:
        """Continue tokens, as `sample` does: the text of the response, with what was sampled."""
        return self.answer_of(await self._call([index(token) for token in token_ids], None, how), ())

    async def _call(self, prompt_ids: list[int], prompt: str | None, how: Sampling) -> Sampled:
        sampling.check(how)
        if self._is_left:
            await asyncio.Event().wait()  # an error might be caught, and the call made again and again
        if self.failure is not None:  # a workflow that tries again and again would never end
            raise asyncio.CancelledError(str(self.failure))
        number = self._calls
        self._calls += 1  # each call has a seed of its own, so that two calls with one prompt differ
        limit = how.get("max_new_tokens") or self._max_new_tokens
        seed = seed_of(self.seed, self._calls)
        temperature = (self._temperature and how.get("temperature")) or self._temperature
        request = Request(prompt_ids, limit, temperature, seed, sampling.stops(how))
        try:
            completion = await self._engine.generate(request)
        except EngineFailed as error:
            self.failure = error
            raise
        check(completion)
        sampled = Sampled(number, prompt, prompt_ids, completion)
        if self.keep is not None:
            one = self._sequence(sampled, temperature)
            await self.keep(number, one.prompt, one.payload, completion.finish_reason)
        self.finish_reason = completion.finish_reason
        self._record(sampled, temperature)
        return sampled

    async def address(self) -> Address:
        """Where programs ask this policy over HTTP, and the key by which they do. It is the same each time.

        Their calls are recorded like those of `chat`, and each is stored before it is answered.

        Raises:
            RuntimeError: no explorer answers for this policy.
        """
        if self._listener is None:
            raise RuntimeError("This policy has no address: no explorer listens for it.")
        async with self._opening:
            if self._address is None:
                self._address = await self._listener.open(self)
        return self._address

    async def resumed_address(self) -> Address | None:
        """The address that a program of this attempt has of an explorer that is gone; None: none has.

        What the program asked before is recorded in this policy then.
        """
        if self._listener is not None and self._address is None:
            self._address = await self._listener.resume(self)
        return self._address

    async def earned(self, returned: Reward) -> Reward:
        """What an attempt earned: what its program said over HTTP, and what its workflow returned.

        Where both have a name, the workflow's number counts.

        Raises:
            AttemptFailed: the program said that the attempt has failed.
        """
        said = {} if self._address is None else await self._address.conclude()
        return {**said, **named_rewards(returned)} if said else returned

    def restore(self, number: int, prompt: str, payload: Payload, finish_reason: str) -> Sampled:
        """Record a call that was stored before, as if it had just been sampled. Calls come in their order."""
        assert payload.logprobs is not None
        assert payload.versions is not None
        length = payload.num_tokens - payload.num_trained
        prompt_ids, token_ids = payload.token_ids[:length].tolist(), payload.token_ids[length:].tolist()
        reason: Any = finish_reason
        completion = Completion(token_ids, payload.logprobs.tolist(), payload.versions.tolist(), reason)
        sampled = Sampled(number, prompt, prompt_ids, completion)
        own = payload.temperatures
        self._record(sampled, self._temperature if own is None else float(own[0]))
        self._say(sampled, prompt, *self._continued(prompt))
        self._with_tools(sampled, ())  # so that its tool calls keep their tokens when they come back
        self.finish_reason, self._calls = finish_reason, number + 1
        return sampled

    def close(self) -> None:
        """Answer programs no more. The explorer calls it when the attempt has ended."""
        if self._address is not None:
            self._address.close()

    async def complete(self, prompt: str, **how: Unpack[Sampling]) -> Answer:
        """Continue a text, as it is: the text of the response.

        Raises:
            PromptTooLong: its tokens fill the context.
            UntokenizableText: the tokenizer does not know one of its characters.
        """
        ids = self._prompt_ids(prompt)
        return self.answer_of(await self._call([*ids], prompt, how), ())

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Callable[..., Any] | Tool | Mapping[str, Any]] = (),
        **how: Unpack[Sampling],
    ) -> Answer:
        """Answer a conversation, by the tokenizer's chat template: the text of the answer.

        A conversation that goes on from an earlier answer keeps that answer's tokens as they were sampled,
        where the template leaves its text as it was. An answer with tool calls keeps its text too, as long as
        its `message` comes back unchanged.

        Args:
            tools: what the model may call: functions with a docstring, or JSON schemas.
            how: as in `sample`.

        Raises:
            ConfigError: a tool is no function that a model can call.
            PromptTooLong: the conversation fills the context.
            UntokenizableText: the template refuses the conversation, the tokenizer a character, or a message
                has an image.
            ValueError: the conversation is empty.
        """
        schemas = schemas_of(tools)
        text, ids, begun, end = self._conversation(messages, schemas)
        sampled = await self._call(ids, text, how)
        self._say(sampled, text, begun, end)
        return self.answer_of(sampled, schemas)

    def count(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Callable[..., Any] | Tool | Mapping[str, Any]] = (),
    ) -> int:
        """How many tokens `chat` would continue for this conversation. Nothing is sampled.

        Raises:
            what `chat` raises, but for a conversation that is too long.
        """
        return len(self._conversation(messages, schemas_of(tools))[1])

    async def act(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Callable[..., Any] | Tool],
        *,
        turns: int = 8,
        **how: Unpack[Sampling],
    ) -> list[dict[str, Any]]:
        """Answer a conversation, and call what the answers ask for, until one asks for nothing.

        Calls are made in their order, one after the other. What goes wrong in one is told to the model.

        Args:
            turns: answers at most; the last one's calls are not made.
            how: each answer is sampled, as in `sample`.

        Returns:
            The messages that follow: answers and what tools gave. The last one is an answer.

        Raises:
            ValueError: `turns` is below 1.
            what `chat` raises.
        """
        if turns < 1:
            raise ValueError(f"turns is {turns}; the policy answers at least once.")
        known = tools_of(tools)
        added: list[dict[str, Any]] = []
        for turn in range(turns):
            said = await self.chat([*messages, *added], tools=[*known.values()], **how)
            added.append(said.message)
            if not said.tool_calls or turn + 1 == turns:
                break
            added += [await answer(call, known) for call in said.tool_calls]
        return added

    def step(self, *, reward: Reward = None, state: str | None = None) -> None:
        """Make a step of what was sampled since the last one: a row of its own, with a reward of its own.

        For algorithms that compare steps, as multi_step_grpo and gigpo. Later calls are not joined with it.

        Args:
            reward: what it earned; several numbers by name are added up.
            state: of the environment in which the policy acted, for algorithms that compare what was done in
                equal states.

        Raises:
            TypeError: the state is no text, or the reward no number.
            ValueError: nothing was sampled since, or the reward is not finite.
        """
        if not self._open:
            raise ValueError("The attempt has sampled nothing since its last step.")
        *first, last = self._open
        self._steps += [Step(*self._texts(one), one.payload, state=state) for one in first]
        self._steps.append(Step(*self._texts(last), last.payload, reward, state))
        self._open, self._said = [], []

    def leave(self) -> None:
        """Let no further call of the attempt return: it is over, and its workflow goes on all the same."""
        self._is_left = True

    def steps(self, reward: Reward) -> list[Step]:
        """What was sampled, with what the attempt as a whole earned.

        Where the workflow made steps, the last one earns it besides its own reward; else each sequence does,
        since it is the attempt that is judged.
        """
        rest = [Step(*self._texts(one), one.payload, reward) for one in self._open]
        if reward is None or rest or not self._steps:
            return [*self._steps, *rest]
        *before, last = self._steps
        return [*before, replace(last, reward=_added(last.reward, reward))]

    def answer_of(self, sampled: Sampled, schemas: Sequence[Mapping[str, Any]]) -> Answer:
        """A call as an answer, with its calls of the tools that these JSON schemas describe."""
        if schemas:
            return self._with_tools(sampled, schemas)
        return Answer(self._text(sampled.completion.token_ids), sampled)

    def _with_tools(self, sampled: Sampled, schemas: Sequence[Mapping[str, Any]]) -> Answer:
        token_ids = sampled.completion.token_ids
        content, calls = parse(token_ids, sampled.prompt or "", self.tokenizer, schemas)
        # Ids follow from the place of the call, so that a repeated request gets the same.
        ids = [f"call_{seed_of(sampled.number, place):016x}" for place in range(len(calls))]
        said = Answer(content, sampled, [replace(call, id=id) for call, id in zip(calls, ids, strict=True)])
        if ids:
            self._with_calls[ids[0]] = said, self._text(token_ids)
        return said

    def _conversation(
        self, messages: Sequence[Mapping[str, Any]], schemas: Sequence[Mapping[str, Any]]
    ) -> tuple[str, list[int], _Conversation, tuple[int, int]]:
        """A conversation's text and tokens, and the earlier one that it goes on from, up to where."""
        if not messages:
            raise ValueError("The conversation is empty.")
        as_said = [self._as_said(message) for message in messages]
        text = prompt_text({"messages": as_said}, self.template, self.tokenizer, schemas)
        begun, end = self._continued(text)
        if end[0]:
            ids = [*begun.token_ids[: end[1]], *encode(text[end[0] :], self.tokenizer)]
        else:
            ids = [*self._prompt_ids(text)]
        return text, ids, begun, end

    def _continued(self, text: str) -> tuple[_Conversation, tuple[int, int]]:
        """The conversation that a text goes on from, and up to where; an empty one where there is none."""
        begun = max(self._said, key=lambda one: one.begins(text), default=_Conversation("", [], []))
        return begun, begun.begins(text)

    def _say(self, sampled: Sampled, prompt: str, begun: _Conversation, end: tuple[int, int]) -> None:
        """Keep an answer, with which the conversation may go on."""
        token_ids = sampled.completion.token_ids
        if end not in begun.ends[-1:]:  # another beginning, or another branch
            begun = _Conversation("", [], [])
            self._said.append(begun)
        begun.text = prompt + self.tokenizer.decode(token_ids, skip_special_tokens=False)
        begun.token_ids = [*sampled.prompt_ids, *token_ids]
        begun.ends.append((len(begun.text), len(begun.token_ids)))

    def _as_said(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message; an answer of the policy's with tool calls has the text that was sampled.

        A template that writes the calls again may put a space elsewhere, and so begin another sequence.
        """
        if not message.get("tool_calls"):
            return message
        given = plain(message)
        said, text = self._with_calls.get(given["tool_calls"][0].get("id"), (None, ""))
        if said is None:
            return message
        same = plain(said.message)
        is_same = given["content"] == same["content"] and _called(given) == _called(same)
        return {"role": "assistant", "content": text} if is_same else message

    def _record(self, sampled: Sampled, temperature: float) -> None:
        prompt_ids = sampled.prompt_ids
        begun = [one for one in self._open if one.token_ids == prompt_ids[: len(one.token_ids)]]
        if begun:  # several may begin it, as two answers to one prompt: the longest has most in common
            longest = max(begun, key=lambda one: len(one.token_ids))
            longest.add(prompt_ids, sampled.completion, temperature)
        else:
            self._open.append(self._sequence(sampled, temperature))

    def _sequence(self, sampled: Sampled, temperature: float) -> JoinedCalls:
        """The sequence of one call."""
        prompt_ids, text = sampled.prompt_ids, sampled.prompt
        text = self.tokenizer.decode(prompt_ids) if text is None else text
        sequence = JoinedCalls(text, [], [], len(prompt_ids), self._temperature)
        sequence.add(prompt_ids, sampled.completion, temperature)
        return sequence

    def _texts(self, sequence: JoinedCalls) -> tuple[str, str]:
        """The first prompt, and all that follows."""
        return sequence.prompt, self._text(sequence.token_ids[sequence.first_response :])

    def _text(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        return text


def _called(message: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The tool calls of a message, without what client libraries add to them."""
    calls = [(call.get("id"), call.get("function", call)) for call in message["tool_calls"]]
    return [(id, function.get("name"), function.get("arguments")) for id, function in calls]


def _added(first: Reward, second: Reward) -> Reward:
    """Rewards of both, added up by name."""
    if first is None:
        return second
    added = named_rewards(first)
    for name, value in named_rewards(second).items():
        added[name] = added.get(name, 0.0) + value
    return added


def seed_of(*numbers: int) -> int:
    """A seed of 64 bits that follows from these numbers and from nothing else."""
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=8).digest(), "little")
