"""The plain endpoint of a version, as evaluation clients ask it: greedy answers and log-probabilities."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from tests.support.echo import Echo
from trinity_db.config.shared import DEFAULT_PROMPTS, ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.explorer.config import DEFAULT_REQUESTS
from trinity_db.explorer.engines import transformers_engine
from trinity_db.explorer.engines.engine import (
    Completion,
    EngineFailed,
    Request,
    RequestFailed,
    RequestRefused,
    Scores,
    score,
)
from trinity_db.explorer.engines.transformers_engine import TransformersEngine
from trinity_db.explorer.http.listener import EndpointAddress
from trinity_db.explorer.http.plain import PlainEndpoint
from trinity_db.models import build_scratch, load_model

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    alphabet = "0123456789: \nabcdefghijklmnopqrstuvwxyz"
    build_scratch(ScratchConfig(alphabet=alphabet, hidden_size=32, context=64), 3, folder)
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[TransformersEngine]:
    with closing(TransformersEngine("cpu")) as engine:
        asyncio.run(engine.load(folder, 4))
        yield engine


def asked(engine: Any, question: Any, key: str = "secret") -> Any:
    """The answer of an endpoint to a coroutine of OpenAI's client."""

    async def ask() -> Any:
        place = EndpointAddress(key="secret")
        endpoint = PlainEndpoint(engine, "mine", place, DEFAULT_REQUESTS, DEFAULT_PROMPTS, 5)
        await endpoint.start()
        try:
            async with openai.AsyncOpenAI(
                base_url=f"{endpoint.url}/v1", api_key=key, max_retries=0
            ) as client:
                return await question(client)
        finally:
            await endpoint.stop()

    return asyncio.run(ask())


def expected(folder: Path, tokens: list[int]) -> Any:
    """[n, vocabulary] Log-probabilities of the token after each, by transformers alone."""
    with torch.no_grad():
        return load_model(folder, "cpu")(torch.tensor([tokens])).logits[0].log_softmax(-1)


def test_log_probabilities_of_a_prompt_are_those_of_a_plain_forward_pass(
    engine: TransformersEngine, folder: Path
) -> None:
    decode = engine.tokenizer.decode
    prompts = [TOKENS, TOKENS[:3]]
    answer = asked(
        engine,
        lambda client: client.completions.create(
            model="m", prompt=prompts, echo=True, logprobs=1, max_tokens=1, temperature=0
        ),
    )
    for prompt, choice in zip(prompts, answer.choices, strict=True):
        wanted = expected(folder, prompt)
        best = wanted[-1].argmax().item()
        tokens = [*prompt, best]
        found = choice.logprobs
        assert found.tokens == [decode([token]) for token in tokens]
        assert choice.text == decode(tokens, skip_special_tokens=True)
        assert (found.token_logprobs[0], found.top_logprobs[0]) == (None, None)
        assert found.token_logprobs[1:] == pytest.approx(
            [wanted[place, token].item() for place, token in enumerate(tokens[1:])], abs=1e-4
        )
        for place, (logprob, top) in enumerate(
            zip(found.token_logprobs[1:], found.top_logprobs[1:], strict=True)
        ):
            likeliest = wanted[place].argmax().item()
            assert max(top, key=top.get) == decode([likeliest])
            assert (logprob == max(top.values())) == (likeliest == tokens[place + 1])


@pytest.mark.parametrize("length", [1, 4, 8])
def test_prompts_are_scored_as_at_once_with_the_logits_of_few_tokens_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(transformers_engine, "SCORED", 3)
    prompt, parts = TOKENS[:length], list[int]()

    async def scored() -> Scores:
        with closing(TransformersEngine("cpu")) as engine:
            await engine.load(folder, 4)
            head = engine._model.get_output_embeddings()
            head.register_forward_hook(lambda module, inputs, logits: parts.append(logits.shape[1]))
            scores = await score(engine, prompt)
            await engine.generate(Request(TOKENS, 1))  # the decoder works as before
            return scores

    scores = asyncio.run(scored())
    wanted = expected(folder, prompt)[:-1]
    rows = range(length - 1)
    assert scores.logprobs == pytest.approx(wanted[rows, prompt[1:]].tolist(), abs=1e-5)
    assert [token for token, _ in scores.likeliest] == wanted.argmax(-1).tolist()
    assert [highest for _, highest in scores.likeliest] == pytest.approx(wanted.amax(-1).tolist(), abs=1e-5)
    assert max(parts) <= 3


