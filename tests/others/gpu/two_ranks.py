"""A step of two ranks by each way of sharing weights: torchrun runs it with MODEL and RESULT."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.others.gpu import models
from tests.support.recipes import recipe
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.distribution.ranks import Ranks, end_process, join_ranks
from trinity_db.trainer.distribution.sharding import whole_tensors
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner

SHARDINGS = ("none", "full")


def step(folder: Path, sharding: str, ranks: Ranks, device: str | None) -> dict[str, Any]:
    """Metrics and gradients of one step of GRPO in float32."""
    settings = {"dtype": "float32", "sharding": sharding, "micro_batch_size": 2, "max_grad_norm": 1e9}
    config = TrainerConfig.model_validate(settings)
    one = Learner(config, recipe("grpo"), folder, total_steps=1, device=device, ranks=ranks)
    advantages = np.array([1.0, -1.0, 0.5, -0.5, 0.25])
    metrics = one.step(Batch(models.rows(), {"advantages": advantages}))
    gradients = whole_tensors([parameter.grad for parameter in one.policy.parameters()], ranks)
    return {"metrics": metrics, "gradients": gradients}


def main(folder: Path, result: Path) -> None:
    with join_ranks() as ranks:
        found = {sharding: step(folder, sharding, ranks, None) for sharding in SHARDINGS}
        if ranks.rank == 0:
            torch.save(found, result)
    end_process(ranks)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
