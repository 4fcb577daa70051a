"""Metrics of a step's rows and time. The algorithms compute the metrics of their losses.

Names and meanings are those of TRL 1.16 if it has the metric; the throughput is verl's.
docs/reference/metrics.md lists all metrics.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_db.models.computing import peak_bytes
from trinity_db.store.metrics import Outcomes
from trinity_db.trainer.learner.gathered_columns import Batch


def of_rollouts(batch: Batch, outcomes: Outcomes) -> dict[str, float]:
    """Compute rewards, lengths and staleness of the rollout groups in a batch.

    Expert rows are excluded, and so are rows with weight 0, which only serve as a comparison for others.
    """
    live = ~batch.columns.get("is_expert", np.zeros(len(batch.payloads), np.bool_))
    live &= batch.columns.get("weight", np.ones(len(batch.payloads))) > 0
    lengths = [payload.num_trained for payload, is_live in zip(batch.payloads, live, strict=True) if is_live]
    metrics: dict[str, Any] = {
        "completions/mean_length": np.mean(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
    }
    if outcomes.clipped is not None:
        metrics["completions/clipped_ratio"] = outcomes.clipped
    if "rewards" in batch.columns:  # missing in a run that learns only from a teacher
        metrics |= _of_rewards(batch.columns["rewards"][live], batch.columns["groups"][live])
    for name, (mean, deviation) in outcomes.rewards.items():
        metrics |= {f"rewards/{name}/mean": mean, f"rewards/{name}/std": deviation}
    if "staleness" in batch.columns:
        staleness = batch.columns["staleness"][live]
        metrics |= {"sample/staleness_mean": staleness.mean(), "sample/staleness_max": staleness.max()}
    return {name: float(value) for name, value in metrics.items()}


def of_time(batch: Batch, *, waited: float, computed: float, ranks: int) -> dict[str, float]:
    """Compute seconds of waiting and of computing; tokens, prompts included, per second of both and per
    process."""
    num_tokens = sum(payload.num_tokens for payload in batch.payloads)
    return {
        "time/wait_for_batch": waited,
        "time/step": computed,
        "step_time": waited + computed,
        "perf/throughput": num_tokens / (waited + computed) / ranks,
    }


def of_memory(device: str) -> dict[str, float]:
    """Return the peak memory of tensors on this rank's GPU since the last call. Empty on a CPU."""
    most = peak_bytes(device)
    return {} if most is None else {"memory/peak_gigabytes": most / 1e9}


def short(metrics: dict[str, float]) -> str:
    """Format metrics as one line for the log."""
    return ", ".join(f"{name} {value:.3g}" for name, value in metrics.items())


def _of_rewards(rewards: NDArray[np.float64], groups: NDArray[np.int64]) -> dict[str, float]:
    """Compute mean and deviation, and the share of rows in groups with equal rewards, which have advantage
    0."""
    _, places = np.unique(groups, return_inverse=True)
    lowest, highest = np.full(places.max() + 1, np.inf), np.full(places.max() + 1, -np.inf)
    np.minimum.at(lowest, places, rewards)
    np.maximum.at(highest, places, rewards)
    return {
        "reward": rewards.mean(),
        "reward_std": rewards.std(ddof=1) if len(rewards) > 1 else 0.0,
        "frac_reward_zero_std": np.isclose(lowest, highest, rtol=0)[places].mean(),
    }
