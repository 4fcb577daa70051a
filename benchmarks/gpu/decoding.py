"""The engine `transformers`: sampled tokens per second, and a floor of the cost of a token.

The floor is the same model with a KV cache of fixed size, as one CUDA graph per token, which also samples.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, StaticCache

from benchmarks import trained
from benchmarks.context import Context
from benchmarks.gpu import speed
from benchmarks.gpu.measurement import Row, alone, milliseconds
from trinity_db.explorer.engines.engine import Request
from trinity_db.explorer.engines.transformers_engine import TransformersEngine
from trinity_db.models.libraries import computing_dtype

COUNTS = {"cuda": (64, 256), "cpu": (4,)}  # requests at once
PROMPT, RESPONSE = {"cuda": 128, "cpu": 16}, {"cuda": 160, "cpu": 8}  # tokens
CACHE_TOKENS = 1 << 20  # all requests at once


def measure(context: Context, name: str, model: Path, device: str) -> Iterator[Row]:
    """Yield a row of the engine and of the floor for each number of requests."""
    vocabulary = speed.SIZES[name].size.vocabulary
    for count in COUNTS[device]:
        arguments = (model, vocabulary, count, device)
        yield alone(context, name, f"{count} requests, long-tailed lengths", sampled, arguments)
        title = f"{count} rows, static KV cache{' and CUDA graph' if device == 'cuda' else ''}"
        yield alone(context, name, title, graphed, arguments, "floor")


def requests(vocabulary: int, count: int, device: str) -> list[Request]:
    """Return requests with random prompts and long-tailed limits of length."""
    rng = np.random.default_rng(0)
    limits = np.clip(rng.lognormal(np.log(RESPONSE[device] / 2), 0.7, count), 4, RESPONSE[device])
    lengths = rng.integers(PROMPT[device] // 2, PROMPT[device], count)
    return [
        Request(rng.integers(2, vocabulary, int(length)).tolist(), int(limit), 1.0, seed)
        for seed, (length, limit) in enumerate(zip(lengths, limits, strict=True))
    ]


def sampled(arguments: tuple[Path, int, int, str]) -> dict[str, float]:
    """Sample all requests with the engine, twice; the second time counts."""
    model, vocabulary, count, device = arguments
    engine, all_requests = TransformersEngine(device, CACHE_TOKENS), requests(vocabulary, count, device)

    async def work() -> tuple[int, int, float]:
        await engine.load(model, 0)
        engine._end_tokens = frozenset()  # random weights would end responses by chance
        await asyncio.gather(*map(engine.generate, all_requests[:4]))
        start = time.perf_counter()
        responses = await asyncio.gather(*map(engine.generate, all_requests))
        seconds = time.perf_counter() - start
        lengths = [len(response.token_ids) for response in responses]
        return sum(lengths), max(lengths), seconds

    try:
        tokens, longest, seconds = asyncio.run(work())
    finally:
        engine.close()
    figures = {"tokens/s": tokens / seconds, "ms per token": 1e3 * seconds / longest}
    return figures | {"peak GB": trained.peak_megabytes(device) / 1e3}


@torch.inference_mode()
def graphed(arguments: tuple[Path, int, int, str]) -> dict[str, float]:
    """Decode with a static cache; on a GPU replay a CUDA graph."""
    folder, vocabulary, count, device = arguments
    dtype, prompt = computing_dtype("auto", device), PROMPT[device]
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
    width = prompt + RESPONSE[device]
    cache = StaticCache(config=model.config, max_cache_len=width)
    columns = torch.arange(width, device=device)
    tokens = torch.randint(2, vocabulary, (count, 1), device=device)
    position = torch.full((count, 1), prompt, device=device)

    def step() -> None:
        mask = (columns <= position[0]).expand(count, 1, 1, width)
        logits = model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=position,
            past_key_values=cache,
            logits_to_keep=1,
        ).logits[:, -1]
        log_p = logits.float().log_softmax(-1)
        noise = torch.rand_like(log_p).clamp_(1e-20, 1 - 1e-7).log_().neg_().log_().neg_()  # Gumbel
        tokens.copy_((log_p + noise).argmax(-1, keepdim=True))
        position.add_(1).clamp_(max=width - 1)

    repeated = step
    step()
    if device == "cuda":
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            step()
        repeated = graph.replay
    trained.synchronize(device)
    cost = milliseconds(repeated, device)
    return {
        "tokens/s": 1e3 * count / cost,
        "ms per token": cost,
        "peak GB": trained.peak_megabytes(device) / 1e3,
    }
