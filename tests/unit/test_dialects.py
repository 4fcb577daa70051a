"""Dialects against servers that speak them, over real connections."""

import asyncio
import base64
import io
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from numpy.typing import NDArray

from tests.support.servers import Server, SGLangServer, started
from tests.support.waiting import until
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.explorer.engines.dialects import (
    DIALECTS,
    VLLM,
    Dialect,
    ServerUnavailable,
    ServerUnusable,
    open_session,
)
from trinity_db.explorer.engines.engine import Completion, Request, RequestFailed, RequestRefused
from trinity_db.models.chat.prompts import PromptTooLong

BOTH = pytest.mark.parametrize("kind", ["vllm", "sglang"])


class Asked:
    """One server, asked by its dialect."""

    def __init__(self, server: Server, dialect: Dialect, session: Any) -> None:
        self.server, self.dialect, self.session = server, dialect, session

    async def generate(self, *prompt: int, version: int = 0, limit: int = 9, **options: Any) -> Completion:
        request = Request(prompt, limit, **options)
        return await self.dialect.generate(
            self.session, self.server.url, request, end_tokens=[2], version=version
        )

    async def load(self, path: str, version: int) -> None:
        await self.dialect.load(self.session, self.server.url, Path(path), version, seconds=5)

    async def version(self) -> str:
        return await self.dialect.version(self.session, self.server.url)


def ask(
    kind: str, story: Callable[[Asked], Awaitable[None]], dialect: Dialect | None = None, **options: Any
) -> None:
    async def told() -> None:
        key = options.get("key")
        async with started(kind, **options) as (server,), open_session(key) as session:
            await story(Asked(server, dialect or DIALECTS[kind](), session))

    asyncio.run(told())


@BOTH
def test_a_response_has_its_tokens_log_probabilities_and_versions(kind: str) -> None:
    async def story(asked: Asked) -> None:
        await asked.load("/runs/7", 7)
        assert await asked.generate(2, 5, 6, version=7) == Completion([6, 5, 2], [-0.5] * 3, [7] * 3, "stop")
        assert await asked.generate(4, 5, 6, version=7, limit=2) == Completion(
            [6, 5], [-0.5] * 2, [7] * 2, "length"
        )

    ask(kind, story)


def npy(routing: NDArray[Any]) -> str:
    """As vLLM writes it: a .npy file in base64."""
    with io.BytesIO() as file:
        np.save(file, routing, allow_pickle=False)
        return base64.b64encode(file.getvalue()).decode()


def test_a_server_of_vllm_says_which_experts_were_chosen() -> None:
    experts = np.arange(4 * 3 * 2, dtype=np.uint8).reshape(4, 3, 2)  # of three tokens of the prompt and one

    async def story(asked: Asked) -> None:
        await asked.load("/runs/7", 7)
        asked.server.change = lambda answer: answer["choices"][0].update(routed_experts=npy(experts))
        found = await asked.generate(4, 5, 6, limit=2)
        assert found.routing is not None
        assert found.routing.dtype == np.uint8
        np.testing.assert_array_equal(found.routing, experts)
        older = experts.astype(np.int32) + 250
        asked.server.change = lambda answer: answer["choices"][0].update(routed_experts=npy(older))
        found = await asked.generate(4, 5, 6, limit=2)
        assert found.routing is not None
        assert found.routing.dtype == np.uint16
        np.testing.assert_array_equal(found.routing, older)

    async def unasked(asked: Asked) -> None:
        await asked.load("/runs/7", 7)
        asked.server.change = lambda answer: answer["choices"][0].update(routed_experts=npy(experts))
        assert (await asked.generate(4, 5, 6, limit=2)).routing is None

    ask("vllm", story, VLLM(record_routing=True))
    ask("vllm", unasked)


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        (None, ServerUnusable, "start vLLM with --enable-return-routed-experts, which needs a GPU"),
        ("AAAA", ServerUnusable, "returns chosen experts in an unsupported format"),
        ("no base64", ServerUnusable, "returns chosen experts in an unsupported format"),
        (npy(np.zeros((4, 3), np.uint8)), ServerUnusable, r"the shape \(4, 3\) does not fit 5 tokens"),
        (npy(np.zeros((4, 3, 2), np.float32)), ServerUnusable, "and this one float32"),
        (npy(np.zeros((3, 3, 2), np.uint8)), ServerUnavailable, "of 3 tokens, not of 4"),
    ],
)
def test_experts_that_cannot_be_those_of_the_response_are_refused(
    said: str | None, kind: type[TrinityError], message: str
) -> None:
    async def story(asked: Asked) -> None:
        await asked.load("/runs/7", 7)
        asked.server.change = lambda answer: answer["choices"][0].update(routed_experts=said)
        with pytest.raises(kind, match=message):
            await asked.generate(4, 5, 6, limit=2)

    ask("vllm", story, VLLM(record_routing=True))


