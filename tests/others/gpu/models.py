"""Models and rows that are large enough for the kernels of a GPU, and what plain transformers says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from trinity_db.arrays.codec import Payload

VOCABULARY = 512
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,  # heads of 64 numbers, which every kernel takes
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.1,  # of a random model, so that attention and logits matter
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 1,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "llama": ("Llama", {}),
    "a window of 64": ("Mistral", {"sliding_window": 64}),
    "soft-capped": ("Gemma2", {"head_dim": 64}),
}
LENGTHS = (300, 17, 130, 64, 2)


def build(kind: str, folder: Path) -> Path:
    """A folder with random weights."""
    name, changes = KINDS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES | changes)
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(folder)
    return folder


def rows(lengths: Sequence[int] = LENGTHS) -> list[Payload]:
    """Random tokens; the last two thirds of a row are its response. Prompts begin alike."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(2, VOCABULARY, max(lengths) // 3)
    made = []
    for length in lengths:
        mask = np.arange(length) >= max(1, length // 3)
        logprobs = rng.normal(-np.log(VOCABULARY), 0.3, int(mask.sum())).astype(np.float32)
        answer = rng.integers(2, VOCABULARY, length - length // 3)
        tokens = np.concatenate([prompt[: length // 3], answer]).astype(np.int32)
        made.append(Payload(tokens, mask, logprobs, np.zeros(len(logprobs), np.int32)))
    return made


def plainly(model: Any, payloads: Sequence[Payload]) -> Tensor:
    """Log-probabilities of the trained tokens, from whole logits of one row at a time."""
    found = []
    for row in payloads:
        tokens = torch.from_numpy(row.token_ids).long()
        log_p = model(input_ids=tokens[None]).logits[0].log_softmax(-1)[:-1]
        chosen = log_p.gather(1, tokens[1:, None])[:, 0]
        found.append(chosen[torch.from_numpy(row.action_mask[1:])])
    return torch.cat(found)


def gradient(model: Any, logprobs: Tensor) -> Tensor:
    """Of a mean that weighs each token differently."""
    weights = torch.linspace(-1, 2, len(logprobs), dtype=logprobs.dtype, device=logprobs.device)
    model.zero_grad()
    torch.autograd.backward((weights * logprobs).mean())
    gradients = [one.grad.flatten().float().cpu() for one in model.parameters() if one.grad is not None]
    return torch.cat(gradients)
