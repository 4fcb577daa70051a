"""Rows that a policy of four updates ago sampled: what it costs not to correct for it.

The steps are the trainer's own, without a store between them, so that each row is stale by exactly four.
"""

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.acceptance.command import Store
from tests.others.learning import task
from tests.support.recipes import recipe
from tests.support.sampled import payload
from trinity_db.explorer.engines.engine import sample_all
from trinity_db.explorer.engines.transformers_engine import TransformersEngine
from trinity_db.processors.steps.rewards import position_match
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner

STALENESS = 4  # updates between sampling and learning
STEPS, GROUPS, GROUP_SIZE = 200, 32, 8
BETTER = 0.25  # exact match, with correction against without

CLIPPED: dict[str, Any] = {}
"""The clipped ratio to the policy that sampled the row, as `grpo` has it."""
WEIGHED: dict[str, Any] = {"correction": "truncated_importance_sampling"}
"""A ratio to the policy at the start of the step, which is 1, and a bounded weight for what lies before."""
UNCORRECTED: dict[str, Any] = {"loss": "policy_gradient"}
"""Advantage times log-probability, as if the rows were fresh."""

pytestmark = pytest.mark.timeout(task.RUN_SECONDS)


def learned(start: Path, folder: Path, seed: int, changes: dict[str, Any]) -> float:
    """Accuracy after so many steps on rows that are four updates old."""
    config = TrainerConfig(steps=STEPS, micro_batch_size=GROUPS * GROUP_SIZE, learning_rate=1e-3)
    learner = Learner(config, recipe("grpo", **changes), start, total_steps=STEPS, device="cpu")
    engine = TransformersEngine("cpu")
    asyncio.run(engine.load(start, 0))
    chosen = random.Random(seed)
    for step in range(STEPS):
        version = folder / str(step)
        learner.policy.model.save_pretrained(version)
        if step >= STALENESS:
            asyncio.run(engine.load(folder / str(step - STALENESS), step - STALENESS))
        learner.step(sampled(engine, learner, chosen, version=step))
    learner.policy.model.save_pretrained(folder / "end")
    engine.tokenizer.save_pretrained(folder / "end")
    return task.accuracy(folder / "end")


def sampled(engine: TransformersEngine, learner: Learner, chosen: random.Random, version: int) -> Batch:
    """Groups of responses by the engine's policy, with the share of right digits as reward."""
    tasks = [one for one in chosen.sample(task.TRAINING, GROUPS) for _ in range(GROUP_SIZE)]
    asked = [
        replace(one, temperature=1.0, seed=chosen.getrandbits(32)) for one in task.requests(engine, tasks)
    ]
    ended = sample_all(engine, asked)
    texts = [engine.tokenizer.decode(one.token_ids, skip_special_tokens=True) for one in ended]
    rewards = np.array([position_match(text, one) for text, one in zip(texts, tasks, strict=True)])
    groups = np.repeat(np.arange(GROUPS), GROUP_SIZE)
    columns = {"rewards": rewards, "groups": groups}
    columns |= {
        "advantages": learner.algorithm.advantages(columns),
        "staleness": np.full(len(rewards), version - engine.version),
    }
    return Batch([payload(*one) for one in zip(asked, ended, strict=True)], columns)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_correction_is_what_lets_stale_rows_teach(
    seed: int, store: Store, tmp_path: Path, results: list[str]
) -> None:
    start = task.checkpoint(store, task.WARM_START)
    ways = {"clipped ratio": CLIPPED, "truncated weights": WEIGHED, "no correction": UNCORRECTED}
    found = {name: learned(start, tmp_path / name, seed, changes) for name, changes in ways.items()}
    shown = ", ".join(f"{name} {accuracy:.3f}" for name, accuracy in found.items())
    results.append(f"stale by {STALENESS}, seed {seed}: {shown}")
    assert found["clipped ratio"] >= found["no correction"] + BETTER
    # Weights hold back less of what strays than the clip does, and so teach less here.
    assert found["truncated weights"] > found["no correction"]