@BOTH
def test_every_sampling_option_is_named_so_that_a_models_own_settings_do_not_count(kind: str) -> None:
    async def story(asked: Asked) -> None:
        await asked.load("/runs/7", 7)
        await asked.generate(5, 6, temperature=0.7, seed=2**64 - 1, version=7)
        sampling = asked.server.asked[0]["sampling_params"]
        assert sampling["temperature"] == 0.7
        assert sampling["top_p"] == sampling["repetition_penalty"] == 1
        assert sampling["min_p"] == sampling["presence_penalty"] == sampling["frequency_penalty"] == 0
        assert sampling["top_k"] in (0, -1)
        assert 0 <= sampling.get("seed", sampling.get("sampling_seed")) < 2**31

    ask(kind, story)


@BOTH
def test_weights_change_within_a_response_and_each_token_keeps_its_version(kind: str) -> None:
    async def story(asked: Asked) -> None:
        await asked.load("/runs/3", 3)
        asked.server.token_seconds = 0.01
        response = asyncio.create_task(asked.generate(*range(30, 70), version=3, limit=40))
        await until(lambda: asked.server.sampled >= 5, "some tokens are sampled")
        await asked.load("/runs/4", 4)
        completion = await response
        assert sorted(set(completion.versions)) == [3, 4]
        assert completion.versions == sorted(completion.versions)
        assert asked.server.loaded == [("/runs/3", "3"), ("/runs/4", "4")]
        assert await asked.version() == "4"

    ask(kind, story)


def test_a_server_that_does_not_say_which_token_is_of_which_version_is_asked_again() -> None:
    async def story(asked: Asked) -> None:
        assert isinstance(asked.server, SGLangServer)
        asked.server.names_spans = False
        await asked.load("/runs/3", 3)
        assert (await asked.generate(5, 6, version=3)).versions == [3, 3]
        with pytest.raises(ServerUnavailable, match="from version 2 to '3' during a response"):
            await asked.generate(5, 6, version=2)

    ask("sglang", story)


@BOTH
def test_a_load_that_fails_leaves_the_server_paused_until_one_succeeds(kind: str) -> None:
    async def story(asked: Asked) -> None:
        await asked.load("/runs/3", 3)
        asked.server.is_deaf = True
        with pytest.raises(TrinityError, match="no such file"):
            await asked.load("/runs/4", 4)
        assert not asked.server.running.is_set()
        asked.server.is_deaf = False
        await asked.load("/runs/5", 5)
        assert (await asked.generate(5, version=5)).versions == [5]

    ask(kind, story)


def test_a_folder_that_the_worker_refuses_before_it_changed_anything_leaves_the_weights_of_before() -> None:
    async def story(asked: Asked) -> None:
        await asked.load("/runs/3", 3)
        with pytest.raises(ConfigError, match="cannot load /runs/bad: no such tensor"):
            await asked.load("/runs/bad", 4)
        assert (await asked.generate(5)).versions == [3]

    ask("vllm", story, VLLM(reload="checked"))


