"""TRL's GRPO and DPO trainers on the CPU, with a model and rows that are given, in `.venv-peers`.

Sampling is left out: the GRPO trainer is handed stored rows, padded as it pads what it samples.
"""

import os
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

NOTE = "its defaults; on a CPU but for bf16 and gradient checkpointing: float32, none"


class _Clock(TrainerCallback):
    """Seconds of each optimizer step, from the end of the one before; the first is not counted."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.seconds: list[float] = []
        self._last = 0.0
        self.loaded = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.loaded = trained.resident_megabytes(self._device)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._last:
            self.seconds.append(now - self._last)
        self._last = now


class _StoredGrpo(GRPOTrainer):
    """Its steps are on the same rows each time, in place of what it would sample."""

    stored: trained.Batch

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
        rows = self.stored.rows
        prompts = [row.token_ids[: row.prompt_tokens].astype(np.int64) for row in rows]
        completions = [row.token_ids[row.prompt_tokens :].astype(np.int64) for row in rows]
        prompt_ids, prompt_mask = _padded(prompts, left=True)
        completion_ids, completion_mask = _padded(completions, left=False)
        return {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "advantages": torch.from_numpy(self.stored.advantages).float(),
            "old_per_token_logps": _padded([row.logprobs for row in rows], left=False)[0],
            "num_items_in_batch": completion_mask.sum(),
        }


class _TokenisedDpo(DPOTrainer):
    def _prepare_dataset(self, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
        return dataset


def train(asked: frame.Specification) -> frame.Repetitions:
    device = getattr(asked, "device", "cpu")
    if device == "cpu":
        torch.set_num_threads(1)
    batch = trained.batch(asked.rows, asked.vocabulary)
    trainer = (_grpo if asked.algorithm == "grpo" else _dpo)(asked, batch)
    clock = _Clock(device)
    trainer.add_callback(clock)
    trainer.train()
    memory = {"peak": trained.peak_megabytes(device), "loaded": clock.loaded}
    return [{"seconds": seconds, "tokens": batch.tokens, **memory} for seconds in clock.seconds]


def _grpo(asked: frame.Specification, batch: trained.Batch) -> GRPOTrainer:
    arguments = GRPOConfig(
        per_device_train_batch_size=asked.micro_batch_size,
        gradient_accumulation_steps=asked.rows // asked.micro_batch_size,
        num_generations=8,
        loss_type="dapo",
        **_common(asked),
    )
    trainer = _StoredGrpo(
        model=AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * asked.rows}),
        processing_class=AutoTokenizer.from_pretrained(asked.model),
        **_adapter(asked),
    )
    trainer.stored = batch
    return trainer


def _dpo(asked: frame.Specification, batch: trained.Batch) -> DPOTrainer:
    pairs = list(zip(batch.rows[0::2], batch.rows[1::2], strict=True))
    columns = {
        "prompt_ids": [chosen.token_ids[: chosen.prompt_tokens].tolist() for chosen, _ in pairs],
        "chosen_ids": [chosen.token_ids[chosen.prompt_tokens :].tolist() for chosen, _ in pairs],
        "rejected_ids": [rejected.token_ids[rejected.prompt_tokens :].tolist() for _, rejected in pairs],
    }
    arguments = DPOConfig(
        per_device_train_batch_size=asked.micro_batch_size // 2,
        gradient_accumulation_steps=asked.rows // asked.micro_batch_size,
        max_length=None,
        **_common(asked),
    )
    adapter = _adapter(asked)
    model, reference = (
        AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.float32) if wanted else None
        for wanted in (True, not adapter)  # an adapter is compared with the model without it
    )
    return _TokenisedDpo(
        model=model,
        ref_model=reference,
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        processing_class=AutoTokenizer.from_pretrained(asked.model),
        **adapter,
    )


def _adapter(asked: frame.Specification) -> dict[str, Any]:
    """The same adapter as ours, if the settings have one."""
    if "lora" not in getattr(asked, "settings", {}):
        return {}
    from peft import LoraConfig

    return {
        "peft_config": LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    }


def _common(asked: frame.Specification) -> dict[str, Any]:
    is_on_cpu = getattr(asked, "device", "cpu") == "cpu"
    return {
        "output_dir": asked.scratch,
        "max_steps": asked.steps + 1,
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


def _padded(rows: list[Any], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(row) for row in rows)
    values = torch.zeros(len(rows), width, dtype=torch.from_numpy(rows[0]).dtype)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for number, row in enumerate(rows):
        places = slice(width - len(row), width) if left else slice(0, len(row))
        values[number, places] = torch.from_numpy(row)
        mask[number, places] = 1
    return values, mask


if __name__ == "__main__":
    frame.main("TRL", "trl", {"train": train}, NOTE)
