"""Metrics of a step's rows and of its time. The algorithms compute the metrics of their losses.

Names and meanings are those of TRL 1.16 where it has the metric; the throughput is verl's.
docs/reference/metrics.md lists all metrics.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_db.models.computing import peak_bytes
from trinity_db.store.metrics import Outcomes
from trinity_db.trainer.learner.gathered_columns import Batch


def of_rollouts(batch: Batch, outcomes: Outcomes) -> dict[str, float]:
    """Rewards, lengths and staleness of the rollout groups in a batch.

    Expert rows do not count. Rows with weight 0 do not count either: other rows are only compared with them.
    """
    live = ~batch.columns.get("is_expert", np.zeros(len(batch.payloads), np.bool_))
    live &= batch.columns.get("weight", np.ones(len(batch.payloads))) > 0
    lengths = [payload.num_trained for payload, is_live in zip(batch.payloads, live, strict=True) if is_live]
    found: dict[str, Any] = {
        "completions/mean_length": np.mean(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
    }
    if outcomes.clipped is not None:
        found["completions/clipped_ratio"] = outcomes.clipped
    if "rewards" in batch.columns:  # a run that learns from a teacher alone has none
        found |= _of_rewards(batch.columns["rewards"][live], batch.columns["groups"][live])
    for name, (mean, deviation) in outcomes.rewards.items():
        found |= {f"rewards/{name}/mean": mean, f"rewards/{name}/std": deviation}
    if "staleness" in batch.columns:
        staleness = batch.columns["staleness"][live]
        found |= {"sample/staleness_mean": staleness.mean(), "sample/staleness_max": staleness.max()}
    return {name: float(value) for name, value in found.items()}


def of_time(batch: Batch, *, waited: float, computed: float, ranks: int) -> dict[str, float]:
    """Seconds of waiting and of computing; tokens, prompts included, per second of both and per process."""
    num_tokens = sum(payload.num_tokens for payload in batch.payloads)
    return {
        "time/wait_for_batch": waited,
        "time/step": computed,
        "step_time": waited + computed,
        "perf/throughput": num_tokens / (waited + computed) / ranks,
    }


def of_memory(device: str) -> dict[str, float]:
    """The most memory of this rank's GPU that tensors took since the last call. Nothing on a CPU."""
    most = peak_bytes(device)
    return {} if most is None else {"memory/peak_gigabytes": most / 1e9}


def short(metrics: dict[str, float]) -> str:
    """Metrics in one line of the log."""
    return ", ".join(f"{name} {value:.3g}" for name, value in metrics.items())


def _of_rewards(rewards: NDArray[np.float64], groups: NDArray[np.int64]) -> dict[str, float]:
    """Mean and deviation, and the share of rows in groups with equal rewards: such rows have advantage 0."""
    _, places = np.unique(groups, return_inverse=True)
    lowest, highest = np.full(places.max() + 1, np.inf), np.full(places.max() + 1, -np.inf)
    np.minimum.at(lowest, places, rewards)
    np.maximum.at(highest, places, rewards)
    return {
        "reward": rewards.mean(),
        "reward_std": rewards.std(ddof=1) if len(rewards) > 1 else 0.0,
        "frac_reward_zero_std": np.isclose(lowest, highest, rtol=0)[places].mean(),
    }
