"""TRL's trainers in `.venv-peers`: steps of GRPO and DPO with a given model and rows, and a run of GRPO.

For single steps the GRPO trainer gets stored rows instead of sampling, with its own padding.
"""

import os
import re
import time
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

from benchmarks import trained
from benchmarks.peers import frame

GROUP_SIZE, BATCH_SIZE, MICRO_BATCH_SIZE = 8, 64, 8  # of a run


class _Clock(TrainerCallback):
    """Seconds between the ends of optimizer steps."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.seconds: list[float] = []
        self._last = 0.0
        self.loaded = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.loaded = trained.resident_megabytes(self._device)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        trained.synchronize(self._device)
        now = time.perf_counter()
        if self._last:
            self.seconds.append(now - self._last)
        self._last = now


class _Steps(TrainerCallback):
    """Record the end and the mean reward of each step; end the run at the goal."""

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


class _StoredGrpo(GRPOTrainer):
    """Trainer that uses the same stored rows in each step."""

    stored: trained.Batch

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
        rows = self.stored.rows
        prompts = [row.token_ids[: row.prompt_tokens].astype(np.int64) for row in rows]
        completions = [row.token_ids[row.prompt_tokens :].astype(np.int64) for row in rows]
        prompt_ids, prompt_mask = trained.padded(prompts, left=True)
        completion_ids, completion_mask = trained.padded(completions, left=False)
        columns = {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "advantages": torch.from_numpy(self.stored.advantages).float(),
            "old_per_token_logps": trained.padded([row.logprobs for row in rows], left=False)[0],
            "num_items_in_batch": completion_mask.sum(),
        }
        return {name: column.to(self.accelerator.device) for name, column in columns.items()}


class _TokenisedDpo(DPOTrainer):
    def _prepare_dataset(self, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
        return dataset


def train(specification: frame.Specification) -> frame.Repetitions:
    device = getattr(specification, "device", "cpu")
    if device == "cpu":
        torch.set_num_threads(1)
    batch = trained.batch(specification.rows, specification.vocabulary)
    trainer = (_grpo if specification.algorithm == "grpo" else _dpo)(specification, batch)
    clock = _Clock(device)
    trainer.add_callback(clock)
    trainer.train()
    memory = {"peak": trained.peak_megabytes(device), "loaded": clock.loaded}
    return [{"seconds": seconds, "tokens": batch.tokens, **memory} for seconds in clock.seconds]


def _number_match(completions: Any, answer: list[str], **_: Any) -> list[float]:
    """Return 1 if the last number is the answer, like our `number_match`."""
    numbers_of_completions = [re.findall(r"-?\d+", completion[0]["content"]) for completion in completions]
    return [
        float(bool(numbers) and int(numbers[-1]) == int(right))
        for numbers, right in zip(numbers_of_completions, answer, strict=True)
    ]


def addition(specification: frame.Specification) -> frame.Repetitions:
    """Learn the task of `benchmarks/addition.py`: sample with `generate`, then train, in turns."""
    steps = _Steps(specification.goal)
    arguments = _common(specification) | {
        "max_steps": specification.steps,
        "logging_strategy": "steps",
        "logging_steps": 1,
    }
    rows = [
        {"prompt": [{"role": "user", "content": task["prompt"]}], "answer": task["answer"]}
        for task in specification.tasks
    ]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(specification.model, dtype=torch.float32),
        reward_funcs=_number_match,
        args=GRPOConfig(
            per_device_train_batch_size=MICRO_BATCH_SIZE,
            gradient_accumulation_steps=BATCH_SIZE // MICRO_BATCH_SIZE,
            num_generations=GROUP_SIZE,
            max_completion_length=16,
            seed=specification.seed,
            **arguments,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(specification.model),
        callbacks=[steps],
    )
    trainer.train()
    figures = trained.run(steps.ends, steps.rewards, specification.start, specification.goal)
    return [figures | {"peak": trained.peak_megabytes()}]


def _grpo(specification: frame.Specification, batch: trained.Batch) -> GRPOTrainer:
    arguments = GRPOConfig(
        per_device_train_batch_size=specification.micro_batch_size,
        gradient_accumulation_steps=specification.rows // specification.micro_batch_size,
        num_generations=8,
        loss_type="dapo",
        **_common(specification),
    )
    trainer = _StoredGrpo(
        model=AutoModelForCausalLM.from_pretrained(specification.model, dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * specification.rows}),
        processing_class=AutoTokenizer.from_pretrained(specification.model),
        **_adapter(specification),
    )
    trainer.stored = batch
    return trainer


def _dpo(specification: frame.Specification, batch: trained.Batch) -> DPOTrainer:
    pairs = list(zip(batch.rows[0::2], batch.rows[1::2], strict=True))
    columns = {
        "prompt_ids": [chosen.token_ids[: chosen.prompt_tokens].tolist() for chosen, _ in pairs],
        "chosen_ids": [chosen.token_ids[chosen.prompt_tokens :].tolist() for chosen, _ in pairs],
        "rejected_ids": [rejected.token_ids[rejected.prompt_tokens :].tolist() for _, rejected in pairs],
    }
    arguments = DPOConfig(
        per_device_train_batch_size=specification.micro_batch_size // 2,
        gradient_accumulation_steps=specification.rows // specification.micro_batch_size,
        max_length=None,
        **_common(specification),
    )
    adapter = _adapter(specification)
    model, reference = (
        AutoModelForCausalLM.from_pretrained(specification.model, dtype=torch.float32) if is_loaded else None
        for is_loaded in (True, not adapter)  # with an adapter, the reference is the model without it
    )
    return _TokenisedDpo(
        model=model,
        ref_model=reference,
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        processing_class=AutoTokenizer.from_pretrained(specification.model),
        **adapter,
    )


def _adapter(specification: frame.Specification) -> dict[str, Any]:
    """Return the arguments of an adapter like ours, if the settings have one."""
    if "lora" not in getattr(specification, "settings", {}):
        return {}
    from peft import LoraConfig

    return {
        "peft_config": LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    }


def _common(specification: frame.Specification) -> dict[str, Any]:
    is_on_cpu = getattr(specification, "device", "cpu") == "cpu"
    return {
        "output_dir": specification.scratch,
        "max_steps": specification.steps + 1,
        "learning_rate": trained.LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "use_cpu": is_on_cpu,
        "bf16": not is_on_cpu,
        "gradient_checkpointing": not is_on_cpu,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
    }


if __name__ == "__main__":
    frame.main("TRL", "trl", {"train": train, "addition": addition})
