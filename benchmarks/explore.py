"""Exploring with 256 attempts in flight: sampled tokens per second until the last rollout is committed.

Response lengths have a long tail. 1,024 responses are sampled by a bare client of a vLLM server, and by our
explorer over that server with a real store; transformers' `generate` samples 256 of them as one batch, which
waits for its longest response and stores nothing. The client and the explorer send the same requests with the
same seeds. The model is small, so that the explorer's own cost shows.
"""

import asyncio
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import NormalDist
from string import ascii_lowercase
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from benchmarks.context import Context
from benchmarks.measure import OURS, Bar, Result, absent, in_turns, ratio
from benchmarks.peer import ROOT
from benchmarks.scene import RUN, Scene
from benchmarks.server import Server
from trinity_db.config.shared import PromptConfig
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engines.engine import Completion, Engine, Request
from trinity_db.explorer.engines.settings import VLLMConfig
from trinity_db.explorer.engines.vllm.engine import VLLMEngine
from trinity_db.explorer.engines.vllm.server import MODEL, URL
from trinity_db.explorer.service import Explorer, ExplorerSetup
from trinity_db.models import load_model
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import groups, runs
from trinity_db.store.selection import TaskSelection
from trinity_db.weights.recorded_places import RecordedPlaces
from trinity_db.worker.service import LEASE_SECONDS

MEASURE = "explore"
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
IN_FLIGHT = 256
ATTEMPTS = 4 * IN_FLIGHT
GROUP_SIZE = 8
VARIANT = f"{IN_FLIGHT} in flight, long-tailed lengths"
MEDIAN, SPREAD, LONGEST = 48, 1.0, 512  # tokens of a response: log-normal, cut at the longest
PAIRS = ["".join(pair) for pair in product(ascii_lowercase, repeat=2)]
"""Words of the model in addition to the bytes; the vocabulary has 933 entries."""
PROMPT = 32  # words
BARE, BATCH = "bare client of vLLM", "a batch by generate()"


def length_of(seed: int) -> int:
    """Return the token limit of an attempt by its seed."""
    quantile = NormalDist(math.log(MEDIAN), SPREAD).inv_cdf((seed % 997 + 0.5) / 997)
    return min(LONGEST, max(8, round(math.exp(quantile))))


async def attempt(task: Mapping[str, Any], policy: Policy) -> None:
    """Sample one response."""
    await policy.complete(_prompt(task["answer"]), max_new_tokens=length_of(policy.seed))


@cache
def _prompt(answer: str) -> str:
    return "".join(random.Random(answer).choices(PAIRS, k=PROMPT))