@pytest.mark.parametrize(("folder", "said"), [("half", "the disk went away"), ("uneven", "no such tensor")])
def test_a_server_of_which_a_part_has_new_weights_stays_paused(folder: str, said: str) -> None:
    async def story(asked: Asked) -> None:
        await asked.load("/runs/3", 3)
        with pytest.raises(ServerUnavailable, match=f"could not load /runs/{folder}: {said}"):
            await asked.load(f"/runs/{folder}", 4)
        assert not asked.server.running.is_set()
        assert asked.server.label == "3"
        await asked.load("/runs/5", 5)
        assert (await asked.generate(5)).versions == [5]

    ask("vllm", story, VLLM(reload="checked"))


def test_a_server_that_confirms_another_version_stays_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(asked: Asked) -> None:
        async def another(*_: object) -> str:
            return "8"

        monkeypatch.setattr(asked.dialect, "version", another)
        with pytest.raises(ServerUnavailable, match="asked to load version 4, but reports '8'"):
            await asked.load("/runs/4", 4)
        assert not asked.server.running.is_set()

    ask("vllm", story)


STATUSES = [
    (500, "EngineDeadError", ServerUnavailable),
    (503, "overloaded", ServerUnavailable),
    (429, "too many", ServerUnavailable),
    (400, "token 99999 is out of vocabulary", RequestRefused),
    (400, "This model's maximum context length is 64 tokens", PromptTooLong),
    (400, "The input (70 tokens) is longer than the model's context length (64 tokens).", PromptTooLong),
    (404, "The model `policy` does not exist.", ServerUnusable),
    (401, "Unauthorized", ServerUnusable),
    (302, "elsewhere", ServerUnusable),
]


@BOTH
@pytest.mark.parametrize(("status", "message", "error"), STATUSES)
def test_a_status_says_whether_another_server_is_asked(
    kind: str, status: int, message: str, error: type[TrinityError]
) -> None:
    async def story(asked: Asked) -> None:
        asked.server.refusal = lambda _: web.json_response({"error": {"message": message}}, status=status)
        with pytest.raises(error, match=f"HTTP {status}: {re.escape(message)}") as raised:
            await asked.generate(5)
        assert type(raised.value) is error
        assert str(raised.value).startswith(asked.server.url)
        assert "\n" not in str(raised.value)

    ask(kind, story)


def test_a_route_that_is_not_there_says_how_the_server_is_started() -> None:
    async def story(asked: Asked) -> None:
        with pytest.raises(ServerUnusable, match="VLLM_SERVER_DEV_MODE=1"):
            await VLLM().load(asked.session, asked.server.url, Path("/runs/3"), 3, seconds=5)
        with pytest.raises(ServerUnusable, match="--enable-scale-out"):
            await VLLM().generate(asked.session, asked.server.url, Request([5], 3), end_tokens=[], version=0)

    ask("sglang", story)


@BOTH
def test_the_key_is_sent_and_a_wrong_one_is_refused_without_naming_it(kind: str) -> None:
    async def story(asked: Asked) -> None:
        await asked.load("/runs/7", 7)
        assert (await asked.generate(5, version=7)).versions == [7]
        async with open_session("wrong-secret") as session:
            with pytest.raises(ServerUnusable, match="401") as raised:
                await asked.dialect.version(session, asked.server.url)
        assert "secret" not in str(raised.value)

    ask(kind, story, key="right-secret")


