"""A step of the learner and a step of one of TRL's trainers, and how far apart they leave the weights.

Both start from the same tiny random model in float32 on the CPU and take one step of plain gradient
descent at rate 1, so that what changes is the gradient that each computed, from token numbers to
weights. What a trainer of TRL has made of its data set, or sampled, is what the learner gets.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from tests.others.peers.cases import DIFFERENCES
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch, load_model
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner

STEP_TOLERANCE = 1e-5  # float32; the weights' changes are up to 1
REPORTED = ["loss", *(f"rewards/{name}" for name in ("chosen", "rejected", "margins", "accuracies"))]
"""Metrics that mean the same in TRL."""
ALGORITHM: TypeAdapter[Any] = TypeAdapter(AlgorithmConfig)

os.environ["CI"] = "1"  # so that TRL does not report that it is used


class Models(NamedTuple):
    """Folders of two models of one kind, with different weights."""

    start: Path
    reference: Path


def build_models(folder: Path) -> Models:
    models = Models(folder / "start", folder / "reference")
    for seed, path in enumerate(models):
        build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=32, context=64), seed, path)
    return models


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    """One step of gradient descent, in two micro-batches."""
    return {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "optim": "sgd",
        "learning_rate": 1.0,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "report_to": [],
        "seed": 1,  # samples responses of 1 to 8 tokens
        "save_strategy": "no",
        "disable_tqdm": True,
    } | more


class Step(NamedTuple):
    """What a step did and said."""

    change: Tensor
    """What became of all weights, one after the other."""
    metrics: dict[str, float]


def trained(trainer: Any) -> list[dict[str, Any]]:
    """Take the step of a trainer; what its loss was computed of, micro-batch by micro-batch."""
    seen: list[dict[str, Any]] = []
    compute = trainer.compute_loss

    def recorded(model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
        seen.append({name: value.clone() for name, value in inputs.items() if isinstance(value, Tensor)})
        return compute(model, inputs, *args, **options)

    trainer.compute_loss = recorded
    trainer.train()
    return seen


def their_step(trainer: Any, models: Models) -> Step:
    """The step that the trainer has taken."""
    return Step(_change(trainer.model, models), trainer.state.log_history[0])


def our_step(models: Models, algorithm: Any, batch: Batch) -> Step:
    """A step of the learner."""
    one = learner(algorithm, models.start, models.reference)
    metrics = one.step(batch)
    return Step(_change(one.policy.model, models), metrics)


def learner(algorithm: Any, model: Path, start: Path | None = None, **settings: Any) -> Learner:
    """One that takes steps of gradient descent at rate 1; its micro-batches are other ones than TRL's."""
    plain = {"learning_rate": 1.0, "max_grad_norm": 1e9, "micro_batch_size": 3, "optimizer": "sgd"}
    return Learner(
        TrainerConfig.model_validate(plain | settings),
        ALGORITHM.validate_python(algorithm),
        model,
        total_steps=1,
        reference=start,
        device="cpu",
    )


def agree(name: str, ours: Step, theirs: Step) -> None:
    """Hold two steps together. The largest difference of weights is shown at the end of the run."""
    largest = float((ours.change - theirs.change).abs().max())
    DIFFERENCES[f"step {name}", "TRL"] = max(largest, DIFFERENCES.get((f"step {name}", "TRL"), 0.0))
    assert theirs.change.abs().max() > 1e-2
    assert largest < STEP_TOLERANCE, f"a step of {name} differs from TRL's by {largest}"
    reported = {metric: theirs.metrics[metric] for metric in REPORTED if metric in theirs.metrics}
    assert {metric: ours.metrics[metric] for metric in reported} == pytest.approx(
        reported, rel=1e-5, abs=1e-5
    )


def _change(model: Any, models: Models) -> Tensor:
    return moved(model.parameters(), load_model(models.start, "cpu").parameters())


def moved(after: Iterable[Tensor], before: Iterable[Tensor]) -> Tensor:
    """What has become of all weights, one after the other."""
    pairs = zip(after, before, strict=True)
    return torch.cat([(now - earlier).detach().flatten() for now, earlier in pairs])


def payload(tokens: Tensor, attention: Tensor, trains: Tensor, logprobs: Tensor | None = None) -> Payload:
    """A row of a padded batch without its padding."""
    kept = attention.bool()
    mask = trains[kept].bool().numpy()
    arrays = (tokens[kept].numpy().astype(np.int32), mask)
    if logprobs is None:
        return Payload(*arrays)
    return Payload(*arrays, logprobs.numpy().astype(np.float32), np.zeros(int(mask.sum()), np.int32))
