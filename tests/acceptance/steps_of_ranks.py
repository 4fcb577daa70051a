"""Whole optimizer steps of every kind, by one process or by several: `torchrun steps_of_ranks.py FOLDER`.

What comes of them is written by the first rank, for a test to hold against what one process comes to. In the
folder lie the models `start` and `moved`, and in `alone/two` a checkpoint of one process.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.recipes import recipe
from trinity_db.arrays import Payload
from trinity_db.models import load_tokenizer
from trinity_db.trainer.checkpoints import checkpoint
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.distribution import ranks
from trinity_db.trainer.distribution.ranks import Ranks
from trinity_db.trainer.distribution.sharding import whole_tensors
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Abandoned, Learner, NonFiniteLoss

PROXIMAL = {"correction": "truncated_importance_sampling", "kl": {"name": "k3", "coefficient": 0.3}}
ALGORITHMS: dict[str, tuple[AlgorithmConfig, dict[str, Any]]] = {
    "grpo": (recipe("grpo", **PROXIMAL), {}),
    "dpo": (recipe("dpo"), {}),
    "sft": (recipe("sft"), {}),
    "clipped": (recipe("sft"), {"max_grad_norm": 0.01}),
    "kto": (recipe("kto"), {}),
    "ppo": (recipe("ppo"), {}),
    "raft": (recipe("raft"), {}),
    "reinforce_plus_plus": (recipe("reinforce_plus_plus"), {}),
    "mix": (recipe("mix", mu=0.4, **PROXIMAL), {}),
    "recomputed": (recipe("gspo"), {"gradient_checkpointing": True, "micro_batch_size": 3}),
    "lora": (recipe("dpo"), {"lora": {"rank": 2}}),
    "synchronised": (recipe("dpo"), {"reference": {"name": "synchronised", "sync_every": 1, "mix": 0.5}}),
}
SIZES = {"even": 8, "uneven": 6, "fewer than ranks": 2}
SAVED = ("ppo", "lora", "synchronised")
"""Those whose checkpoints are more than a model."""


def batch(size: int, seed: int = 0) -> Batch:
    """Rows of random tokens and lengths."""
    rng = np.random.default_rng(seed)
    payloads = []
    for _ in range(size):
        mask = np.arange(int(rng.integers(5, 14))) > 2
        tokens = rng.integers(0, 10, len(mask)).astype(np.int32)
        logprobs = rng.normal(-2.3, 0.3, int(mask.sum())).astype(np.float32)
        payloads.append(Payload(tokens, mask, logprobs, np.zeros(len(logprobs), np.int32)))
    columns = {
        "advantages": rng.normal(size=size),
        "rewards": rng.normal(size=size),
        "groups": np.arange(size) // 2,
        "staleness": np.arange(size) % 3,
        "weight": rng.uniform(0.5, 1.0, size),
        "is_expert": np.arange(size) % 3 == 2,
    }
    return Batch(payloads, columns)


def learner(of: Ranks, folder: Path, name: str, model: str = "start", **settings: Any) -> Learner:
    algorithm, own = ALGORITHMS[name]
    config = {"learning_rate": 1e-4, "micro_batch_size": 2} | own | settings
    torch.manual_seed(0)
    return Learner(
        TrainerConfig.model_validate(config),
        algorithm,
        folder / model,
        total_steps=10,
        reference=folder / ("start" if {"lora", "reference"} & config.keys() else "moved"),
        device="cpu",
        ranks=of,
    )


def step(one: Learner, rows: Batch) -> dict[str, Any]:
    """What a step comes to."""
    metrics = one.step(rows)
    gradients = [parameter.grad for parameter in one.policy.parameters()]
    return {"metrics": metrics, "gradients": whole_tensors(gradients, one.ranks)}


def save(one: Learner, folder: Path) -> None:
    tokenizer = load_tokenizer(folder.parents[1] / "start")
    if one.ranks.rank == 0:
        checkpoint.save(folder, one, tokenizer)
    else:
        with one.ready_to_save():
            pass


def resumed(of: Ranks, folder: Path, model: str, **settings: Any) -> Learner:
    one = learner(of, folder, "dpo", model, **settings)
    checkpoint.load_state(folder / model, one)
    return one


def steps(of: Ranks, folder: Path, sharding: str, saved: Path) -> dict[str, dict[str, Any]]:
    """Of each algorithm two steps and an evaluation, and checkpoints of some; of one a step at each size."""
    results = {}
    for name in ALGORITHMS:
        one = learner(of, folder, name, sharding=sharding)
        results[name] = step(one, batch(6))
        results[f"{name}, again"] = step(one, batch(6, seed=1))
        results[f"{name}, evaluated"] = {"metrics": one.evaluate(batch(4, seed=2))}
        if name in SAVED:
            save(one, saved / name)
    for name, size in SIZES.items():
        results[name] = step(learner(of, folder, "dpo", sharding=sharding), batch(size))
    nothing = Batch(batch(4).payloads, {"advantages": np.zeros(4)})
    results["nothing to learn"] = step(learner(of, folder, "raft", sharding=sharding), nothing)
    return results


def failures(of: Ranks, folder: Path, sharding: str) -> list[list[str]]:
    """What each rank raises where only the first one wants to stop, and where one row has no finite loss."""
    raised = []
    one = learner(of, folder, "sft", sharding=sharding)
    one._should_stop = lambda: of.rank == 0
    rows = batch(8)
    try:
        one.step(rows)
    except Abandoned:
        raised.append("Abandoned")
    one._should_stop = lambda: False
    bad = learner(of, folder, "grpo", sharding=sharding)
    columns = {**rows.columns, "advantages": np.where(np.arange(8) == 3, np.nan, 1.0)}
    try:
        bad.step(Batch(rows.payloads, columns))
    except NonFiniteLoss:
        raised.append("NonFiniteLoss")
    raised.append(str(one.step(rows)["loss"]))
    return of.gather(raised)


def assert_same_weights(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, atol=1e-5, rtol=0, msg=name)


def main(folder: Path) -> None:
    ranks.BUCKET = 1000  # so that the gradients of so small a model are several messages too
    with ranks.join_ranks() as of:
        found: dict[str, Any] = {}
        for sharding in ("none", "full"):
            found[sharding] = steps(of, folder, sharding, folder / sharding)
            found[f"{sharding}, failures"] = failures(of, folder, sharding)
            one = resumed(of, folder, "alone/two", sharding=sharding)
            found[f"{sharding}, resumed"] = step(one, batch(6, seed=3))
            save(one, folder / sharding / "resumed")
        if of.rank == 0:
            torch.save(found, folder / "found.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
