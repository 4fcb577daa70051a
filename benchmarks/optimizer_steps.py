"""Optimizer steps of our learner in a separate process."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from benchmarks import trained
from trinity_db.arrays.codec import Payload
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner


def learner_and_batch(specification: dict[str, Any]) -> tuple[Learner, Batch]:
    """Load a learner and make its batch by a specification of `train` in `peers/frame.py`."""
    made = trained.batch(specification["rows"], specification["vocabulary"])
    payloads = [
        Payload(row.token_ids, row.action_mask, row.logprobs, np.zeros(len(row.logprobs), np.int32))
        for row in made.rows
    ]
    is_grpo = specification["algorithm"] == "grpo"
    batch = Batch(payloads, {"advantages": made.advantages} if is_grpo else {})
    learner = Learner(
        TrainerConfig(
            learning_rate=trained.LEARNING_RATE,
            micro_batch_size=specification["micro_batch_size"],
            **specification.get("settings", {}),
        ),
        TypeAdapter(AlgorithmConfig).validate_python(specification["algorithm"]),
        Path(specification["model"]),
        total_steps=specification["steps"] + 1,
        device=specification.get("device", "cpu"),
    )
    return learner, batch


def prepare(specification: dict[str, Any]) -> Callable[[], list[dict[str, float]]]:
    """Load a learner and make the first step.

    Returns:
        A function that makes the timed steps and returns their seconds, tokens, and megabytes `loaded` and
        `peak`.
    """
    device = specification.get("device", "cpu")
    if device == "cpu":
        torch.set_num_threads(1)
    learner, batch = learner_and_batch(specification)
    tokens = sum(len(row.token_ids) for row in batch.payloads)
    loaded = trained.resident_megabytes(device)
    learner.step(batch)
    trained.synchronize(device)

    def timed() -> list[dict[str, float]]:
        steps: list[dict[str, float]] = []
        for _ in range(specification["steps"]):
            start = time.perf_counter()
            learner.step(batch)
            trained.synchronize(device)
            steps.append({"seconds": time.perf_counter() - start, "tokens": tokens})
        memory = {"peak": trained.peak_megabytes(device), "loaded": loaded}
        return [step | memory for step in steps]

    return timed
