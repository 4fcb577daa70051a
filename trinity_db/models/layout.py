"""How the sequences of a micro-batch lie in the tensors that a model takes. Trials on two short ones decide.

packed    end to end in one row, without padding; each attends to itself only (`attention.py`)
padded    one row each, padded to the right; each looks to its left, so that no attention mask is needed
alone     one call of the model each: slow, and right for every causal model
"""

from typing import Any, Literal

import torch
from torch import Tensor

from trinity_db.errors import ConfigError
from trinity_db.models.attention import PACKED, pack, packed_attention

Layout = Literal["packed", "padded", "alone"]

PROBE_TOKENS = (7, 5)  # tokens of the two sequences of a trial
TOLERANCE = 1e-4  # relative to the largest hidden value; rounding gives 1e-6, attending to another sequence 1


def decoder_of(model: Any) -> Any:
    """The part of a causal language model that computes hidden states from tokens, without the head."""
    found = model.get_decoder()
    # Llama 4 finds itself, and ModernBERT its head.
    return model.model if found is model or isinstance(found, torch.nn.Linear) else found


@torch.no_grad()
def layout_of(model: Any) -> Layout:
    """The fastest layout in which the model computes what it computes for each sequence alone.

    A model that packs is switched to the attention of packed rows.

    Raises:
        ConfigError: a token changes the hidden states of tokens before it.
    """
    decoder, device = decoder_of(model), next(model.parameters()).device
    size = model.get_input_embeddings().num_embeddings
    tokens = torch.arange(sum(PROBE_TOKENS), device=device)[None] * 7 % size
    parts = tokens.split(PROBE_TOKENS, dim=1)
    apart = [_hidden(decoder, part) for part in parts]
    changed = parts[0].clone()
    changed[0, -1] = (changed[0, -1] + 1) % size
    if not _same(_hidden(decoder, changed)[:, :-1], apart[0][:, :-1]):
        raise ConfigError(
            f"{model.config.name_or_path}: {type(model).__name__} lets tokens see those after them; "
            "take a causal language model."
        )
    if _packs(model, tokens, torch.cat(apart, dim=1)):
        return "packed"
    rows = torch.nn.utils.rnn.pad_sequence([part[0] for part in parts], batch_first=True)
    found = _hidden(decoder, rows)
    pads = all(_same(row[: one.shape[1]], one[0]) for row, one in zip(found, apart, strict=True))
    return "padded" if pads else "alone"


def _packs(model: Any, tokens: Tensor, expected: Tensor) -> bool:
    """Whether hidden states of sequences end to end are the expected ones. If so, leave the model packed."""
    from transformers import AttentionInterface

    if not (
        getattr(model, "_supports_flash_attn", False) and getattr(model, "_supports_attention_backend", False)
    ):
        return False
    windows: list[int | None] = []

    def noted(*arguments: Any, **others: Any) -> Any:
        windows.append(others.get("sliding_window"))
        return packed_attention(*arguments, **others)

    before = model.config._attn_implementation
    AttentionInterface.register(PACKED, noted)
    model.set_attn_implementation(PACKED)
    try:
        inputs = pack(list(PROBE_TOKENS), tokens.device)
        same = _same(_hidden(decoder_of(model), tokens, **inputs), expected)
        same = same and bool(windows) and _has_windows(model.config.get_text_config(), windows)
        model(input_ids=tokens, use_cache=False, **inputs)  # may pass on more than its decoder does
    except Exception:  # any error: the model needs its own attention
        same = False
    finally:
        AttentionInterface.register(PACKED, packed_attention)
    if not same:
        model.set_attn_implementation(before)
    return same


def _has_windows(config: Any, windows: list[int | None]) -> bool:
    """Whether each layer that looks at a window only has told the attention how long it is.

    The trial is shorter than windows, and packed rows have no mask, in which some models keep their windows.

    Args:
        windows: what the attention was told, layer by layer.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return getattr(config, "sliding_window", None) is None or None not in windows
    if not set(kinds) <= {"full_attention", "sliding_attention"}:
        return False
    told = len(windows) - windows.count(None)
    return bool(kinds.count("sliding_attention") <= told)


def _hidden(decoder: Any, tokens: Tensor, **inputs: Any) -> Tensor:
    hidden: Tensor = decoder(input_ids=tokens, use_cache=False, **inputs)[0]
    return hidden


def _same(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= TOLERANCE * expected.abs().max())
