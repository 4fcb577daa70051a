"""What the policy records of an attempt: tokens as they were sampled, joined where a call follows another."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.echo import Echo
from trinity_db.config.shared import PromptConfig
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.engines.engine import Completion, Request, RequestFailed
from trinity_db.models.chat.prompts import PromptTooLong, UntokenizableText, prompt_ids
from trinity_db.store.calls import Call
from trinity_db.store.groups import Step


class Twelve(Echo):
    """An engine that says 12 as one token, whatever it is asked."""

    async def generate(self, request: Request) -> Completion:
        await super().generate(request)
        return Completion([12], [-0.5], [self.version], "stop")


def policy(engine: Echo | None = None, temperature: float = 1.0, seed: int = 0, **options: Any) -> Policy:
    engine = engine or Echo(context=50)
    return Policy(
        engine,
        lambda prompt: prompt_ids(prompt, engine.tokenizer),
        prompts=PromptConfig(prompt_template="{prompt}"),
        temperature=temperature,
        max_new_tokens=9,
        seed=seed,
        **options,
    )


def test_an_address_that_is_asked_for_twice_at_a_time_is_one() -> None:
    class Opens:
        def __init__(self) -> None:
            self.opened = 0
            self.may_open = asyncio.Event()

        async def open(self, policy: Policy) -> object:
            self.opened += 1
            await self.may_open.wait()
            return object()

    async def let(opens: Opens) -> None:
        opens.may_open.set()

    async def attempt() -> None:
        opens = Opens()
        asked = policy(listener=opens)
        # Tasks begin in their order: both have asked when the third one runs.
        first, second, _ = await asyncio.gather(asked.address(), asked.address(), let(opens))
        assert first is second
        assert opens.opened == 1

    asyncio.run(attempt())


def made(attempt: Callable[[Policy], Awaitable[object]], reward: float | None = None) -> list[Step]:
    """The steps of an attempt."""
    asked = policy()
    asyncio.run(_run(attempt, asked))
    return asked.steps(reward)


async def _run(attempt: Callable[[Policy], Awaitable[object]], asked: Policy) -> None:
    await attempt(asked)


def tokens(step: Step) -> list[tuple[int, bool]]:
    return list(zip(step.payload.token_ids.tolist(), step.payload.action_mask.tolist(), strict=True))


def test_a_call_is_recorded_as_it_was_sampled() -> None:
    async def attempt(asked: Policy) -> None:
        assert await asked.complete("123") == "321"

    [step] = made(attempt)
    assert (step.prompt, step.response, step.reward) == ("123", "321", None)
    assert tokens(step) == [(1, False), (2, False), (3, False), (3, True), (2, True), (1, True)]
    assert step.payload.logprobs is not None
    assert step.payload.logprobs.tolist() == pytest.approx([-0.7] * 3)


def test_a_call_that_goes_on_from_another_is_one_sequence_with_it() -> None:
    async def attempt(asked: Policy) -> None:
        first = await asked.sample([1, 2])
        await asked.sample([1, 2, *first.token_ids, 7])

    [step] = made(attempt)
    sampled = [(2, True), (1, True)]
    again = [(7, True), (1, True), (2, True), (2, True), (1, True)]
    assert tokens(step) == [(1, False), (2, False), *sampled, (7, False), *again]
    assert (step.prompt, step.response) == ("12", "21" + "7" + "71221")
    assert step.payload.versions is not None
    assert len(step.payload.versions) == 7


@pytest.mark.parametrize("second", [[1, 2], [1, 2, 2, 9], [3], [1, 2, 2]])
def test_a_call_with_another_history_is_a_sequence_of_its_own(second: list[int]) -> None:
    """Also one that was asked twice, and one that shares only a part of what was sampled."""

    async def attempt(asked: Policy) -> None:
        await asked.sample([1, 2])
        await asked.sample(second)

    first, other = made(attempt)
    assert tokens(first) == [(1, False), (2, False), (2, True), (1, True)]
    assert tokens(other) == [
        *((token, False) for token in second),
        *((token, True) for token in second[::-1]),
    ]


def test_what_two_branches_share_is_trained_once() -> None:
    async def attempt(asked: Policy) -> None:
        trunk = [1, 2, *(await asked.sample([1, 2])).token_ids]
        await asked.sample([*trunk, 5])
        await asked.sample([*trunk, 6])

    first, second = made(attempt)
    assert sum(first.payload.action_mask) == 2 + 5
    assert tokens(second)[:5] == [(1, False), (2, False), (2, False), (1, False), (6, False)]
    assert sum(second.payload.action_mask) == 5


def test_of_two_answers_to_one_prompt_the_one_goes_on_that_the_next_prompt_holds_whole() -> None:
    says = iter([[2], [2, 3], [7]])

    class Retried(Echo):
        async def generate(self, request: Request) -> Completion:
            said = next(says)
            return Completion(said, [-0.7] * len(said), [0] * len(said), "stop")

    asked = policy(Retried())

    async def attempt() -> None:
        for prompt in ([1], [1], [1, 2, 3, 4]):
            await asked.sample(prompt)

    asyncio.run(attempt())
    first, second = asked.steps(None)
    assert tokens(first) == [(1, False), (2, True)]
    assert tokens(second) == [(1, False), (2, True), (3, True), (4, False), (7, True)]


def test_an_answer_stays_in_the_conversation_as_it_was_sampled() -> None:
    """Written again, the answer 12 would be two tokens."""
    asked = policy(Twelve(context=50))

    async def attempt() -> None:
        messages = [{"role": "user", "content": "3"}]
        for question in ("4", "5"):
            answer = await asked.chat(messages)
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
        await asked.chat(messages)

    asyncio.run(attempt())
    [step] = asked.steps(None)
    assert tokens(step) == [(3, False), (12, True), (4, False), (12, True), (5, False), (12, True)]
    assert step.prompt == "3"


def test_a_conversation_that_was_rewritten_is_written_anew() -> None:
    asked = policy(Twelve(context=50))

    async def attempt() -> None:
        answer = await asked.chat([{"role": "user", "content": "3"}])
        await asked.chat([{"role": "user", "content": "8"}, {"role": "assistant", "content": answer}])

    asyncio.run(attempt())
    first, second = asked.steps(None)
    assert [token for token, _ in tokens(second)] == [8, 1, 2, 12]
    assert sum(first.payload.action_mask) == sum(second.payload.action_mask) == 1


def test_a_conversation_may_branch_at_every_answer_and_takes_room_only_for_its_branches() -> None:
    asked = policy(Twelve(context=500))

    async def attempt() -> None:
        trunk: list[dict[str, str]] = []
        for question in "3456":
            trunk.append({"role": "user", "content": question})
            trunk.append({"role": "assistant", "content": await asked.chat(trunk)})
        for turns in (4, 2, 6):
            await asyncio.gather(
                *(asked.chat([*trunk[:turns], {"role": "user", "content": other}]) for other in "78")
            )

    asyncio.run(attempt())
    trunk, *branches = ([token for token, _ in tokens(step)] for step in asked.steps(None))
    assert trunk == [3, 12, 4, 12, 5, 12, 6, 12]
    assert branches == [[*trunk[:turns], other, 12] for turns in (4, 2, 6) for other in (7, 8)]
    assert len(asked.calls.conversations._said) == 1 + len(branches)


def test_a_step_is_a_row_of_its_own_with_a_reward_and_a_state() -> None:
    async def attempt(asked: Policy) -> None:
        first = await asked.sample([1])
        asked.step(reward=0.5, state="hall")
        await asked.sample([1, *first.token_ids])
        asked.step(state="cell")

    first, second = made(attempt, reward=2.0)
    assert [(step.reward, step.state) for step in (first, second)] == [(0.5, "hall"), (2.0, "cell")]
    assert tokens(second) == [(1, False), (1, False), (1, True), (1, True)]
    with pytest.raises(ValueError, match="has sampled nothing since its last step"):
        policy().step()


@pytest.mark.parametrize(("reward", "earned"), [(None, [None, None]), (1.0, [1.0, 1.0])])
def test_each_sequence_of_an_attempt_has_what_the_attempt_earned(
    reward: float | None, earned: list[float | None]
) -> None:
    async def attempt(asked: Policy) -> None:
        await asyncio.gather(asked.sample([1]), asked.sample([2]))

    assert [step.reward for step in made(attempt, reward)] == earned


def test_sequences_after_the_last_step_are_a_step_of_which_the_last_has_what_the_attempt_earned() -> None:
    async def attempt(asked: Policy) -> None:
        await asked.sample([1])
        asked.step(reward=0.5)
        await asyncio.gather(asked.sample([1]), asked.sample([2]))

    steps = made(attempt, 2.0)
    assert [step.reward for step in steps] == [0.5, None, 2.0]
    assert not any(step.shares_reward for step in steps)


def test_calls_differ_in_their_seeds_and_a_repeated_attempt_has_the_same() -> None:
    def seeds(seed: int) -> list[int]:
        engine = Echo()
        asked = policy(engine, seed=seed)

        async def attempt() -> None:
            await asked.sample([1])
            await asked.sample([1])

        asyncio.run(attempt())
        return [request.seed for request in engine.asked]

    assert seeds(3) == seeds(3)
    assert len({*seeds(3), *seeds(4)}) == 4


def test_the_temperature_and_the_limit_go_with_each_call() -> None:
    engine = Echo()
    asked = policy(engine, temperature=0.0)

    async def attempt() -> None:
        await asked.complete("1")
        await asked.complete("1", max_new_tokens=3)

    asyncio.run(attempt())
    assert [(one.temperature, one.max_new_tokens) for one in engine.asked] == [(0.0, 9), (0.0, 3)]


def test_the_temperature_of_a_call_is_kept_with_its_tokens_where_it_is_not_that_of_the_run() -> None:
    engine = Echo(context=50)
    asked = policy(engine, temperature=0.8)

    async def attempt() -> None:
        first = await asked.sample([1, 2], temperature=0.5)
        await asked.sample([1, 2, *first.token_ids])
        await asked.sample([3], temperature=0.8)

    asyncio.run(attempt())
    assert [one.temperature for one in engine.asked] == [0.5, 0.8, 0.8]
    joined, other = asked.steps(None)
    assert joined.payload.temperatures is not None
    assert joined.payload.temperatures.tolist() == pytest.approx([0.5] * 2 + [0.8] * 4)
    assert other.payload.temperatures is None


def test_the_greedy_attempt_keeps_its_temperature() -> None:
    engine = Echo(context=50)
    asked = policy(engine, temperature=0.0)
    asyncio.run(_run(lambda asked: asked.complete("1", temperature=0.7), asked))
    assert engine.asked[0].temperature == 0
    assert asked.steps(None)[0].payload.temperatures is None


def test_stop_strings_go_with_each_call_and_options_that_change_nothing_are_allowed() -> None:
    engine = Echo(context=50)
    asked = policy(engine)

    async def attempt() -> None:
        await asked.complete("1", stop="2", top_p=1.0, top_k=-1, min_p=None)
        await asked.chat([{"role": "user", "content": "1"}], stop=["2", "3"])
        await asked.sample([1])

    asyncio.run(attempt())
    assert [one.stop for one in engine.asked] == [("2",), ("2", "3"), ()]


def test_what_the_policy_refuses_is_not_recorded() -> None:
    asked = policy(Echo(context=3))

    async def attempt() -> None:
        with pytest.raises(PromptTooLong):
            await asked.complete("123")
        with pytest.raises(UntokenizableText):
            await asked.complete("a")
        with pytest.raises(UntokenizableText, match="no system, please"):
            await asked.chat([{"role": "system", "content": "1"}])

    asyncio.run(attempt())
    assert asked.steps(None) == []


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda asked: asked.sample([1], max_new_tokens=0), ValueError, "max_new_tokens is 0"),
        (
            lambda asked: asked.sample([1], max_tokens=5),
            TypeError,
            "no option 'max_tokens'; did you mean 'max_new",
        ),
        (
            lambda asked: asked.sample([1], top_p=0.9),
            ValueError,
            "top_p is 0.9, and must be 1: otherwise tokens",
        ),
        (
            lambda asked: asked.complete("1", repetition_penalty=1.1),
            ValueError,
            "penalty is 1.1, and must be 1",
        ),
        (
            lambda asked: asked.complete("1", temperature=0),
            ValueError,
            "temperature is 0, and must be from 0.01 to 1000",
        ),
        (
            lambda asked: asked.complete("1", temperature=1e-50),  # 0 in float32, which is stored
            ValueError,
            "temperature is 1e-50, and must be from 0.01",
        ),
        (lambda asked: asked.complete("1", temperature=math.nan), ValueError, "temperature is nan"),
        (lambda asked: asked.complete("1", stop=[""]), ValueError, "A stop string is empty"),
        (lambda asked: asked.complete("1", stop=[5]), TypeError, "A stop string is of type int"),
        (lambda asked: asked.sample({"input_ids": [1]}), TypeError, "'str' object cannot be"),
        (lambda asked: asked.sample([[1, 2]]), TypeError, "'list' object cannot be"),
        (lambda asked: asked.sample([1.5]), TypeError, "'float' object cannot be"),
        (lambda asked: asked.chat([]), ValueError, "conversation is empty"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_before_the_engine_is_asked(
    call: Callable[[Policy], Awaitable[object]], error: type[Exception], words: str
) -> None:
    engine = Echo()
    with pytest.raises(error, match=words):
        asyncio.run(_run(call, policy(engine)))
    assert engine.asked == []


@pytest.mark.parametrize(
    ("completion", "words"),
    [
        (Completion([], [], [], "stop"), "returned 0 tokens"),
        (Completion([1, 2], [-1.0], [0, 0], "stop"), "2 tokens, 1 log-probabilities and 2 v"),
        (Completion([1, 2], [-1.0] * 2, [0], "stop"), "2 log-probabilities and 1 versions"),
        (Completion([1], [float("nan")], [0], "stop"), "is not finite"),
        (Completion([1], [float("-inf")], [0], "stop"), "is not finite"),
        (Completion([-1], [-1.0], [0], "stop"), "negative token or version"),
        (Completion([1], [-1.0], [-1], "stop"), "negative token or version"),
        (Completion([1.5], [-1.0], [0], "stop"), "'float' object cannot be"),  # type: ignore[list-item]
        (Completion([1], [-1.0], [0], "abort"), "finish reason 'abort'"),  # type: ignore[arg-type]
    ],
)
def test_what_an_engine_gives_and_could_not_be_trained_on_is_refused(
    completion: Completion, words: str
) -> None:
    class Wrong(Echo):
        async def generate(self, request: Request) -> Completion:
            return completion

    asked = policy(Wrong())
    with pytest.raises(RequestFailed, match=words):
        asyncio.run(_run(lambda asked: asked.sample([1]), asked))
    assert asked.steps(None) == []


def test_a_step_has_texts() -> None:
    async def attempt(asked: Policy) -> None:
        await asked.sample([1])
        asked.step(state=5)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="The state of a step is int, not text"):
        made(attempt)
    with pytest.raises(TypeError, match="The prompt of a step is int, not text"):
        made(lambda asked: asked.sample([1], prompt=1))  # type: ignore[arg-type]


class Routes(Echo):
    """An engine whose experts of a token are its place, and how many calls came before."""

    calls = 0
    is_silent = False

    async def generate(self, request: Request) -> Completion:
        said = await super().generate(request)
        places = np.arange(len(request.prompt_ids) + len(said.token_ids) - 1, dtype=np.uint8)
        routing = np.stack([places, np.full_like(places, self.calls)], axis=1)[:, None]
        self.calls += 1
        return replace(said, routing=None if self.is_silent else routing)


def test_experts_of_joined_calls_are_those_of_the_call_that_went_through_a_token_first() -> None:
    engine = Routes(context=50)
    asked = policy(engine)

    async def attempt() -> None:
        first = await asked.extend([5, 6, 7])
        second = [5, 6, 7, *first.sampled.completion.token_ids, 8]
        engine.is_silent = True
        middle = await asked.extend(second)
        engine.is_silent = False
        await asked.extend([*second, *middle.sampled.completion.token_ids])

    asyncio.run(attempt())
    [step] = asked.steps(None)
    routing = step.payload.routing
    assert routing is not None
    assert routing[:, 0, 0].tolist() == list(range(step.payload.num_tokens - 1))
    length = 3 + 3 - 1  # of the first call: the echo is as long as its prompt
    assert routing[:, 0, 1].tolist() == [0] * length + [2] * (len(routing) - length)
    again = policy(Echo(context=50))
    for number in range(3):
        call = asked.calls.recall(number)
        stored = asked.calls.history.alone(call, 1.0).payload
        again.calls.restore(Call(0, number, b"", "", stored, "stop"))
    [step] = again.steps(None)
    np.testing.assert_array_equal(step.payload.routing, routing)


def test_experts_that_do_not_fit_the_response_are_refused() -> None:
    class Wrong(Echo):
        async def generate(self, request: Request) -> Completion:
            said = await super().generate(request)
            length = len(request.prompt_ids) + len(said.token_ids)
            return replace(said, routing=np.zeros((length, 2, 1), np.uint8))

    with pytest.raises(RequestFailed, match=r"the shape \(6, 2, 1\) does not fit 6 tokens"):
        asyncio.run(policy(Wrong(context=50)).extend([5, 6, 7]))
