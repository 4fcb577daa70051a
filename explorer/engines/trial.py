"""Tests whether transformers decodes a model correctly: some of its caches change the model's results.

The test rows are shorter than most windows. It detects caches that lose a state, and states that include the
padding of a shorter row.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from trinity_db.errors import ConfigError
from trinity_db.models import context_of
from trinity_db.models.time_steps import has_limit

ROWS = (9, 4)  # lengths of the two test sequences
DECODED = 2  # tokens of each that are decoded after the first call


@torch.inference_mode()
def decodes_side_by_side(model: Any) -> bool:
    """Whether left-padded rows get the same logits as each row alone without a cache.

    Also true for models that only accept shorter sequences, or whose logits are not finite.

    Raises:
        ConfigError: if even a single row gets wrong logits when decoded with a cache, or would for some
            tokens.
    """
    if has_limit(model):
        raise ConfigError(
            f"{model.config.name_or_path}: transformers decodes {type(model).__name__} without the "
            "time_step_limit of its config.json; use another engine, such as explorer: {engine: vllm}."
        )
    if context_of(model.config) < max(ROWS):
        return True
    device = next(model.parameters()).device
    size = model.get_input_embeddings().num_embeddings
    tokens = torch.arange(sum(ROWS), device=device) * 7 % size
    rows = tokens.split(ROWS)
    expected = [model(input_ids=row[None], use_cache=False).logits[0, -DECODED - 1 :] for row in rows]
    if _same(_decoded(model, rows), expected) or not all(logits.isfinite().all() for logits in expected):
        return True
    if all(_same(_decoded(model, [row]), [logits]) for row, logits in zip(rows, expected, strict=True)):
        return False
    raise ConfigError(
        f"{model.config.name_or_path}: transformers decodes {type(model).__name__} to other logits than it "
        "computes for whole sequences; use another engine, such as explorer: {engine: vllm}."
    )


def _decoded(model: Any, rows: Sequence[Tensor]) -> list[Tensor] | None:
    """Return the logits [DECODED + 1, V] of each row's last tokens; None if it needs another interface."""
    width = max(map(len, rows))
    tokens = torch.stack([torch.nn.functional.pad(row, (width - len(row), 0)) for row in rows])
    mask = torch.stack([torch.arange(width, device=row.device) >= width - len(row) for row in rows]).long()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits: list[Tensor] = []
    try:
        cache = DynamicCache(config=model.config)
        for end in range(width - DECODED, width + 1):
            begin = end - 1 if logits else 0
            logits.append(
                model(
                    input_ids=tokens[:, begin:end],
                    attention_mask=mask[:, :end],
                    position_ids=positions[:, begin:end],
                    past_key_values=cache,
                    logits_to_keep=1,
                ).logits[:, -1]
            )
    except Exception:  # any error: the model needs another kind of cache
        return None
    return list(torch.stack(logits, dim=1))


def _same(actual: list[Tensor] | None, expected: list[Tensor]) -> bool:
    if actual is None:
        return False
    tolerance = torch.finfo(expected[0].dtype).eps ** 0.5  # relative; a wrong context gives about 1
    return all(
        bool((logits - other).abs().max() <= tolerance * other.abs().max())
        for logits, other in zip(actual, expected, strict=True)
    )
