"""The engine `endpoint` with two real vLLM servers: versions, wrong weights, and one of them killed."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.others.vllm import metrics
from tests.others.vllm.checkpoints import MODEL, save_canary
from tests.others.vllm.references import References, versions_within
from trinity_db.explorer.engines.dialects import VLLM
from trinity_db.explorer.engines.endpoint import EndpointEngine
from trinity_db.explorer.engines.engine import Completion, EngineFailed, Request
from trinity_db.models import build_scratch
from trinity_db.models.canary import read

KEY = "a-key-of-the-test"
START_SECONDS = 900.0  # on a busy machine


@dataclass(frozen=True)
class Server:
    url: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """With its children, as a machine that loses its power."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def started(python: Path, model: Path, log: Path) -> Iterator[Server]:
    """A server as docs/guides/engines.md says that people start one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "--model": model,
        "--host": "127.0.0.1",
        "--port": port,
        "--logprobs-mode": "processed_logprobs",
    }
    options |= {
        "--dtype": "float32",
        "--kv-cache-memory-bytes": 1 << 29,
        "--max-num-seqs": 64,
        "--api-key": KEY,
    }
    flags = ["--enable-scale-out", "--enforce-eager", "--no-enable-chunked-prefill"]
    environment = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCH_COMPILE_DISABLE": "1",
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }
    words = [str(word) for pair in options.items() for word in pair]
    with log.open("wb") as said:
        process = subprocess.Popen(
            [python, "-m", "vllm.entrypoints.openai.api_server", *words, *flags],
            stdout=said,
            stderr=said,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", process)
    try:
        yield server
    finally:
        if process.poll() is None:
            server.kill()


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Checkpoints whose output embedding is a tensor of its own. A server on the CPU keeps a tied one."""
    folders = [tmp_path_factory.mktemp("untied") / str(seed) for seed in range(3)]
    for seed, folder in enumerate(folders):
        build_scratch(MODEL, seed, folder)
        torch.manual_seed(seed)
        settings = Qwen2Config.from_pretrained(folder)
        settings.tie_word_embeddings = False
        Qwen2ForCausalLM(settings).save_pretrained(folder)
        save_canary(folder)
    return folders


@pytest.fixture(scope="module")
def servers(
    python: Path, untied: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Server]]:
    """Two at once, since each takes half a minute."""
    logs = tmp_path_factory.mktemp("logs")
    with ExitStack() as stack:
        yield [stack.enter_context(started(python, untied[0], logs / f"{place}.log")) for place in range(2)]


def tell(
    servers: list[Server], story: Callable[[EndpointEngine], Awaitable[None]], patience: float = START_SECONDS
) -> None:
    async def told() -> None:
        urls = [server.url for server in servers]
        engine = EndpointEngine(urls, VLLM(), key=KEY, tolerance=0.005, patience_seconds=patience)
        try:
            await story(engine)
        finally:
            engine.close()

    asyncio.run(told())


async def loaded(engine: EndpointEngine, folder: Path, version: int) -> None:
    """By all servers."""
    await engine.load(folder, version)
    async with asyncio.timeout(START_SECONDS):
        while not all(server.confirmed is engine._target for server in engine._servers):
            await asyncio.sleep(0.05)


async def sampling(
    servers: list[Server], engine: EndpointEngine, number: int, length: int
) -> "asyncio.Future[list[Completion]]":
    """Requests that each server has begun to sample. One that is looked at later may be through by then."""
    async with aiohttp.ClientSession() as session:
        before = [await metrics.count(session, server.url, metrics.SAMPLED) for server in servers]
        sampled = asyncio.gather(*(engine.generate(one) for one in requests(number, length)))
        await asyncio.gather(
            *(
                metrics.until(session, server.url, metrics.SAMPLED, tokens + 100)
                for server, tokens in zip(servers, before, strict=True)
            )
        )
    return sampled


def requests(number: int, length: int) -> list[Request]:
    return [Request([seed % 200, 7, 11], length, 0.8, seed) for seed in range(number)]


def test_each_token_is_of_the_version_that_it_names(servers: list[Server], untied: list[Path]) -> None:
    references = References(dict(enumerate(untied)))

    async def story(engine: EndpointEngine) -> None:
        await loaded(engine, untied[0], 0)
        sampled = await sampling(servers, engine, 32, 300)
        await loaded(engine, untied[1], 1)
        answers = await sampled
        assert (0, 1) in versions_within(answers)
        worst = max(
            references.worst(request.prompt_ids, answer, temperature=0.8)
            for request, answer in zip(requests(32, 300), answers, strict=True)
        )
        assert worst < 1e-3

    tell(servers, story)


def test_weights_that_a_server_did_not_take_are_noticed(
    servers: list[Server], untied: list[Path], tmp_path: Path
) -> None:
    """The canary of another checkpoint: as if the server had kept weights, or taken them in part."""

    async def story(engine: EndpointEngine) -> None:
        await loaded(engine, untied[0], 0)
        folder = tmp_path / "checkpoint"
        folder.mkdir()
        for path in untied[1].iterdir():
            (folder / path.name).symlink_to(path)
        (folder / "canary.json").unlink()
        other = read(untied[2])
        assert other is not None
        other.save(folder)
        with pytest.raises(EngineFailed, match=r"does not have the weights of version 2"):
            await engine.load(folder, 2)

    tell(servers, story, patience=10.0)


def test_a_killed_server_costs_no_answer(servers: list[Server], untied: list[Path]) -> None:
    references = References({2: untied[2]})

    async def story(engine: EndpointEngine) -> None:
        await loaded(engine, untied[2], 2)
        sampled = await sampling(servers, engine, 64, 300)
        while not all(
            server.in_flight for server in engine._servers
        ):  # one was through before the other began
            await sampled
            sampled = await sampling(servers, engine, 64, 300)
        servers[1].kill()
        answers = await sampled
        assert versions_within(answers) == {(2,)}
        for request, answer in zip(requests(64, 300), answers, strict=True):
            assert references.worst(request.prompt_ids, answer, temperature=0.8) < 1e-3
        assert engine._servers[1].is_left_out
        servers[0].kill()
        engine._patience = 2.0
        with pytest.raises(EngineFailed, match=f"{servers[0].url}: .*{servers[1].url}: "):
            await engine.generate(Request([3, 7, 11], 3))

    tell(servers, story)