class Observed:
    """Engine that records its requests, tokens and start time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.requests: list[Request] = []
        self.began = 0.0
        self.tokens = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def load(self, path: Path, version: int) -> None:
        await self._engine.load(path, version)
        self.requests.clear()
        self.tokens, self.began = 0, time.perf_counter()

    async def generate(self, request: Request) -> Completion:
        self.requests.append(request)
        completion = await self._engine.generate(request)
        self.tokens += len(completion.token_ids)
        return completion


def run(context: Context) -> list[Result]:
    """Measure all ways in turns."""
    if not PYTHON.exists():
        return [absent(MEASURE, OURS, VARIANT, "needs .venv-vllm, which make test-vllm creates")]
    with TemporaryDirectory(prefix="trinity-db-bench-explore-", dir=context.scratch) as scratch:
        os.environ["TRINITY_DB_HOME"] = scratch  # folder of vLLM's log
        model = Path(scratch) / "model"
        _build_model(model)
        vllm = VLLMEngine(VLLMConfig(python=PYTHON, max_sequences=IN_FLIGHT))
        try:
            with context.server() as server:
                return _compare(context, server, model, vllm)
        finally:
            vllm.close()


def _build_model(folder: Path) -> None:
    """Write a Qwen2 with random weights and its tokenizer."""
    symbols = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = ["<|endoftext|>", *symbols, *PAIRS]
    vocabulary = {word: number for number, word in enumerate(words)}
    Qwen2Tokenizer(vocab=vocabulary, merges=[(*pair,) for pair in PAIRS]).save_pretrained(folder)
    torch.manual_seed(0)
    settings = Qwen2Config(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=2,
        num_attention_heads=2,  # vLLM on a CPU needs a head size of at least 32
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    Qwen2ForCausalLM(settings).save_pretrained(folder)


def _compare(context: Context, server: Server, model: Path, vllm: VLLMEngine) -> list[Result]:
    over_vllm, number = Observed(vllm), context.rows(ATTEMPTS)
    ours = partial(_explore, server, model, over_vllm, number)
    ours()  # starts the server and records the requests
    requests = [*over_vllm.requests]
    ways: dict[str, Callable[[], float]] = {
        BARE: partial(_bare, vllm, requests),
        OURS: ours,
        BATCH: partial(_batch, load_model(model, "cpu"), requests),
    }
    rates = in_turns(ways, context.repetitions)
    return [
        ratio(MEASURE, VARIANT, "tokens/s", rates[OURS], rates[way], way, bar, alternated=True)
        for way, bar in ((BARE, Bar(0.9)), (BATCH, Bar(2)))
    ]


def _explore(server: Server, model: Path, engine: Observed, number: int) -> float:
    """Run our explorer on a new store. Returns tokens per second."""
    scene = Scene.open(server.new_store(), model)
    server.settle()
    with closing(Database(scene.url, LEASE_SECONDS)) as database:
        with database.transaction() as tx:
            run = runs.find(tx, RUN)
        config = ExplorerConfig(group_size=GROUP_SIZE, concurrency=IN_FLIGHT)
        setup = ExplorerSetup(
            config=config,
            workflow=attempt,
            engine=engine,
            pace=groups.Pace(max_staleness=0, per_version=number // GROUP_SIZE),
            selection=TaskSelection({scene.taskset_id: 1.0}, seed=0, walk="sequential"),
            prompts=PromptConfig(prompt_template="{prompt}"),
            places=RecordedPlaces(checkpoints=Path("/")),
        )
        explorer = Explorer(database, run, setup)
        explorer.worker_id = scene.new_worker(database, WorkerRole.EXPLORE)
        try:
            explorer.work()
            seconds = time.perf_counter() - engine.began
        finally:
            explorer.release()
        with database.transaction() as tx:
            written = tx.execute(
                "SELECT count(*) AS n FROM trinity.rollout WHERE state = 'finished'"
            ).fetchone()
    assert written is not None
    assert written["n"] == len(engine.requests) == number
    return engine.tokens / seconds


def _bare(vllm: VLLMEngine, requests: Sequence[Request]) -> float:
    """Send the requests with the same concurrency. Returns tokens per second."""

    async def sampled() -> tuple[int, float]:
        free, server = asyncio.Semaphore(IN_FLIGHT), vllm._server
        assert server is not None
        async with server.open_session() as session:

            async def ask(request: Request) -> int:
                body = {
                    "model": MODEL,
                    "token_ids": [*request.prompt_ids],
                    "sampling_params": {
                        "max_tokens": request.max_new_tokens,
                        "temperature": request.temperature,
                        "seed": request.seed % 2**31,
                        "logprobs": 0,
                        "detokenize": False,
                    },
                }
                async with free, session.post(f"{URL}/inference/v1/generate", json=body) as answer:
                    answer.raise_for_status()
                    return len((await answer.json())["choices"][0]["token_ids"])

            began = time.perf_counter()
            tokens = await asyncio.gather(*map(ask, requests))
            return sum(tokens), time.perf_counter() - began

    tokens, seconds = asyncio.run(sampled())
    return tokens / seconds


def _batch(model: Any, requests: Sequence[Request]) -> float:
    """Sample one batch. Returns tokens per second; tokens beyond a response's limit do not count."""
    batch = requests[:IN_FLIGHT]
    began = time.perf_counter()
    longest = max(len(request.prompt_ids) for request in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(batch):
        ids[row, longest - len(request.prompt_ids) :] = torch.tensor([*request.prompt_ids])
        mask[row, longest - len(request.prompt_ids) :] = 1
    sampled = model.generate(
        ids,
        attention_mask=mask,
        do_sample=True,
        top_k=0,
        max_new_tokens=max(request.max_new_tokens for request in batch),
    )[:, longest:]
    end, tokens = model.generation_config.eos_token_id, 0
    for request, row in zip(batch, sampled.tolist(), strict=True):
        response = row[: request.max_new_tokens]
        tokens += response.index(end) + 1 if end in response else len(response)
    return tokens / (time.perf_counter() - began)
