"""verl's policy loss on the CPU with a given model and rows, in `.venv-peers`.

verl's workers need Ray and, to omit padding, flash attention on a GPU. So this is the loop of its FSDP engine
in plain PyTorch: prompts padded on the left, responses on the right, its log-probabilities and loss per
micro-batch, and AdamW.
"""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils.torch_functional import logprobs_from_logits
from verl.workers.config.actor import ActorConfig

from benchmarks import trained
from benchmarks.peers import frame

MAX_GRAD_NORM = 1.0


def train(specification: frame.Specification) -> frame.Repetitions:
    if specification.algorithm != "grpo":
        raise frame.Unsupported("no loss for preferences")
    torch.set_num_threads(1)
    batch = trained.batch(specification.rows, specification.vocabulary)
    model = AutoModelForCausalLM.from_pretrained(specification.model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=trained.LEARNING_RATE, weight_decay=0.0)
    loaded = trained.resident_megabytes()
    seconds = []
    for _ in range(specification.steps + 1):
        start = time.perf_counter()
        _step(model, optimizer, batch, specification.micro_batch_size)
        seconds.append(time.perf_counter() - start)
    memory = {"peak": trained.peak_megabytes(), "loaded": loaded}
    return [{"seconds": duration, "tokens": batch.tokens, **memory} for duration in seconds[1:]]


def _step(model: Any, optimizer: torch.optim.Optimizer, batch: trained.Batch, size: int) -> None:
    """Make one step; the loss is a mean over the tokens of all micro-batches."""
    tokens = sum(len(row.logprobs) for row in batch.rows)
    actor = ActorConfig(strategy="fsdp", rollout_n=8, ppo_micro_batch_size_per_gpu=size)
    actor.global_batch_info.update(dp_size=1, batch_num_tokens=tokens)
    loss_of = get_policy_loss_fn("vanilla")
    for ids, attended, positions, responses, old, mask, advantages in _micro_batches(batch, size):
        logits = model(input_ids=ids, attention_mask=attended, position_ids=positions, use_cache=False).logits
        logprobs = logprobs_from_logits(logits[:, -responses.shape[1] - 1 : -1], responses)
        loss, _ = loss_of(old, logprobs, advantages, mask, "token-mean", actor)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
    optimizer.step()
    optimizer.zero_grad()


def _micro_batches(batch: trained.Batch, size: int) -> Iterator[tuple[Tensor, ...]]:
    for first in range(0, len(batch.rows), size):
        rows = batch.rows[first : first + size]
        prompts, prompted = trained.padded([row.token_ids[: row.prompt_tokens] for row in rows], left=True)
        responses, mask = trained.padded([row.token_ids[row.prompt_tokens :] for row in rows], left=False)
        old, _ = trained.padded([row.logprobs for row in rows], left=False)
        attended = torch.cat([prompted, mask], dim=1)
        positions = (attended.cumsum(1) - 1).clamp(min=0)
        advantages = torch.from_numpy(batch.advantages[first : first + size]).float()[:, None]
        ids = torch.cat([prompts, responses], dim=1).long()
        yield ids, attended, positions, responses.long(), old, mask.float(), advantages.expand_as(mask)


if __name__ == "__main__":
    frame.main("verl", "verl", {"train": train})
