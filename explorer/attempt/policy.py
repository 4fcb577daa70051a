"""The policy as seen by one attempt: answers prompts and records every sampled token.

Workflows do not assemble training data. Each call's tokens are recorded as sampled. If a prompt begins with
all tokens of an earlier call, including its response, the two calls are joined: a multi-turn attempt becomes
one sequence, in which only sampled tokens are trained. A prompt that rewrites the earlier text starts a new
sequence.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any, NoReturn, Unpack

from trinity_db.config.shared import DEFAULT_PROMPTS, PromptConfig
from trinity_db.explorer.attempt import parking, sampling
from trinity_db.explorer.attempt.calls import Calls
from trinity_db.explorer.attempt.conversations import Answer, Conversation
from trinity_db.explorer.attempt.long_texts import CHARACTERS, characters_in, check_fits, work_on
from trinity_db.explorer.attempt.parking import AttemptParked, Parked
from trinity_db.explorer.attempt.recorded import Sampled
from trinity_db.explorer.attempt.refusals import Refusals
from trinity_db.explorer.attempt.sampling import Sampling, seed_of
from trinity_db.explorer.attempt.serving import Address, Listener
from trinity_db.explorer.attempt.tools import Tool, answer, schemas_of, tools_of
from trinity_db.explorer.config import DEFAULT_REQUESTS, RequestsConfig
from trinity_db.explorer.engines.engine import Completion, Engine, EngineFailed, Request, generate
from trinity_db.models.chat.prompts import NO_VARIABLES, ChatRenderer, PromptTooLong
from trinity_db.store.calls import Call
from trinity_db.store.groups import Reward, Step, named_rewards
from trinity_db.store.parks import Point, ResumedAttempt

OUTPUT_LINES = 20  # last lines of a program's output that are stored with its rollout


class Policy:
    """The interface that a workflow uses to query the model.

    Args:
        prompt_ids: tokenizes the first text of a conversation. Must be callable from any thread.
        temperature: default for calls that do not set one; 0 for all calls of a group's greedy attempt.
        max_new_tokens: default limit of a call.
        seed: differs between attempts; deterministic, so another process gets the same seed for an attempt.
        group_seed: shared by all attempts of a rollout group.
        listener: serves this policy to programs over HTTP; None: not available.
        rules: which calls of programs are trained.
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
        rules: RequestsConfig = DEFAULT_REQUESTS,
    ) -> None:
        self.seed = seed
        """Seed for an environment's random choices."""
        self.group_seed = group_seed
        """Seed shared by the attempts that are compared with each other. Use it to generate the task itself,
        such as the secret word of a game."""
        self.failure: EngineFailed | None = None
        """The fatal error of the engine. It ends the explorer, whatever the workflow does with it."""
        self.parked: Parked | None = None
        """State and answer that a parked attempt resumes with; None in the first call of the workflow."""
        self.output: deque[str] = deque(maxlen=OUTPUT_LINES)
        """Last lines that the attempt's program wrote; they are stored with the rollout. Internal."""
        self.refusals = Refusals()
        """Requests of the attempt's programs that were refused. Internal."""
        self.is_parked = False
        """Whether the attempt was parked in this call of the workflow."""
        self.rules = rules
        """Which calls of programs are repetitions, and which are trained. Internal."""
        self.calls = Calls(temperature, engine.tokenizer, rules)
        """Everything that the attempt has sampled. Internal; workflows do not need it."""
        self._listener = listener
        self._address: Address | None = None
        self._opening = asyncio.Lock()
        """Guards opening the address: two concurrent calls would register two programs, and end each
        other."""
        self._engine = engine
        self._prompts = prompts
        self._prompt_ids = prompt_ids
        self._reading = asyncio.Lock()
        """Held while a prompt is encoded, so that calls start in their order of arrival."""
        self._temperature = temperature
        self._max_new_tokens = max_new_tokens
        self._under_way = 0
        """Number of unfinished calls."""
        self._parking = asyncio.Lock()
        """Held while parking, so that the attempt parks once even if several of its tasks park
        concurrently."""
        self._said_before: Mapping[str, float] = {}
        """Rewards that programs reported before the attempt was parked."""
        self._is_left = False
        """Whether the workflow keeps running although its attempt was cancelled."""

    @property
    def tokenizer(self) -> Any:
        """The run's tokenizer, of the transformers library."""
        return self._engine.tokenizer

    @property
    def renderer(self) -> ChatRenderer:
        """Renders tasks and conversations into prompt text."""
        return ChatRenderer(self.tokenizer, self._prompts)

    @property
    def context(self) -> int:
        """Maximum sequence length in tokens, prompt plus response."""
        return self._engine.context

    async def sample(
        self, token_ids: Sequence[int], *, prompt: str | None = None, **how: Unpack[Sampling]
    ) -> Completion:
        """Sample a continuation of the tokens.

        Args:
            prompt: their text, if known; otherwise they are decoded.
            how: `max_new_tokens`, `temperature`, `stop`.

        Raises:
            PromptTooLong: if the prompt is empty, or fills the context.
            TypeError: if a token is not an integer, or an option is unknown.
            ValueError: if an option is invalid.
            RequestRefused: if a token is outside of the model's vocabulary.
            RequestFailed: if the engine failed at this call, or returned tokens that cannot be trained on.
        """
        return (await self._call(self._checked(token_ids), prompt, how)).completion

    async def extend(self, token_ids: Sequence[int], **how: Unpack[Sampling]) -> Answer:
        """Sample a continuation of the tokens and return its text, with the sampled tokens attached."""
        return await self.calls.answer_of(await self._call(self._checked(token_ids), None, how), ())

    def _checked(self, token_ids: Sequence[int]) -> list[int]:
        """Return the caller's tokens as integers.

        Raises:
            PromptTooLong: if they exceed the context.
            TypeError: if a token is not an integer.
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
            await asyncio.Event().wait()  # an error could be caught and the call retried forever
        if self.is_parked:
            raise AttemptParked
        if self.failure is not None:  # a workflow that retries on errors would never end
            raise asyncio.CancelledError(str(self.failure))
        number = self.calls.begun
        self.calls.begun += 1  # part of the seed, so that two calls with the same prompt differ
        limit = how.get("max_new_tokens") or self._max_new_tokens
        seed = seed_of(self.seed, self.calls.begun)
        temperature = (self._temperature and how.get("temperature")) or self._temperature
        request = Request(prompt_ids, limit, temperature, seed, sampling.stops(how))
        self._under_way += 1
        try:
            completion = await generate(self._engine, request)
        except EngineFailed as error:
            self.failure = error
            raise
        finally:
            self._under_way -= 1
        sampled = Sampled(number, prompt, prompt_ids, completion)
        await self.calls.add(sampled, temperature)
        return sampled

    async def address(self) -> Address:
        """Return the HTTP address of this policy for programs, with its key; the same for every call.

        Calls are recorded like those of `chat`, and each is stored before its response is sent.

        Raises:
            RuntimeError: if no explorer serves this policy.
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
        """Return the ticket number that an answer to the attempt's next park must name.

        It is available before the attempt parks, and stays the same until then.

        Raises:
            RuntimeError: if no explorer serves this policy.
        """
        return await self._explorer().ticket()

    async def park(self, state: Any, *, seconds: float | None = None) -> NoReturn:
        """End this call of the workflow; the workflow is called again once an answer arrives.

        A parked attempt takes no slot of an explorer. Its samples are kept. Any explorer of the run then
        calls the workflow from the start, with the state and the answer in `parked`. If several tasks of the
        workflow park concurrently, the first one wins and the states of the others are discarded.

        Args:
            state: state that the workflow needs to continue, as JSON.
            seconds: timeout after which the workflow is called without an answer; None: no timeout.

        Raises:
            TypeError: if the state is not JSON.
            ValueError: if the store cannot hold a part of the state, or `seconds` is out of range.
            RuntimeError: if a call of the policy is unfinished, or no explorer serves this policy.
        """
        listener = self._explorer()
        parking.check(state, seconds)
        async with self._parking:
            if self._under_way:
                raise RuntimeError("A call of the policy is under way: await it before the attempt parks.")
            await self.calls.settled()  # also waits for a park whose task was cancelled
            if not self.is_parked:
                history = self.calls.history
                point = Point(state, self.calls.begun, history.marks, history.version_min, seconds)
                # Shielded: if the attempt is cancelled during the write, is_parked still matches the store.
                await self.calls.unbroken(self._park(listener, point, self.calls.unstored()))
        raise AttemptParked

    async def _park(self, listener: Listener, point: Point, calls: Sequence[Call]) -> None:
        await listener.park(point, calls)
        self.is_parked = True

    def go_on(self, resumed: ResumedAttempt) -> None:
        """Restore the samples from before the attempt was parked, in the same sequences and steps."""
        calls = {call.number: call for call in resumed.recorded}

        def again(numbers: Iterable[int]) -> None:
            for call in map(calls.pop, numbers):
                self.calls.restore(call)

        for numbers, reward, state in resumed.steps:
            again(numbers)
            self.step(reward=reward, state=state)
        again(sorted(calls))
        self.calls.begun = resumed.calls
        self._said_before = resumed.agent.rewards
        self.parked = Parked(resumed.state, resumed.answer, resumed.is_answered)

    async def resumed_address(self) -> Address | None:
        """Return the address that a program of this attempt got from an earlier explorer, or None.

        The program's earlier calls are then restored into this policy.
        """
        if self._listener is not None and self._address is None:
            self._address = await self._listener.resume(self)
        return self._address

    async def earned(self, returned: Reward) -> Reward:
        """Merge the rewards reported by the attempt's program with those returned by the workflow.

        If both use a name, the workflow's value wins.

        Raises:
            AttemptFailed: if the program reported that the attempt has failed.
        """
        rewards = self._said_before if self._address is None else await self._address.conclude()
        return {**rewards, **named_rewards(returned)} if rewards else returned

    def close(self) -> None:
        """Stop serving programs. The explorer calls this when the attempt has ended."""
        if self._address is not None:
            self._address.close()

    async def complete(self, prompt: str, **how: Unpack[Sampling]) -> Answer:
        """Continue a text verbatim, without a chat template, and return the response.

        Raises:
            PromptTooLong: if its tokens fill the context.
            UntokenizableText: if the tokenizer cannot encode one of its characters.
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
        begun: bool | None = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
        **how: Unpack[Sampling],
    ) -> Answer:
        """Answer a conversation with the tokenizer's chat template, and return the answer's text.

        If the last message is the assistant's and has no tool calls, it is the begun answer: the prompt ends
        with its text, and the returned text continues it.

        A conversation that continues an earlier answer keeps that answer's sampled tokens, if the template
        reproduces its text. So does an answer with tool calls, if its `message` is passed back unchanged.

        Args:
            tools: tools offered to the model: functions with a docstring, or JSON schemas.
            begun: whether the last message is the begun answer. None: as above. False: the answer is a new
                turn in any case.
            variables: variables of the chat template, such as enable_thinking.
            how: as in `sample`.

        Raises:
            ConfigError: if a tool is not a function that a model can call.
            PromptTooLong: if the conversation fills the context.
            UntokenizableText: if the template rejects the conversation or cannot continue the begun answer,
                the tokenizer cannot encode a character, or a message contains an image.
            ValueError: if the conversation is empty.
        """
        schemas = schemas_of(tools)
        conversations = self.calls.conversations
        text, ids, earlier, end = await self._taken_up(messages, schemas, begun, variables)
        sampled = await self._call(ids, text, how)
        answer_ids = sampled.completion.token_ids
        answer_text = await work_on(
            CHARACTERS * len(answer_ids), lambda: conversations.whole_text(answer_ids)
        )
        async with self._reading:
            conversations.say(sampled, text, answer_text, earlier, end)
            await work_on(characters_in(messages), lambda: conversations.remember(messages, sampled))
        return await self.calls.answer_of(sampled, schemas)

    async def _taken_up(
        self,
        messages: Sequence[Mapping[str, Any]],
        schemas: Sequence[Mapping[str, Any]],
        begun: bool | None,
        variables: Mapping[str, Any],
    ) -> tuple[str, list[int], Conversation, tuple[int, int]]:
        """Call `Conversations.taken_up` while no answer is being added to the conversations."""
        if len(messages) > self.context:
            raise PromptTooLong(
                f"A conversation of {len(messages)} messages does not fit a context of {self.context} tokens."
            )
        conversations, prompt_ids = self.calls.conversations, self._prompt_ids
        if begun is None:
            last = messages[-1] if messages else {}
            begun = last.get("role") == "assistant" and not last.get("tool_calls")

        def render(messages: Sequence[Mapping[str, Any]]) -> str:
            return self.renderer.ask(messages, schemas, begun=begun, variables=variables)

        async with self._reading:
            return await work_on(
                characters_in(messages, schemas),
                lambda: conversations.taken_up(render, messages, prompt_ids, self._check_fits),
            )

    async def count(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Callable[..., Any] | Tool | Mapping[str, Any]] = (),
        *,
        begun: bool | None = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> int:
        """Return the number of prompt tokens that `chat` would use for this conversation. Samples nothing.

        Raises:
            The errors of `chat`; PromptTooLong only if the conversation is far longer than the context.
        """
        return len((await self._taken_up(messages, schemas_of(tools), begun, variables))[1])

    async def act(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Callable[..., Any] | Tool],
        *,
        turns: int = 8,
        **how: Unpack[Sampling],
    ) -> list[dict[str, Any]]:
        """Answer a conversation and run the requested tool calls, until an answer requests none.

        Calls run sequentially, in their order. Their errors are returned to the model.

        Args:
            turns: maximum number of answers; the tool calls of the last one are not run.
            how: sampling options of each answer (see `sample`).

        Returns:
            The messages to append: answers and tool results. The last one is an answer.

        Raises:
            ValueError: if `turns` is below 1.
            The errors of `chat`.
        """
        if turns < 1:
            raise ValueError(f"turns is {turns}; it must be at least 1.")
        known = tools_of(tools)
        added: list[dict[str, Any]] = []
        for turn in range(turns):
            reply = await self.chat([*messages, *added], tools=[*known.values()], **how)
            added.append(reply.message)
            if not reply.tool_calls or turn + 1 == turns:
                break
            added += [await answer(call, known) for call in reply.tool_calls]
        return added

    def step(self, *, reward: Reward = None, state: str | None = None) -> None:
        """End a step: the samples since the last one become a separate row with its own reward.

        For algorithms that compare steps, such as multi_step_grpo and gigpo. Later calls start a new
        sequence.

        Args:
            reward: reward of the step; named rewards are summed.
            state: state of the environment before the action, for algorithms that compare actions taken in
                equal states.

        Raises:
            TypeError: if the state is not a string, or the reward not a number.
            ValueError: if nothing was sampled since the last step, or the reward is not finite.
        """
        self.calls.history.step(reward, state)
        self.calls.conversations.end()

    def leave(self) -> None:
        """Block all further calls: the attempt is over, but its workflow ignored the cancellation."""
        self._is_left = True

    def steps(self, reward: Reward) -> list[Step]:
        """Return the sampled steps, including the reward of the whole attempt.

        If the workflow made steps, the attempt's reward is added to the last one. Otherwise every sequence
        gets it, since the attempt as a whole is scored; as the attempt's reward it counts once.
        """
        return self.calls.history.steps(reward)
