"""Optimizer steps and publications of our learner, in a process that does nothing else."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from benchmarks import trained
from trinity_db.arrays import Payload
from trinity_db.models import load_tokenizer
from trinity_db.trainer.checkpoints import checkpoint, version, writing
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner


def prepare(asked: dict[str, Any]) -> Callable[[], list[dict[str, float]]]:
    """Load, and make the first step.

    Args:
        asked: as `peers/frame.py` says of the operation `train`. `publish` names the folders of versions to
            publish after the steps, with one more step between two.

    Returns:
        what makes the steps that are timed; each has seconds, tokens, and megabytes `loaded` and `peak`. The
        last one has `publish_pause` and `publish_seconds`: until the next step may begin, and until a version
        and its checkpoint are safe; `publish_bytes`, and `publish_above`, megabytes above those before it.
    """
    device = asked.get("device", "cpu")
    if device == "cpu":
        torch.set_num_threads(1)
    made = trained.batch(asked["rows"], asked["vocabulary"])
    payloads = [
        Payload(row.token_ids, row.action_mask, row.logprobs, np.zeros(len(row.logprobs), np.int32))
        for row in made.rows
    ]
    is_grpo = asked["algorithm"] == "grpo"
    batch = Batch(payloads, {"advantages": made.advantages} if is_grpo else {})
    learner = Learner(
        TrainerConfig(
            learning_rate=trained.LEARNING_RATE,
            micro_batch_size=asked["micro_batch_size"],
            **asked.get("settings", {}),
        ),
        TypeAdapter(AlgorithmConfig).validate_python(asked["algorithm"]),
        Path(asked["model"]),
        total_steps=asked["steps"] + 1,
        device=device,
    )
    loaded = trained.resident_megabytes(device)
    learner.step(batch)

    def timed() -> list[dict[str, float]]:
        found: list[dict[str, float]] = []
        for _ in range(asked["steps"]):
            start = time.perf_counter()
            learner.step(batch)
            found.append({"seconds": time.perf_counter() - start, "tokens": made.tokens})
        memory = {"peak": trained.peak_megabytes(device), "loaded": loaded}
        found = [step | memory for step in found]
        for number, folder in enumerate(asked.get("publish", ())):
            if number:
                learner.step(batch)
            found[-1] |= _published(learner, Path(asked["model"]), Path(folder))
        return found

    return timed


def _published(learner: Learner, model: Path, folder: Path) -> dict[str, float]:
    """Publish, as the trainer does after a step. The memory is that of the process, not of the GPU."""
    tokenizer, before = load_tokenizer(model), trained.resident_megabytes()
    start = time.perf_counter()
    place = folder.with_name(f"checkpoint-of-{folder.name}")
    aside = writing.aside_of(place)
    with trained.Watch() as watch:
        weights = version.begin(folder, learner, tokenizer)
        part = checkpoint.begin_part(place, aside, learner)
        pause = time.perf_counter() - start
        weights.digest()
        checkpoint.finish(place, aside, [checkpoint.outcome(part)])
    seconds = time.perf_counter() - start
    files = [path for where in (folder, place) for path in where.rglob("*") if path.is_file()]
    written = sum(path.stat().st_size for path in files)
    return {
        "publish_pause": pause,
        "publish_seconds": seconds,
        "publish_bytes": written,
        "publish_above": watch.peak - before,
    }
