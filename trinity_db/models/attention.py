"""Sequences end to end in one row, each attending only to itself.

transformers knows two ways: its flash-attention kernels, which need a GPU and another library, and a
mask of all tokens times all tokens for PyTorch's attention, whose cost grows with the square of the
row. This is a third: PyTorch's causal attention, sequence by sequence, without a mask. On a CPU
forward and backward of 16 log-normal sequences take 1/4 of the padded and 1/12 of the masked time.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

PACKED = "trinity_db_packed"
LENGTHS = "packed_lengths"  # the name under which models hand them on to their attention
UNDERSTOOD = {"position_ids", "output_attentions", "use_cache", "past_key_values", "cache_position", LENGTHS}
PROBE_TOKENS = (7, 5)  # tokens of two sequences
TOLERANCE = 1e-4  # of the largest hidden value; rounding is 1e-6, seeing another sequence about 1


def pack(lengths: list[int], device: torch.device) -> dict[str, Any]:
    """What a model that `can_pack` takes beside the tokens [1, total] of so many sequences."""
    positions = torch.cat([torch.arange(length) for length in lengths])
    return {"position_ids": positions[None].to(device), LENGTHS: lengths}


def can_pack(model: Any) -> bool:
    """Whether the model computes the same for sequences end to end; if so, it is made ready for them.

    It is tried out on two short sequences. What they would not show, such as windows and chunks that
    are in the mask only, models declare: those that may run without a mask support flash attention.
    """
    from transformers import AttentionInterface

    if not (
        getattr(model, "_supports_flash_attn", False) and getattr(model, "_supports_attention_backend", False)
    ):
        return False
    AttentionInterface.register(PACKED, packed_attention)
    before = model.config._attn_implementation
    decoder, device = model.get_decoder(), next(model.parameters()).device
    size = model.get_input_embeddings().num_embeddings
    tokens = torch.arange(sum(PROBE_TOKENS), device=device)[None] * 7 % size
    with torch.no_grad():
        apart = [decoder(input_ids=part, use_cache=False)[0] for part in tokens.split(PROBE_TOKENS, dim=1)]
        expected = torch.cat(apart, dim=1)
        model.set_attn_implementation(PACKED)
        try:
            inputs = pack(list(PROBE_TOKENS), device)
            found = decoder(input_ids=tokens, use_cache=False, **inputs)[0]
        except Exception:  # whatever it is, this model wants its own attention
            found = torch.full_like(expected, torch.inf)
    same = bool((found - expected).abs().max() <= TOLERANCE * expected.abs().max())
    if not same:
        model.set_attn_implementation(before)
    return same


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [1, heads, total, D], key and value with as many or fewer heads; returns [1, total, heads, D].

    Raises:
        NotImplementedError: the model wants something that this does not do, such as soft-capped scores.
    """
    asked = sorted(name for name, value in others.items() if value is not None and name not in UNDERSTOOD)
    if (
        asked
        or attention_mask is not None
        or dropout
        or not (getattr(module, "is_causal", True) if is_causal is None else is_causal)
    ):
        raise NotImplementedError(f"{type(module).__name__}: {asked}")
    lengths = others.get(LENGTHS) or [query.shape[2]]
    # One split a tensor, whose gradient is one concatenation; a slice a sequence would add up whole tensors.
    parts = zip(*(torch.split(whole, lengths, dim=2) for whole in (query, key, value)), strict=True)
    grouped = query.shape[1] != key.shape[1]
    attended = []
    for length, (queries, keys, values) in zip(lengths, parts, strict=True):
        mask = None
        if sliding_window is not None and length > sliding_window:
            mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
            mask = mask.triu(1 - sliding_window)
        found = scaled_dot_product_attention(
            queries, keys, values, mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
        )
        attended.append(found.transpose(1, 2))
    return torch.cat(attended, dim=1), None
