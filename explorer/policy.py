"""The policy as one attempt sees it: it answers prompts, and records what it sampled.

A workflow never assembles what is trained. It asks the policy, and each call's tokens are recorded as they
were sampled. A call whose prompt begins with all tokens of an earlier call, response included, is joined with
it: an attempt of several turns becomes one sequence, in which only sampled tokens are trained. A prompt that
rewrites what came before begins another sequence.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any, NoReturn, Unpack

from trinity_db.config import DEFAULT_PROMPTS, PromptConfig
from trinity_db.explorer import parking, sampling
from trinity_db.explorer.calls import Calls
from trinity_db.explorer.conversations import Answer, Conversation
from trinity_db.explorer.engines.engine import Completion, Engine, EngineFailed, Request
from trinity_db.explorer.long_texts import CHARACTERS, characters_in, check_fits, work_on
from trinity_db.explorer.parking import AttemptParked, Parked
from trinity_db.explorer.recorded import Sampled, check
from trinity_db.explorer.sampling import Sampling, seed_of
from trinity_db.explorer.serving import Address, Listener
from trinity_db.explorer.tools import Tool, answer, schemas_of, tools_of
from trinity_db.prompts import ChatRenderer, PromptTooLong
from trinity_db.store.calls import Call
from trinity_db.store.groups import Reward, Step, named_rewards
from trinity_db.store.parks import Point, Resumed


class Policy:
    """What an attempt may ask.

    Args:
        prompt_ids: the tokens of a text that a conversation begins with. It may be called in any thread.
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
        prompts: PromptConfig = DEFAULT_PROMPTS,
        temperature: float,
        max_new_tokens: int,
        seed: int,
        group_seed: int = 0,
        listener: Listener | None = None,
    ) -> None:
        self.seed = seed
        """For what an environment leaves to chance."""
        self.group_seed = group_seed
        """The same for all attempts that are compared with one another: for what makes the task itself, as
        the secret word of a game."""
        self.failure: EngineFailed | None = None
        """Why the engine cannot go on; the explorer ends by it, whatever the workflow makes of it."""
        self.parked: Parked | None = None
        """What the attempt goes on from, if it was parked; None at its first call of the workflow."""
        self.is_parked = False
        """Whether this call of the workflow has parked the attempt."""
        self.calls = Calls(temperature, engine.tokenizer)
        """What the attempt has sampled. A workflow needs it for nothing."""
        self._listener = listener
        self._address: Address | None = None
        self._opening = asyncio.Lock()
        """Held while the address is asked for: two at a time would be two programs, and end each other."""
        self._engine = engine
        self._prompts = prompts
        self._prompt_ids = prompt_ids
        self._reading = asyncio.Lock()
        """Held while a prompt is encoded: calls begin in the order in which they came."""
        self._temperature = temperature
        self._max_new_tokens = max_new_tokens
        self._under_way = 0
        """Calls that have not returned yet."""
        self._parking = asyncio.Lock()
        """Held while the attempt is parked: it parks once, also where two of its tasks do it at a time."""
        self._said_before: Mapping[str, float] = {}
        """What programs of the attempt said to have earned before it was parked."""
        self._is_left = False
        """Whether the attempt goes on although it was cancelled."""

    @property
    def tokenizer(self) -> Any:
        """The run's tokenizer, of the transformers library."""
        return self._engine.tokenizer

    @property
    def renderer(self) -> ChatRenderer:
        """What turns tasks and conversations into the text that the model reads."""
        return ChatRenderer(self.tokenizer, self._prompts)

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
        return (await self._call(self._checked(token_ids), prompt, how)).completion

    async def extend(self, token_ids: Sequence[int], **how: Unpack[Sampling]) -> Answer:
        """Continue tokens, as `sample` does: the text of the response, with what was sampled."""
        return await self.calls.answer_of(await self._call(self._checked(token_ids), None, how), ())

    def _checked(self, token_ids: Sequence[int]) -> list[int]:
        """Tokens of a caller.

        Raises:
            PromptTooLong: they are more than the context has.
            TypeError: they are no whole numbers.
        """
        if len(token_ids) > self.context:
            raise PromptTooLong(
                f"A prompt of {len(token_ids)} tokens does not fit a context of {self.context}."
            )
        return [index(token) for token in token_ids]

    def _check_fits(self, text: str) -> None:
        check_fits(text, self.tokenizer, self.context)

    async def _call(self, prompt_ids: list[int], prompt: str | None, how: Sampling) -> Sampled:
        sampling.check(how)
        if self._is_left:
            await asyncio.Event().wait()  # an error might be caught, and the call made again and again
        if self.is_parked:
            raise AttemptParked
        if self.failure is not None:  # a workflow that tries again and again would never end
            raise asyncio.CancelledError(str(self.failure))
        number = self.calls.begun
        self.calls.begun += 1  # each call has a seed of its own, so that two calls with one prompt differ
        limit = how.get("max_new_tokens") or self._max_new_tokens
        seed = seed_of(self.seed, self.calls.begun)
        temperature = (self._temperature and how.get("temperature")) or self._temperature
        request = Request(prompt_ids, limit, temperature, seed, sampling.stops(how))
        self._under_way += 1
        try:
            completion = await self._engine.generate(request)
        except EngineFailed as error:
            self.failure = error
            raise
        finally:
            self._under_way -= 1
        check(completion, len(prompt_ids))
        sampled = Sampled(number, prompt, prompt_ids, completion)
        await self.calls.add(sampled, temperature)
        return sampled

    async def address(self) -> Address:
        """Where programs ask this policy over HTTP, and the key by which they do. It is the same each time.

        Their calls are recorded like those of `chat`, and each is stored before it is answered.

        Raises:
            RuntimeError: no explorer answers for this policy.
        """
        listener = self._explorer()
        async with self._opening:
            if self._address is None:
                self._address = await listener.open(self)
        return self._address

    def _explorer(self) -> Listener:
        if self._listener is None:
            raise RuntimeError(
                "This policy has no explorer, which would listen for programs and park attempts."
            )
        return self._listener

    async def ticket(self) -> int:
        """The number by which the attempt's next park is answered, also before it parks.

        It stays the same until the attempt parks.

        Raises:
            RuntimeError: no explorer serves this policy.
        """
        return await self._explorer().ticket()

    async def park(self, state: Any, *, seconds: float | None = None) -> NoReturn:
        """End this call of the workflow, and have it called again when there is an answer.

        Until then the attempt has no place in an explorer. What it has sampled is kept. Any explorer of the
        run then calls the workflow from its start, with the state and the answer in `parked`. If several
        tasks of the workflow park at a time, the attempt parks by the first of them; the states of the others
        are not kept.

        Args:
            state: what the workflow needs to go on, as JSON.
            seconds: after which it is called without an answer; None: it waits for one.

        Raises:
            TypeError: the state is no JSON.
            ValueError: the store does not take a part of the state, or `seconds` is out of range.
            RuntimeError: a call of the policy is under way, or no explorer serves this policy.
        """
        listener = self._explorer()
        parking.check(state, seconds)
        async with self._parking:
            if self._under_way:
                raise RuntimeError("A call of the policy is under way: await it before the attempt parks.")
            await self.calls.settled()  # a park too, if the task that parked was cancelled
            if not self.is_parked:
                history = self.calls.history
                point = Point(state, self.calls.begun, history.marks, history.version_min, seconds)
                # If the attempt is cancelled meanwhile, the store may have it parked: so the policy knows it.
                await self.calls.unbroken(self._park(listener, point, self.calls.unstored()))
        raise AttemptParked

    async def _park(self, listener: Listener, point: Point, said: Sequence[Call]) -> None:
        await listener.park(point, said)
        self.is_parked = True

    def go_on(self, resumed: Resumed) -> None:
        """Take up what was sampled before the attempt was parked, in the same sequences and steps."""
        said = {call.number: call for call in resumed.said}

        def again(numbers: Iterable[int]) -> None:
            for call in map(said.pop, numbers):
                self.calls.restore(call.number, call.prompt, call.payload, call.finish_reason)

        for numbers, reward, state in resumed.steps:
            again(numbers)
            self.step(reward=reward, state=state)
        again(sorted(said))
        self.calls.begun = resumed.calls
        self._said_before = resumed.agent.rewards
        self.parked = Parked(resumed.state, resumed.answer, resumed.is_answered)

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
        said = self._said_before if self._address is None else await self._address.conclude()
        return {**said, **named_rewards(returned)} if said else returned

    def close(self) -> None:
        """Answer programs no more. The explorer calls it when the attempt has ended."""
        if self._address is not None:
            self._address.close()

    async def complete(self, prompt: str, **how: Unpack[Sampling]) -> Answer:
        """Continue a text, as it is, without a chat template: the text of the response.

        Raises:
            PromptTooLong: its tokens fill the context.
            UntokenizableText: the tokenizer does not know one of its characters.
        """
        self.renderer.warn_if_plain(prompt)

        def encoded() -> list[int]:
            self._check_fits(prompt)
            return [*self._prompt_ids(prompt)]

        async with self._reading:
            ids = await work_on(len(prompt), encoded)
        return await self.calls.answer_of(await self._call(ids, prompt, how), ())

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
        conversations = self.calls.conversations
        text, ids, begun, end = await self._taken_up(messages, schemas)
        sampled = await self._call(ids, text, how)
        answer_ids = sampled.completion.token_ids
        said = await work_on(CHARACTERS * len(answer_ids), lambda: conversations.whole_text(answer_ids))
        async with self._reading:
            conversations.say(sampled, text, said, begun, end)
        return await self.calls.answer_of(sampled, schemas)

    async def _taken_up(
        self, messages: Sequence[Mapping[str, Any]], schemas: Sequence[Mapping[str, Any]]
    ) -> tuple[str, list[int], Conversation, tuple[int, int]]:
        """As `Conversations.taken_up`. No answer is added to the conversations meanwhile."""
        if len(messages) > self.context:
            raise PromptTooLong(
                f"A conversation of {len(messages)} messages does not fit a context of {self.context} tokens."
            )
        conversations, prompt_ids = self.calls.conversations, self._prompt_ids
        async with self._reading:
            return await work_on(
                characters_in(messages, schemas),
                lambda: conversations.taken_up(
                    messages, schemas, self.renderer, prompt_ids, self._check_fits
                ),
            )

    async def count(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Callable[..., Any] | Tool | Mapping[str, Any]] = (),
    ) -> int:
        """How many tokens `chat` would continue for this conversation. Nothing is sampled.

        Raises:
            what `chat` raises; PromptTooLong only for a conversation that is far longer than the context.
        """
        return len((await self._taken_up(messages, schemas_of(tools)))[1])

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
        self.calls.history.step(reward, state)
        self.calls.conversations.end()

    def leave(self) -> None:
        """Let no further call of the attempt return: it is over, and its workflow goes on all the same."""
        self._is_left = True

    def steps(self, reward: Reward) -> list[Step]:
        """What was sampled, with what the attempt as a whole earned.

        Where the workflow made steps, the last one earns it besides its own reward; else each sequence does,
        since it is the attempt that is judged.
        """
        return self.calls.history.steps(reward)
