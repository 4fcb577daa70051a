"""docs/reference/metrics.md names what is measured: every name that some algorithm yields, and no other."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.recipes import WITH_A_LOSS, recipe
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch
from trinity_db.store.metrics import Outcomes
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner
from trinity_db.trainer.rows.step_metrics import of_rollouts, of_time

TEXT = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()
DOCUMENTED = set(re.findall(r"^\| `([^`]+)` \|", TEXT, re.MULTILINE))
OUTSIDE = {
    *("epoch", "eval/NAME", "refused/batches", "draw/missing/NAME", "memory/peak_gigabytes"),
    *("explore/seconds", "explore/time", "explore/tokens_per_second", "explore/wait_for_training"),
    *("eval/TASKSET/mean@K", "eval/TASKSET/best@K", "eval/TASKSET/failed"),
    *("eval/TASKSET/pass@1", "eval/TASKSET/pass@K"),
    *("aux_loss", "sampling/routing_differs", "loss_scale"),
    *("publish/visible", "publish/visible_last_ten", "publish/changed", "publish/noise"),
}
"""What the services measure, not a step, and what only mixtures of experts and float16 have."""

OTHERS = {
    "corrected": recipe("grpo", correction="truncated_importance_sampling"),
    "masked": recipe("cispo", mask_clipped=True),
    "adaptive": recipe("grpo", kl={"name": "k3", "coefficient": 0.1, "target": 0.01}),
}
ALGORITHMS = {name: recipe(name) for name in WITH_A_LOSS} | OTHERS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_scratch(ScratchConfig(alphabet="01", hidden_size=8, heads=1, layers=1, context=16), 3, folder)
    return folder


def batch(draws: str, has_experts: bool) -> Batch:
    """Four rows of two groups with every column that a metric reads, and perhaps two of an expert."""
    rng = np.random.default_rng(0)
    size = 6 if has_experts else 4
    mask = np.array([False, True, True, True])
    payloads = [
        Payload(
            rng.integers(0, 2, 4).astype(np.int32), mask, np.full(3, -0.7, np.float32), np.zeros(3, np.int32)
        )
        for _ in range(size)
    ]
    columns: dict[str, Any] = {
        "advantages": rng.normal(size=size),
        "rewards": np.array([1.0, 0.0, 0.5, -0.5, 0.0, 0.0])[:size],
        "groups": np.arange(size) // 2,
        "rollouts": np.arange(size),
        "steps": np.zeros(size, np.int64),
        "states": np.zeros(size, np.int64),
        "greedy": np.zeros(size, np.bool_),
        "shares_reward": np.zeros(size, np.bool_),
        "staleness": np.arange(size) % 2,
    }
    if draws != "groups":
        columns = {"rewards": columns["rewards"]}
    if has_experts:
        columns["is_expert"] = np.arange(size) >= 4
    said = {"teacher": [np.full(3, -0.6, np.float32)] * size} if draws == "groups" else {}
    return Batch(payloads, columns, said, version=0)


def measured(model: Path, algorithm: AlgorithmConfig, updates: int) -> set[str]:
    """The names of what a step yields, those of reward functions and expert rows as documented."""
    config = TrainerConfig(updates_per_batch=updates)
    learner = Learner(config, algorithm, model, total_steps=1, device="cpu")
    rows = batch(algorithm.draws, "is_expert" in learner.algorithm.needs)
    found = learner.step(rows) | of_time(rows, waited=1.0, computed=1.0, ranks=1)
    if algorithm.draws == "groups":
        found |= of_rollouts(rows, Outcomes(0.5, {"NAME": (0.5, 0.5)}))
    names = {"expert/NAME" if name.startswith("expert/") else name for name in found}
    return {re.sub(r"/update_\d$", "/update_N", name) for name in names}


def test_every_name_that_a_step_yields_is_documented_and_each_documented_one_is_yielded(model: Path) -> None:
    yielded = {
        name: measured(model, algorithm, updates=2 if name == "ppo" else 1)
        for name, algorithm in ALGORITHMS.items()
    }
    undocumented = {name: names - DOCUMENTED for name, names in yielded.items() if names - DOCUMENTED}
    assert undocumented == {}
    assert set().union(*yielded.values()) | OUTSIDE == DOCUMENTED
