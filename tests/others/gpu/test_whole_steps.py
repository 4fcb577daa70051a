"""Whole optimizer steps on the device against the same steps on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.others.gpu import models
from tests.support.recipes import recipe
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner

WAYS: dict[str, dict[str, Any]] = {
    "all weights": {},
    "an adapter": {"lora": {"rank": 4}},
    "recomputed": {"gradient_checkpointing": True},
}


def stepped(
    folder: Path, device: str, algorithm: str, settings: dict[str, Any]
) -> tuple[torch.Tensor, float]:
    """All trained weights after a step, and the norm of its gradient."""
    payloads = models.rows((130, 40, 64, 90))
    columns = {"advantages": np.array([1.0, -1.0, 0.5, -0.5])} if algorithm == "grpo" else {}
    torch.manual_seed(0)
    config = TrainerConfig.model_validate({"dtype": "float32", "learning_rate": 1e-3, **settings})
    one = Learner(config, recipe(algorithm), folder, total_steps=1, device=device)
    metrics = one.step(Batch(payloads, columns))
    return torch.cat([each.detach().cpu().flatten() for each in one.policy.parameters()]), metrics[
        "grad_norm"
    ]


@pytest.mark.parametrize("algorithm", ["grpo", "dpo"])
@pytest.mark.parametrize("way", WAYS)
def test_a_step_is_that_of_the_cpu(way: str, algorithm: str, device: str, tmp_path: Path) -> None:
    folder = models.build("qwen2", tmp_path)
    expected, expected_norm = stepped(folder, "cpu", algorithm, WAYS[way])
    found, norm = stepped(folder, device, algorithm, WAYS[way])
    assert norm == pytest.approx(expected_norm, rel=1e-3)
    # Adam's first step moves each weight by the learning rate: a gradient near 0 decides by its sign alone.
    moved = (found - expected).abs()
    assert float((moved > 1e-4).float().mean()) < 0.02
    assert float(moved.max()) < 2.1e-3
