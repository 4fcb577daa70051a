"""The task of `benchmarks/addition.py` with TRL's GRPO trainer, in the environment `.venv-peers`.

It samples by transformers' `generate`, and samples and trains in turn.
"""

import os
import re
import time
from itertools import pairwise
from statistics import median
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks import trained
from benchmarks.peers import frame

GROUP_SIZE, BATCH_SIZE, MICRO_BATCH_SIZE = 8, 64, 8
NOTE = "its defaults, but for float32, a constant learning rate and no gradient checkpointing"


class _Steps(TrainerCallback):
    """When each step ended, and its mean reward; ends the run at the goal."""

    def __init__(self, goal: float) -> None:
        self.goal = goal
        self.ends: list[float] = []
        self.rewards: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.time())

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if logs and "reward" in logs:
            self.rewards.append(float(logs["reward"]))
            control.should_training_stop = self.rewards[-1] >= self.goal


def _number_match(completions: Any, answer: list[str], **_: Any) -> list[float]:
    """1 where the last number is the answer, as our `number_match`."""
    found = [re.findall(r"-?\d+", completion[0]["content"]) for completion in completions]
    return [
        float(bool(numbers) and int(numbers[-1]) == int(right))
        for numbers, right in zip(found, answer, strict=True)
    ]


def addition(asked: frame.Specification) -> frame.Repetitions:
    steps = _Steps(asked.goal)
    arguments = GRPOConfig(
        output_dir=asked.scratch,
        max_steps=asked.steps,
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        per_device_train_batch_size=MICRO_BATCH_SIZE,
        gradient_accumulation_steps=BATCH_SIZE // MICRO_BATCH_SIZE,
        num_generations=GROUP_SIZE,
        max_completion_length=16,
        seed=asked.seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    rows = [
        {"prompt": [{"role": "user", "content": task["prompt"]}], "answer": task["answer"]}
        for task in asked.tasks
    ]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.float32),
        reward_funcs=_number_match,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(asked.model),
        callbacks=[steps],
    )
    trainer.train()
    between = [later - earlier for earlier, later in pairwise(steps.ends)]
    reached = next(
        (end for end, reward in zip(steps.ends, steps.rewards, strict=False) if reward >= asked.goal), None
    )
    return [
        {
            "step": median(between),
            "goal": None if reached is None else reached - asked.start,
            "rewards": steps.rewards,
            "peak": trained.peak_megabytes(),
        }
    ]


if __name__ == "__main__":
    frame.main("TRL", "trl", {"addition": addition}, NOTE)