def test_answers_are_greedy_unless_the_request_has_a_temperature(
    engine: TransformersEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async def question(client: openai.AsyncOpenAI) -> Any:
        messages: Any = [{"role": "user", "content": "12"}]
        ask = client.chat.completions.create
        greedy = [
            await ask(model="m", messages=messages),
            await ask(model="m", messages=messages, temperature=0, logit_bias={}, seed=3),
        ]
        hot = [
            await client.completions.create(model="m", prompt="12", temperature=50, seed=seed, max_tokens=9)
            for seed in (1, 1, 2)
        ]
        [model] = (await client.models.list()).data
        return greedy, [one.choices[0].text for one in hot], model.id

    greedy, hot, name = asked(engine, question)
    assert greedy[0].choices[0].message == greedy[1].choices[0].message
    assert greedy[0].usage.completion_tokens <= 5
    assert (hot[0] == hot[1], hot[0] == hot[2], name) == (True, False, "mine")
    assert "temperature" not in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": 0.5}, "'top_p': Input should be 1"),
        ({"logprobs": 5}, "'logprobs': Input should be less than or equal to 1"),
        ({"logprobs": 1, "temperature": 1}, "'logprobs' needs temperature 0"),
        ({"extra_body": {"guided_json": {}}}, "'guided_json': Extra inputs are not permitted"),
    ],
)
def test_what_a_plain_endpoint_cannot_do_is_refused_by_name(
    engine: TransformersEngine, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        asked(engine, lambda client: client.completions.create(model="m", prompt="12", **options))


def test_a_plain_endpoint_with_a_key_answers_nobody_else(engine: TransformersEngine) -> None:
    with pytest.raises(openai.AuthenticationError, match="The API key is wrong"):
        asked(engine, lambda client: client.models.list(), key="other")


def test_repeated_requests_with_a_temperature_are_sampled_anew(engine: TransformersEngine) -> None:
    async def question(client: openai.AsyncOpenAI) -> Any:
        messages: Any = [{"role": "user", "content": "12"}]
        options: Any = {"model": "m", "temperature": 50, "max_tokens": 9}
        chats = [await client.chat.completions.create(messages=messages, **options) for _ in range(3)]
        texts = [await client.completions.create(prompt="12", **options) for _ in range(3)]
        return chats, [text.choices[0].text for text in texts]

    chats, texts = asked(engine, question)
    assert len({chat.choices[0].message.content for chat in chats}) == len(set(texts)) == 3
    assert len({chat.id for chat in chats}) == 3


def test_an_option_without_a_value_asks_for_nothing(engine: TransformersEngine) -> None:
    names = (
        "temperature",
        "seed",
        "stop",
        "logprobs",
        "best_of",
        "suffix",
        "logit_bias",
        "user",
        "max_tokens",
    )
    nothing: Any = dict.fromkeys(names)
    answer = asked(
        engine,
        lambda client: client.completions.create(
            model="m", prompt="12", extra_body={**nothing, "presence_penalty": 0, "frequency_penalty": 0}
        ),
    )
    plain = asked(engine, lambda client: client.completions.create(model="m", prompt="12"))
    assert answer.choices == plain.choices
    with pytest.raises(openai.BadRequestError, match="'stop' must be a string or a list of strings"):
        asked(engine, lambda client: client.completions.create(model="m", prompt="12", stop=""))


class Faulty(Echo):
    """An engine that raises an error, or returns a log-probability."""

    def __init__(self, fault: Exception | float) -> None:
        super().__init__(context=50)
        self._fault = fault

    async def generate(self, request: Request) -> Completion:
        if isinstance(self._fault, Exception):
            raise self._fault
        return Completion([1], [self._fault], [0], "stop")

    async def score(self, token_ids: Sequence[int]) -> Scores:
        if isinstance(self._fault, Exception):
            raise self._fault
        return Scores([self._fault], [(0, self._fault)])


@pytest.mark.parametrize("protocol", ["completions", "chat", "scores"])
@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (RequestRefused("token 99 is out of the vocabulary"), 400),
        (RequestFailed("a request failed 6 times while others succeeded"), 500),
        (float("nan"), 500),
        (ValueError("a bug of a user's engine"), 500),
    ],
)
def test_a_fault_of_the_engine_is_not_answered_like_one_of_the_request(
    fault: Exception | float, status: int, protocol: str
) -> None:
    async def question(client: openai.AsyncOpenAI) -> Any:
        if protocol == "completions":
            return await client.completions.create(model="m", prompt="12")
        if protocol == "scores":
            return await client.completions.create(
                model="m", prompt="12", echo=True, logprobs=1, max_tokens=0
            )
        return await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "12"}])

    with pytest.raises(openai.APIStatusError) as raised:
        asked(Faulty(fault), question)
    assert raised.value.status_code == status


def test_an_engine_that_fails_while_it_scores_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**inputs: Any) -> None:
        raise MemoryError("out of memory")

    async def scores() -> None:
        with closing(TransformersEngine("cpu")) as engine:
            await engine.load(folder, 4)
            monkeypatch.setattr(engine._model, "forward", fails)
            async with asyncio.timeout(60):
                await asyncio.gather(*(score(engine, TOKENS) for _ in range(2)), return_exceptions=False)

    with pytest.raises(EngineFailed, match="out of memory"):
        asyncio.run(scores())


def test_an_engine_without_scores_says_so() -> None:
    with pytest.raises(ConfigError, match="cannot compute log-probabilities of given tokens: use"):
        asyncio.run(score(Echo(), [1, 2]))
