"""The engine `vllm` over a server without a model, for what a real one does too seldom to test.

With a real server it is tested in tests/others/vllm.
"""

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from safetensors.torch import load_file, save_file

from tests.support.servers import Server as Stand
from tests.support.servers import VLLMServer
from trinity_db.config.shared import ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.explorer.engines.engine import Completion, EngineFailed, Request, RequestFailed
from trinity_db.explorer.engines.settings import VLLMConfig
from trinity_db.explorer.engines.vllm import engine as module
from trinity_db.explorer.engines.vllm import refusals
from trinity_db.explorer.engines.vllm.engine import VLLMEngine
from trinity_db.models import build_scratch
from trinity_db.models.canary import Canary
from trinity_db.models.chat.prompts import PromptTooLong

TOKENS = [1, 2, 3, 4]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=32, context=64), 3, folder)
    Canary(TOKENS, [-1.0] * (len(TOKENS) - 1)).save(folder)
    return folder


class Told:
    """An engine, and the one server that it has in place of vLLM, however often it starts it."""

    def __init__(self, stand: Stand, engine: VLLMEngine, starts: list[Path], checkpoint: Path) -> None:
        self.stand, self.engine, self.starts, self._checkpoint = stand, engine, starts, checkpoint

    async def load(self, version: int) -> None:
        await self.engine.load(self._checkpoint, version)

    async def ask(self) -> Completion:
        return await self.engine.generate(Request([5, 6], 2))


Tell = Callable[[Callable[[Told], Awaitable[None]]], None]


@pytest.fixture
def tell(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Runs a story."""
    stand, starts, views = VLLMServer(), list[Path](), count()

    class Server:
        def __init__(self, options: Any, log: Path) -> None:
            self.is_alive = False

        def view(self) -> Path:
            return tmp_path / f"view-{next(views)}"

        def start(self, model: Path) -> None:
            starts.append(model)
            stand.loaded.append((str(model), ""))
            self.is_alive = True

        def open_session(self) -> aiohttp.ClientSession:
            return aiohttp.ClientSession()

        def stop(self) -> None:
            self.is_alive = False

        def last_words(self) -> str:
            return "it said nothing"

    async def told(story: Callable[[Told], Awaitable[None]]) -> None:
        await stand.start()
        monkeypatch.setattr(module, "URL", stand.url)
        try:
            engine = VLLMEngine(VLLMConfig(python=Path(sys.executable)))
            async with asyncio.timeout(20):
                await story(Told(stand, engine, starts, checkpoint))
        finally:
            await stand.die()

    monkeypatch.setattr(module, "Server", Server)
    monkeypatch.setattr(refusals, "REFUSED_SECONDS", (0.02, 0.02))
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path))
    return lambda story: asyncio.run(told(story))


def test_requests_that_wait_after_a_refused_version_try_it_again(tell: Tell) -> None:
    async def story(told: Told) -> None:
        await told.load(0)
        told.stand.says = -9.0
        with pytest.raises(ConfigError, match="refused: its weights are stale or garbled"):
            await told.load(1)
        waiting = asyncio.create_task(told.ask())
        told.stand.says = -1.0
        answer = await waiting
        assert (answer.token_ids, answer.versions) == ([6, 5], [1, 1])
        assert len(told.starts) == 3, "each try has a new server"

    tell(story)


def test_a_server_that_keeps_the_weights_before_is_refused_however_small_the_step(
    tell: Tell, checkpoint: Path, tmp_path: Path
) -> None:
    before = [-1.0 - 0.01 * place for place in range(15)]
    after = [value + 0.0009 * (-1) ** place for place, value in enumerate(before)]  # rounding is up to 0.005
    folders = [tmp_path / "before", tmp_path / "after"]
    for folder, logprobs in zip(folders, (before, after), strict=True):
        shutil.copytree(checkpoint, folder)
        Canary([*range(16)], logprobs).save(folder)

    async def story(told: Told) -> None:
        told.stand.says = before
        await told.engine.load(folders[0], 1)
        with pytest.raises(ConfigError, match="show 0% of the update since the version that it had before"):
            await told.engine.load(folders[1], 2)
        assert len(told.starts) == 2, "in place, and then with a new server"
        told.stand.says = [value + 0.00002 for value in after]
        await told.engine.load(folders[1], 3)
        assert (await told.ask()).versions == [3, 3]

    tell(story)


def test_a_version_in_another_number_format_is_loaded_in_place(
    tell: Tell, checkpoint: Path, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    shutil.copytree(checkpoint, start)
    weights = load_file(start / "model.safetensors")
    save_file({name: one.bfloat16() for name, one in weights.items()}, start / "model.safetensors")

    async def story(told: Told) -> None:
        await told.engine.load(start, 0)
        await told.load(1)
        assert (await told.ask()).versions == [1, 1]
        assert len(told.starts) == 1

    tell(story)


def test_a_version_that_stays_refused_ends_the_engine_with_one_line(tell: Tell) -> None:
    async def story(told: Told) -> None:
        await told.load(0)
        told.stand.says = -9.0
        with pytest.raises(ConfigError):
            await told.load(1)
        with pytest.raises(EngineFailed) as failed:
            await told.ask()
        said = str(failed.value)
        assert said.startswith(
            "vLLM could not use version 1 in 3 tries; restore its checkpoint, or set another "
        )
        assert "differ from the trainer's by 8 nats" in said
        assert "\n" not in said

    tell(story)


def test_an_explorer_that_asks_for_a_refused_version_again_is_answered_at_once_and_later_heard(
    tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "REFUSED_SECONDS", (0.5, 0.02))

    async def story(told: Told) -> None:
        await told.load(0)
        told.stand.says = -9.0
        for _ in range(3):
            with pytest.raises(ConfigError):
                await told.load(1)
        assert len(told.starts) == 2
        refused = told.engine._refused
        assert refused is not None
        monkeypatch.setattr(refusals.Refusal, "seconds_left", 0.0)
        with pytest.raises(ConfigError):
            await told.load(1)
        with pytest.raises(EngineFailed, match="could not use version 1 in 3 tries"):
            await told.load(1)
        assert len(told.starts) == 4

    tell(story)


def test_prompts_are_scored_by_one_version_alone(tell: Tell) -> None:
    async def story(told: Told) -> None:
        await told.load(0)
        scored = 0

        async def load_other_weights() -> None:
            nonlocal scored
            scored += 1
            if scored == 1:
                told.stand.while_scored = None
                await told.load(1)
                told.stand.while_scored, told.stand.says = load_other_weights, -2.0

        told.stand.while_scored = load_other_weights
        scores = await told.engine.score([5, 6, 7])
        assert (scores.logprobs, scores.likeliest, scored) == ([-2.0] * 2, [(0, -0.25)] * 2, 2)
        told.stand.says = -9999.0
        with pytest.raises(RequestFailed, match="returned the log-probability -9999"):
            await told.engine.score([5, 6, 7])
        with pytest.raises(PromptTooLong, match="A prompt of 64 tokens does not fit"):
            await told.engine.score([1] * 64)

    tell(story)


def test_another_version_ends_the_wait(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "REFUSED_SECONDS", (60.0,))

    async def story(told: Told) -> None:
        await told.load(0)
        told.stand.says = -9.0
        with pytest.raises(ConfigError):
            await told.load(1)
        waiting = asyncio.create_task(told.ask())
        told.stand.says = -1.0
        await told.load(2)
        assert (await waiting).versions == [2, 2]

    tell(story)
