"""How long a version takes: until training continues, until it is durable, and until an engine uses it."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import trained
from benchmarks.context import Context
from benchmarks.gpu import speed
from benchmarks.gpu.measurement import Row, alone
from benchmarks.optimizer_steps import learner_and_batch
from trinity_db.explorer.engines.engine import Request
from trinity_db.explorer.engines.transformers_engine import TransformersEngine
from trinity_db.models import load_tokenizer
from trinity_db.trainer.checkpoints import checkpoint, version, writing


def measure(context: Context, name: str, model: Path, device: str) -> Iterator[Row]:
    """Publish in both number formats; a large model only its adapter."""
    way = next(iter(speed.SIZES[name].ways))
    for dtype in ("float32", "bfloat16"):
        specification = speed.specification_of(name, "grpo", way, model, device)
        specification["settings"] |= {"publish_dtype": dtype}
        specification["settings"] |= {"publish": "adapter"} if "lora" in specification["settings"] else {}
        yield alone(
            context, name, f"{way}, {dtype}", published, specification | {"scratch": str(context.scratch)}
        )


def published(specification: dict[str, Any]) -> dict[str, float]:
    """Publish twice, because the first version loads libraries."""
    model, device = Path(specification["model"]), specification["device"]
    learner, batch = learner_and_batch(specification)
    learner.step(batch)
    tokenizer = load_tokenizer(model)
    with TemporaryDirectory(prefix="trinity-db-gpu-version-", dir=specification["scratch"]) as scratch:
        folders = [Path(scratch) / f"version-{number}" for number in range(2)]
        for folder in folders:
            state = Path(scratch) / f"checkpoint-{folder.name}"
            aside = writing.aside_of(state)
            trained.synchronize(device)
            start = time.perf_counter()
            weights = version.begin(folder, learner, tokenizer)
            part = checkpoint.begin_part(state, aside, learner)
            pause = time.perf_counter() - start
            weights.digest()
            durable = time.perf_counter() - start
            checkpoint.finish(state, aside, [checkpoint.outcome(part)])
        num_bytes = sum(file.stat().st_size for file in folders[-1].rglob("*") if file.is_file())
        del learner
        figures = {"s paused": pause, "s version": durable, "GB": num_bytes / 1e9}
        return figures | {"s next token": asyncio.run(_next_token(folders, device))}


async def _next_token(folders: list[Path], device: str) -> float:
    """Return the seconds until an engine with an older version has sampled a token with the next."""
    engine = TransformersEngine(device)
    try:
        for number, folder in enumerate(folders):
            start = time.perf_counter()
            await engine.load(folder, number)
            await engine.generate(Request(list(range(2, 18)), 1, 1.0, 0))
        return time.perf_counter() - start
    finally:
        engine.close()
