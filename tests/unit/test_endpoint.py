"""A fleet of servers behind one engine: which server is asked, and what becomes of those that fail."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.servers import Server, VLLMServer, started
from tests.support.waiting import until
from trinity_db.config.base import validate
from trinity_db.config.shared import ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.explorer import engines
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engines import endpoint
from trinity_db.explorer.engines.dialects import DIALECTS, VLLM
from trinity_db.explorer.engines.endpoint import EndpointEngine
from trinity_db.explorer.engines.engine import (
    Completion,
    EngineFailed,
    NotLoadedYet,
    Request,
    RequestFailed,
    RequestRefused,
)
from trinity_db.explorer.engines.settings import EndpointConfig
from trinity_db.models import build_scratch
from trinity_db.models.canary import Canary
from trinity_db.models.chat.prompts import PromptTooLong

BOTH = pytest.mark.parametrize("kind", ["vllm", "sglang"])


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=32, context=64), 3, folder)
    return folder


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at servers often, so that tests wait for nothing."""
    monkeypatch.setattr(endpoint, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(endpoint, "FIRST_PAUSE", 0.005)
    monkeypatch.setattr(endpoint, "OFFER_SECONDS", 0.1)


class Fleet:
    def __init__(self, servers: list[Server], engine: EndpointEngine, folder: Path) -> None:
        self.servers, self.engine, self.folder = servers, engine, folder

    async def load(self, version: int) -> None:
        await self.engine.load(self.folder, version)

    async def ready(self, version: int = 3) -> None:
        """Every server has the version."""
        await self.load(version)
        await until(
            lambda: all(server.label == str(version) and server.running.is_set() for server in self.servers)
        )
        await until(lambda: not any(server.is_loading for server in self.engine._servers))

    async def ask(self, *prompt: int, limit: int = 9) -> Completion:
        return await self.engine.generate(Request(prompt, limit))

    async def ask_often(self, times: int, length: int = 1) -> list[Completion]:
        prompts = [[number % 60] * length for number in range(times)]
        answers = await asyncio.gather(*(self.ask(*prompt) for prompt in prompts))
        assert [answer.token_ids for answer in answers] == prompts, (
            "each request has the answer to its own prompt"
        )
        return answers


@pytest.fixture
def fleet(model_folder: Path) -> Callable[..., None]:
    """Runs a story with so many servers."""

    def fleet(
        story: Callable[[Fleet], Awaitable[None]], kind: str = "vllm", number: int = 2, **options: Any
    ) -> None:
        async def told() -> None:
            async with started(kind, number, key=options.get("key")) as servers:
                urls = [server.url for server in servers]
                engine = EndpointEngine(urls, DIALECTS[kind](), **{"patience_seconds": 5.0, **options})
                try:
                    await story(Fleet(servers, engine, model_folder))
                finally:
                    engine.close()

        asyncio.run(told())

    return fleet


Telling = Callable[..., None]


@BOTH
def test_requests_are_spread_over_the_servers_by_what_is_in_flight(fleet: Telling, kind: str) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        fleet.servers[0].token_seconds = 0.02
        answers = await fleet.ask_often(30)
        assert {version for answer in answers for version in answer.versions} == {3}
        assert [len(server.asked) for server in fleet.servers] == [15, 15]
        for server in fleet.servers:
            server.asked.clear()
        slow = asyncio.create_task(fleet.ask_often(2, length=9))
        await until(lambda: len(fleet.servers[0].asked) == 1)
        for _ in range(5):
            await fleet.ask(7)
        await slow
        assert len(fleet.servers[0].asked) < len(fleet.servers[1].asked)

    fleet(story, kind)


@BOTH
def test_a_killed_server_costs_no_answer_and_is_used_again_with_the_loaded_weights(
    fleet: Telling, kind: str
) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        first, second = fleet.servers
        first.token_seconds = second.token_seconds = 0.01
        asked = asyncio.create_task(fleet.ask_often(40, length=9))
        await until(lambda: len(first.asked) == len(second.asked) == 20)
        await first.die()
        assert len(await asked) == 40
        await fleet.load(4)
        await first.start()
        await until(lambda: first.label == "4" and first.running.is_set())
        first.asked.clear()
        await until(lambda: fleet.engine._servers[0].confirmed is fleet.engine._target)
        await fleet.ask_often(10)
        assert len(first.asked) == 5

    fleet(story, kind)


def refuse(status: int) -> Callable[[Any], web.Response]:
    return lambda body: web.json_response({"error": {"message": "EngineDeadError"}}, status=status)


def abort(answer: Any) -> None:
    answer["choices"][0].update(token_ids=[], finish_reason="abort", logprobs=None, weight_versions=None)


def test_a_server_that_fails_at_requests_is_left_out_until_it_answers_again(fleet: Telling) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        first = fleet.servers[0]
        for field, broken, whole in (
            ("refusal", refuse(500), lambda body: None),
            ("change", abort, lambda answer: None),
        ):
            setattr(first, field, broken)
            await fleet.ask_often(20)
            setattr(first, field, whole)
            await until(lambda: not fleet.engine._servers[0].is_left_out)
            first.asked.clear()
            await fleet.ask_often(10)
            assert len(first.asked) == 5

    fleet(story)


def test_a_server_that_hangs_is_left_out_with_its_requests_in_flight(fleet: Telling) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        first, second = fleet.servers
        first.token_seconds = 60
        asked = asyncio.create_task(fleet.ask_often(4))
        await until(lambda: len(first.asked) == 2)
        first.is_healthy = False
        await asked
        assert first.given_up == 2
        assert len(second.asked) == 4

    fleet(story)


@BOTH
def test_new_weights_reach_every_server_while_responses_are_sampled(fleet: Telling, kind: str) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        for server in fleet.servers:
            server.token_seconds = 0.01
        asked = asyncio.create_task(fleet.ask_often(6, length=9))
        await until(lambda: all(len(server.asked) == 3 for server in fleet.servers))
        begun = [server.sampled for server in fleet.servers]
        await until(lambda: all(one.sampled > 6 + had for one, had in zip(fleet.servers, begun, strict=True)))
        await fleet.ready(4)
        for answer in await asked:
            assert set(answer.versions) == {3, 4}
            assert answer.versions == sorted(answer.versions)
        assert set((await fleet.ask(7)).versions) == {4}
        assert all(server.loaded[-1] == (str(fleet.folder), "4") for server in fleet.servers)

    fleet(story, kind)


def test_a_server_that_cannot_load_is_left_out_and_tried_again(fleet: Telling) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        first, second = fleet.servers
        first.is_deaf = True
        await fleet.load(4)
        answers = await fleet.ask_often(10)
        assert {version for answer in answers for version in answer.versions} == {4}
        assert len(second.asked) == 10
        first.is_deaf = False
        await until(lambda: first.label == "4" and first.running.is_set())

    fleet(story)


def test_a_server_that_says_what_makes_no_sense_is_left_out_and_the_others_go_on(
    fleet: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        strange = fleet.servers[0].url
        version = VLLM.version

        async def says_nothing(dialect: VLLM, session: Any, url: str) -> str:
            if url == strange:
                raise AttributeError("'list' object has no attribute 'get'")
            return await version(dialect, session, url)

        monkeypatch.setattr(VLLM, "version", says_nothing)
        await fleet.load(4)
        assert {version for answer in await fleet.ask_often(4) for version in answer.versions} == {4}

    fleet(story)


def test_a_request_that_waits_for_one_version_is_answered_by_the_next(fleet: Telling) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        server = fleet.servers[0]
        server.is_deaf = True
        loading = asyncio.create_task(fleet.load(4))
        await until(lambda: not server.running.is_set())
        request = asyncio.create_task(fleet.ask(5))
        await until(lambda: fleet.engine._servers[0].failures > 1)
        loading.cancel()
        server.is_deaf = False
        await fleet.load(5)
        assert (await request).versions in ([4], [5])
        assert (await fleet.ask(5)).versions == [5]

    fleet(story, number=1)


def test_weights_that_another_program_loads_are_noticed_and_replaced(fleet: Telling) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        fleet.servers[0].label = "9"
        assert set((await fleet.ask(5)).versions) == {3}
        await until(lambda: fleet.servers[0].label == "3")

    fleet(story, number=1)


@BOTH
@pytest.mark.parametrize("load_weights", [True, False])
def test_weights_that_say_something_else_of_the_canary_do_not_count_as_loaded(
    fleet: Telling, kind: str, load_weights: bool, model_folder: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(model_folder, checkpoint)
    Canary([1, 2, 3], [-1.0, -1.2]).save(checkpoint)

    async def story(fleet: Fleet) -> None:
        fleet.folder = checkpoint
        first, second = fleet.servers
        first.label = second.label = "3"
        first.says = -1.5
        await fleet.load(3)
        assert set((await fleet.ask(5)).versions) == {3}
        await until(lambda: "differ from the trainer's by 0.4 nats" in str(fleet.engine._servers[0].problem))
        assert not first.asked
        first.says = -1.0
        await until(lambda: not fleet.engine._servers[0].is_left_out)

    fleet(story, kind, load_weights=load_weights)


@BOTH
def test_a_server_that_keeps_the_weights_before_is_left_out(
    fleet: Telling, kind: str, model_folder: Path, tmp_path: Path
) -> None:
    before = [-1.0 - 0.01 * place for place in range(15)]
    after = [value + 0.0009 * (-1) ** place for place, value in enumerate(before)]
    folders = [tmp_path / "before", tmp_path / "after"]
    for folder, logprobs in zip(folders, (before, after), strict=True):
        shutil.copytree(model_folder, folder)
        Canary([*range(16)], logprobs).save(folder)

    async def story(fleet: Fleet) -> None:
        fleet.folder, (server,) = folders[0], fleet.servers
        server.says = before
        await fleet.load(3)
        assert (await fleet.ask(5)).versions == [3]
        fleet.folder = folders[1]
        loading = asyncio.create_task(fleet.load(4))
        await until(lambda: "show 0% of the update" in str(fleet.engine._servers[0].problem))
        server.says = after
        await loading
        assert (await fleet.ask(5)).versions == [4]

    fleet(story, kind, number=1)


def test_a_response_that_ends_between_a_load_and_its_canary_waits_for_it(
    fleet: Telling, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        server = fleet.servers[0]
        server.token_seconds = 0.03
        may_check = asyncio.Event()
        check = fleet.engine._check_weights

        async def waits(*arguments: Any) -> None:
            await may_check.wait()
            await check(*arguments)

        monkeypatch.setattr(fleet.engine, "_check_weights", waits)
        response = asyncio.create_task(fleet.ask(*range(20, 29)))
        await until(lambda: server.sampled > 1)
        loading = asyncio.create_task(fleet.load(4))
        await until(lambda: server.sampled == 9)
        assert not response.done()
        may_check.set()
        assert set((await response).versions) == {3, 4}
        await loading

    fleet(story, number=1)


def test_a_failed_engine_names_each_server_and_why(fleet: Telling) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        for server in fleet.servers:
            await server.die()
        with pytest.raises(EngineFailed) as raised:
            await fleet.ask(5)
        message = str(raised.value)
        assert all(server.url in message for server in fleet.servers)
        assert "\n" not in message

    fleet(story, patience_seconds=0.3)


def test_servers_that_are_never_there_end_the_first_load(fleet: Telling) -> None:
    async def story(fleet: Fleet) -> None:
        for server in fleet.servers:
            await server.die()
        with pytest.raises(EngineFailed, match=r"No server is usable: http.*; http"):
            await fleet.load(0)

    fleet(story, patience_seconds=0.2)


def test_servers_that_fail_at_every_request_end_the_engine(fleet: Telling) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        for server in fleet.servers:
            server.refusal = refuse(500)
        with pytest.raises(EngineFailed, match=r"EngineDeadError.*; http.*EngineDeadError"):
            await fleet.ask(5)
        assert sum(len(server.asked) for server in fleet.servers) == endpoint.TRIES

    fleet(story)


def test_one_request_that_servers_fail_at_does_not_end_the_engine(fleet: Telling) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        for server in fleet.servers:
            server.refusal = lambda body: refuse(500)(body) if body["token_ids"] == [13] else None
        poison = asyncio.create_task(fleet.ask(13))
        while not poison.done():
            assert (await fleet.ask(5)).token_ids == [5]
        with pytest.raises(RequestFailed, match="failed 6 times while others succeeded"):
            await poison

    fleet(story)


def test_a_refused_request_is_not_asked_again(fleet: Telling) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        for server in fleet.servers:
            server.refusal = refuse(400)
        with pytest.raises(RequestRefused):
            await fleet.ask(5)
        assert sum(len(server.asked) for server in fleet.servers) == 1

    fleet(story)


@pytest.mark.parametrize("missing", ["token_ids", "logprobs", "weight_versions"])
def test_servers_whose_answers_cannot_be_trained_on_end_the_engine_at_once(
    fleet: Telling, missing: str
) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        fleet.servers[0].change = lambda answer: answer["choices"][0].update({missing: None})
        with pytest.raises(EngineFailed, match="can be used as a judge or a teacher, but not as a policy"):
            await fleet.ask(5)

    fleet(story, number=1, patience_seconds=60)


def test_a_wrong_key_ends_the_first_load_at_once(fleet: Telling) -> None:
    async def story(fleet: Fleet) -> None:
        for server in fleet.servers:
            server.key = "another"
        with pytest.raises(EngineFailed, match="HTTP 401") as raised:
            await fleet.load(0)
        assert "secret" not in str(raised.value)

    fleet(story, key="secret", patience_seconds=60)


@BOTH
def test_servers_that_other_people_load_are_used_while_they_have_the_version(
    fleet: Telling, kind: str
) -> None:
    async def story(fleet: Fleet) -> None:
        first, second = fleet.servers
        first.label, second.label = "0", "default"
        await fleet.load(0)
        await fleet.ask_often(6)
        assert len(first.asked) == 6
        assert not second.asked
        with pytest.raises(
            ConfigError, match=r"no server has it yet: .*has version 0; .*'default'.* not an integer"
        ):
            await fleet.load(1)
        assert set((await fleet.ask(5)).versions) == {0}, "until then, the version of before is used"
        second.label = "1"
        with pytest.raises(NotLoadedYet):
            await fleet.load(2)
        await fleet.load(1)
        first.label = "3"
        await until(lambda: fleet.engine._servers[0].version == 3)
        with pytest.raises(ConfigError, match="no server has it, and one has a later version"):
            await fleet.load(2)
        first.label = "0"
        await until(lambda: fleet.engine._servers[0].version == 0)
        first.asked.clear()
        assert {version for answer in await fleet.ask_often(6) for version in answer.versions} == {1}
        assert not first.asked
        assert first.loaded == second.loaded == []

    fleet(story, kind, load_weights=False)


def test_an_attempt_goes_on_when_other_people_have_gone_on_to_a_later_version(fleet: Telling) -> None:
    async def story(fleet: Fleet) -> None:
        for server in fleet.servers:
            server.label = "4"
        await fleet.load(4)
        for server in fleet.servers:
            server.label = "6"
        await until(lambda: all(server.version == 6 for server in fleet.engine._servers))
        assert (await fleet.ask(5, 6)).versions == [6, 6]
        for server in fleet.servers:
            server.label = "3"
        await until(lambda: all(server.version == 3 for server in fleet.engine._servers))
        with pytest.raises(EngineFailed, match="has version 3"):
            await fleet.ask(5)

    fleet(story, load_weights=False, patience_seconds=0.3)


def test_a_cancelled_request_leaves_no_trace(fleet: Telling) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        server = fleet.servers[0]
        server.token_seconds = 60
        asked = asyncio.create_task(fleet.ask(5))
        await until(lambda: len(server.asked) == 1)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await until(lambda: server.given_up == 1)
        assert fleet.engine._servers[0].in_flight == 0
        assert not fleet.engine._servers[0].is_left_out

    fleet(story, number=1)


def test_prompts_and_responses_keep_to_the_context_of_the_checkpoint(fleet: Telling) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        assert fleet.engine.context == 64
        for prompt in ([], [5] * 64):
            with pytest.raises(PromptTooLong, match=f"{len(prompt)} tokens does not fit"):
                await fleet.ask(*prompt)
        assert (await fleet.ask(*[5] * 62, limit=50)).token_ids == [5, 5]

    fleet(story, number=1)


def test_a_response_ends_with_the_token_that_completes_a_stop_string(fleet: Telling) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.ready()
        tokenizer = fleet.engine.tokenizer
        prompt = tokenizer.encode("987654321", add_special_tokens=False)
        answer = await fleet.engine.generate(Request(prompt, 9, stop=["34"]))
        assert tokenizer.decode(answer.token_ids) == "1234"
        assert answer.finish_reason == "stop"
        assert len(answer.logprobs) == len(answer.versions) == 4

    fleet(story, number=1)


def test_an_engine_outlives_its_event_loop(model_folder: Path) -> None:
    async def told(engine: EndpointEngine, server: Server) -> None:
        await server.start()
        await engine.load(model_folder, 3)
        assert (await engine.generate(Request([5], 3))).versions == [3]
        await server.die()

    server = VLLMServer()
    asyncio.run(server.start())
    asyncio.run(server.die())
    engine = EndpointEngine([server.url], DIALECTS["vllm"](), patience_seconds=5)
    for _ in range(2):
        asyncio.run(told(engine, server))
    engine.close()


def settings(**engine: Any) -> EndpointConfig:
    config = ExplorerConfig.model_validate({"engine": {"name": "endpoint", **engine}}).engine
    assert isinstance(config, EndpointConfig)
    return config


def test_the_key_comes_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(urls=["http://host:8000/"], key_env="FLEET_KEY")
    with pytest.raises(ConfigError, match="FLEET_KEY is not set"):
        engines.create(config)
    monkeypatch.setenv("FLEET_KEY", "very-secret")
    engine = engines.create(config)
    assert isinstance(engine, EndpointEngine)
    assert engine._key == "very-secret"
    assert "very-secret" not in config.model_dump_json()


def test_a_key_in_place_of_its_variable_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="name an environment variable") as raised:
        validate(
            ExplorerConfig, {"engine": {"name": "endpoint", "urls": ["http://a"], "key_env": "sk-1"}}, "f"
        )
    assert "sk-1" not in str(raised.value)


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ([], "at least 1 item"),
        (["host:8000"], "http://host:8000"),
        (["ftp://host"], "http://host:8000"),
        (["http://host?key=1"], "http://host:8000"),
        (["http://me:secret@host"], "use key_env"),
        (["http://host", "http://host/"], "listed twice"),
    ],
)
def test_an_address_that_is_none_is_refused(urls: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(urls=urls)
