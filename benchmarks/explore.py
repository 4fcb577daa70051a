"""Exploring with 256 attempts in flight: sampled tokens a second, until the last rollout is committed.

The lengths of the responses have a long tail. Each way samples 1,024 responses to the same prompts with the
same limits: a bare client of a vLLM server; our explorer over that server with a real store; our explorer
with the transformers engine; and transformers' own `generate` over the first 256 of them as one batch, which
waits for its longest response and stores nothing. The first two send the same requests with the same seeds,
so that they get the same tokens. The model is so small that its arithmetic takes little of the time, so that
the cost of an explorer shows.
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
from benchmarks.measure import OURS, Bar, Result, absent, figure, in_turns, ratio
from benchmarks.peer import ROOT
from benchmarks.scene import RUN, Scene
from benchmarks.server import Server
from trinity_db.config import PromptConfig
from trinity_db.database import Database
from trinity_db.explorer.config import ExplorerConfig, VLLMConfig
from trinity_db.explorer.engines.engine import Completion, Engine, Request
from trinity_db.explorer.engines.transformers_engine import TransformersEngine
from trinity_db.explorer.engines.vllm.engine import VLLMEngine
from trinity_db.explorer.engines.vllm.server import MODEL, URL
from trinity_db.explorer.policy import Policy
from trinity_db.explorer.service import Explorer
from trinity_db.models import load_model
from trinity_db.schema.states import WorkerRole
from trinity_db.service import LEASE_SECONDS
from trinity_db.store import groups, runs
from trinity_db.store.selection import Selection
from trinity_db.weights.recorded_places import RecordedPlaces

MEASURE = "explore"
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
IN_FLIGHT = 256
ATTEMPTS = 4 * IN_FLIGHT
GROUP_SIZE = 8
VARIANT = f"{IN_FLIGHT} in flight, long-tailed lengths"
MEDIAN, SPREAD, LONGEST = 48, 1.0, 512  # tokens of a response: log-normal, cut at the longest
PAIRS = ["".join(pair) for pair in product(ascii_lowercase, repeat=2)]
"""Words of the model besides the bytes: 933 in all."""
PROMPT = 32  # words
BARE, TRANSFORMERS, BATCH = "bare client of vLLM", "transformers engine", "a batch by generate()"


def length_of(seed: int) -> int:
    """The limit of an attempt's response, by its seed."""
    return min(
        LONGEST,
        max(8, round(math.exp(NormalDist(math.log(MEDIAN), SPREAD).inv_cdf((seed % 997 + 0.5) / 997)))),
    )


async def attempt(task: Mapping[str, Any], policy: Policy) -> None:
    """One response, of a length of its own."""
    await policy.complete(_prompt(task["answer"]), max_new_tokens=length_of(policy.seed))


@cache
def _prompt(answer: str) -> str:
    return "".join(random.Random(answer).choices(PAIRS, k=PROMPT))


class Observed:
    """An engine that keeps the requests, and the time at which it began to take them."""

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
    """All ways in turns."""
    if not PYTHON.exists():
        return [absent(MEASURE, OURS, VARIANT, "make test-vllm makes .venv-vllm, in which vLLM is")]
    with TemporaryDirectory(prefix="trinity-db-bench-explore-", dir=context.scratch) as scratch:
        os.environ["TRINITY_DB_HOME"] = scratch  # where vLLM's log is
        model = Path(scratch) / "model"
        _build_model(model)
        vllm = VLLMEngine(VLLMConfig(python=PYTHON, max_sequences=IN_FLIGHT))
        in_process = TransformersEngine("cpu")
        try:
            with context.server() as server:
                return _compare(context, server, model, vllm, in_process)
        finally:
            vllm.close()
            in_process.close()


def _build_model(folder: Path) -> None:
    """Qwen2 with random weights, and a tokenizer of its words."""
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
        num_attention_heads=2,  # vLLM on a CPU needs heads of 32 numbers at least
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    Qwen2ForCausalLM(settings).save_pretrained(folder)


def _compare(
    context: Context, server: Server, model: Path, vllm: VLLMEngine, in_process: TransformersEngine
) -> list[Result]:
    over_vllm, number = Observed(vllm), context.rows(ATTEMPTS)
    ours = partial(_explore, server, model, over_vllm, number)
    ours()  # starts the server, and says which requests are made
    requests = [*over_vllm.requests]
    ways: dict[str, Callable[[], float]] = {
        BARE: partial(_bare, vllm, requests),
        OURS: ours,
        TRANSFORMERS: partial(_explore, server, model, Observed(in_process), number),
        BATCH: partial(_batch, load_model(model, "cpu"), requests),
    }
    shown = {name: partial(_said, context, name, way) for name, way in ways.items()}
    found = in_turns(shown, context.repetitions)
    return [
        *(figure(MEASURE, name, VARIANT, "tokens/s", values) for name, values in found.items()),
        ratio(MEASURE, VARIANT, found[OURS], found[BARE], BARE, Bar(0.9), alternated=True),
        ratio(MEASURE, VARIANT, found[OURS], found[BATCH], BATCH, Bar(2), alternated=True),
        ratio(MEASURE, VARIANT, found[OURS], found[TRANSFORMERS], TRANSFORMERS, alternated=True),
    ]


def _said(context: Context, name: str, way: Callable[[], float]) -> float:
    rate = way()
    context.say(f"{name}: {rate:,.0f} tokens/s")
    return rate


def _explore(server: Server, model: Path, engine: Observed, number: int) -> float:
    """Our explorer, on a new store."""
    scene = Scene.open(server.new_store(), model)
    server.settle()
    with closing(Database(scene.url, LEASE_SECONDS)) as database:
        with database.transaction() as tx:
            found = runs.find(tx, RUN)
        config = ExplorerConfig(group_size=GROUP_SIZE, concurrency=IN_FLIGHT)
        explorer = Explorer(
            database,
            found,
            config,
            attempt,
            engine,
            groups.Pace(max_staleness=0, per_version=number // GROUP_SIZE),
            Selection({scene.taskset_id: 1.0}, seed=0, walk="sequential"),
            PromptConfig(prompt_template="{prompt}"),
            RecordedPlaces(checkpoints=Path("/")),
        )
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
    """A client that keeps as many requests in flight, and reads the answers."""

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
    """A batch that waits for its longest response. What goes beyond a response's limit does not count."""
    batch = requests[:IN_FLIGHT]
    began = time.perf_counter()
    longest = max(len(request.prompt_ids) for request in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(batch):
        ids[row, longest - len(request.prompt_ids) :] = torch.tensor([*request.prompt_ids])
        mask[row, longest - len(request.prompt_ids) :] = 1
    said = model.generate(
        ids,
        attention_mask=mask,
        do_sample=True,
        top_k=0,
        max_new_tokens=max(request.max_new_tokens for request in batch),
    )[:, longest:]
    end, tokens = model.generation_config.eos_token_id, 0
    for request, row in zip(batch, said.tolist(), strict=True):
        kept = row[: request.max_new_tokens]
        tokens += kept.index(end) + 1 if end in kept else len(kept)
    return tokens / (time.perf_counter() - began)