VLLM_ANSWERS = [
    ({"token_ids": [], "finish_reason": "abort"}, ServerUnavailable, "aborted the response"),
    ({"finish_reason": "abort"}, ServerUnavailable, "abort"),
    ({"finish_reason": None}, ServerUnavailable, "no finish reason"),
    ({"token_ids": []}, ServerUnavailable, "aborted the response"),
    ({"finish_reason": "repetition"}, ServerUnusable, "neither stop nor length"),
    (
        {"token_ids": None},
        ServerUnusable,
        "without token ids; such a server can be used as a judge or a teacher",
    ),
    ({"logprobs": None}, ServerUnusable, "without the log-probability of each token; .* not as a policy"),
    ({"weight_versions": None}, ServerUnusable, "without the version of each token; .* not as a policy"),
    (
        {"weight_versions": [{"version": "default", "start": 0, "end": 2}]},
        ServerUnavailable,
        "'default'.* not as",
    ),
    ({"weight_versions": [{"version": "7", "start": 0, "end": 1}]}, ServerUnusable, "versions of 1 tokens"),
    ({"weight_versions": [{"version": "7", "start": 1, "end": 2}]}, ServerUnusable, "versions of 0 tokens"),
    ({"logprobs": {"content": [{"logprob": -9999.0}, {"logprob": -1.0}]}}, RequestFailed, "-9999.0"),
    ({"logprobs": {"content": [{"logprob": float("nan")}, {"logprob": -1.0}]}}, RequestFailed, "nan"),
]


@pytest.mark.parametrize(("fields", "error", "message"), VLLM_ANSWERS)
def test_an_answer_that_cannot_be_trained_on_is_refused(
    fields: dict[str, Any], error: type[TrinityError], message: str
) -> None:
    async def story(asked: Asked) -> None:
        await asked.load("/runs/7", 7)
        asked.server.change = lambda answer: answer["choices"][0].update(fields)
        with pytest.raises(error, match=message) as raised:
            await asked.generate(5, 6)
        assert type(raised.value) is error

    ask("vllm", story)


SGLANG_ANSWERS = [
    ({"finish_reason": {"type": "abort", "message": "shutting down"}}, ServerUnavailable, "abort"),
    ({"output_token_logprobs": None}, ServerUnusable, "without the log-probability"),
    ({"weight_versions": None, "weight_version": None}, ServerUnusable, "without the version of each token"),
    (
        {"weight_versions": None, "weight_version": "default"},
        ServerUnavailable,
        "to 'default' during a response",
    ),
]


@BOTH
def test_a_server_that_does_not_score_a_prompt_is_told_from_one_that_does(kind: str) -> None:
    async def story(asked: Asked) -> None:
        assert (
            await asked.dialect.score(asked.session, asked.server.url, [5, 6, 7]) == [asked.server.says] * 2
        )
        asked.server.says = None
        with pytest.raises(ServerUnusable, match="does not return the log-probability of each token"):
            await asked.dialect.score(asked.session, asked.server.url, [5, 6, 7])

    ask(kind, story)


@pytest.mark.parametrize(("fields", "error", "message"), SGLANG_ANSWERS)
def test_an_answer_of_sglang_that_cannot_be_trained_on_is_refused(
    fields: dict[str, Any], error: type[TrinityError], message: str
) -> None:
    async def story(asked: Asked) -> None:
        await asked.load("/runs/7", 7)
        asked.server.change = lambda answer: answer["meta_info"].update(fields)
        with pytest.raises(error, match=message):
            await asked.generate(5, 6, version=7)

    ask("sglang", story)


@BOTH
def test_a_server_that_dies_or_never_was_is_unavailable(kind: str) -> None:
    async def story(asked: Asked) -> None:
        await asked.load("/runs/7", 7)
        asked.server.token_seconds = 5
        response = asyncio.create_task(asked.generate(5, 6, version=7))
        await until(lambda: asked.server.asked, "the request is there")
        await asked.server.die()
        with pytest.raises(ServerUnavailable, match=asked.server.url):
            await response
        with pytest.raises(ServerUnavailable, match=asked.server.url):
            await asked.dialect.health(asked.session, asked.server.url)
        await asked.server.start()
        await asked.dialect.health(asked.session, asked.server.url)

    ask(kind, story)


@BOTH
def test_a_cancelled_request_is_given_up_by_the_server(kind: str) -> None:
    async def story(asked: Asked) -> None:
        asked.server.token_seconds = 5
        response = asyncio.create_task(asked.generate(5, 6))
        await until(lambda: asked.server.asked, "the request is there")
        response.cancel()
        with pytest.raises(asyncio.CancelledError):
            await response
        await until(lambda: asked.server.given_up, "the server gives it up")

    ask(kind, story)
