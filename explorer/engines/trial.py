"""A trial of how transformers decodes a model: some of its caches do not give what the model computes.

The trial's rows are shorter than most windows. It finds caches that lose a state, and states into which the
padding of a shorter row goes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from trinity_db.errors import ConfigError
from trinity_db.models import context_of
from trinity_db.models.time_steps import has_limit

ROWS = (9, 4)  # tokens of the two sequences
DECODED = 2  # tokens of each that are not in the first call


@torch.inference_mode()
def decodes_side_by_side(model: Any) -> bool:
    """Whether rows that are padded on the left get the logits that each gets alone, without a cache.

    Also true of a model that takes shorter sequences only, or whose logits are not finite.

    Raises:
        ConfigError: a row that is decoded alone gets other logits than without a cache, or would on some
            tokens.
    """
    if has_limit(model):
        raise ConfigError(
            f"{model.config.name_or_path}: transformers decodes {type(model).__name__} without the "
            "time_step_limit of its config.json; name another engine, as in explorer: {engine: vllm}."
        )
    if context_of(model.config) < max(ROWS):
        return True
    device = next(model.parameters()).device
    size = model.get_input_embeddings().num_embeddings
    tokens = torch.arange(sum(ROWS), device=device) * 7 % size
    rows = tokens.split(ROWS)
    expected = [model(input_ids=row[None], use_cache=False).logits[0, -DECODED - 1 :] for row in rows]
    if _same(_decoded(model, rows), expected) or not all(one.isfinite().all() for one in expected):
        return True
    if all(_same(_decoded(model, [row]), [one]) for row, one in zip(rows, expected, strict=True)):
        return False
    raise ConfigError(
        f"{model.config.name_or_path}: transformers decodes {type(model).__name__} to other logits than it "
        "computes for whole sequences; name another engine, as in explorer: {engine: vllm}."
    )


def _decoded(model: Any, rows: Sequence[Tensor]) -> list[Tensor] | None:
    """For each row the logits [DECODED + 1, V] of its last tokens; None if the model cannot be called so."""
    width = max(map(len, rows))
    tokens = torch.stack([torch.nn.functional.pad(row, (width - len(row), 0)) for row in rows])
    mask = torch.stack([torch.arange(width, device=row.device) >= width - len(row) for row in rows]).long()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    found: list[Tensor] = []
    try:
        cache = DynamicCache(config=model.config)
        for end in range(width - DECODED, width + 1):
            begin = end - 1 if found else 0
            found.append(
                model(
                    input_ids=tokens[:, begin:end],
                    attention_mask=mask[:, :end],
                    position_ids=positions[:, begin:end],
                    past_key_values=cache,
                    logits_to_keep=1,
                ).logits[:, -1]
            )
    except Exception:  # any error: the model has a cache of another kind
        return None
    return list(torch.stack(found, dim=1))


def _same(found: list[Tensor] | None, expected: list[Tensor]) -> bool:
    if found is None:
        return False
    tolerance = torch.finfo(expected[0].dtype).eps ** 0.5  # of the largest logit; another context gives 1
    return all(
        bool((one - other).abs().max() <= tolerance * other.abs().max())
        for one, other in zip(found, expected, strict=True)
    )
