"""Layout of a micro-batch's sequences in the model's input tensors, decided by a trial with two sequences.

packed    end to end in one row, without padding; each attends only to itself (`attention.py`)
padded    one row each, padded on the right; causal attention needs no mask then
alone     one call of the model each: slow, but correct for every causal model
"""

from typing import Any, Literal

import torch
from torch import Tensor

from trinity_db.errors import ConfigError
from trinity_db.models.attention import PACKED, pack, packed_attention
from trinity_db.models.segments import Segments

Layout = Literal["packed", "padded", "alone"]

PROBE_TOKENS = (7, 5)  # lengths of the two sequences of a trial
SHARED_TOKENS = (6, 4, 3)  # lengths of a prefix and of two continuations in a trial
TOLERANCE = 1e-4  # relative to the largest hidden value; rounding gives 1e-6, attending to another sequence 1


def decoder_of(model: Any) -> Any:
    """Return the part of a causal language model that computes hidden states from tokens, without the
    head."""
    decoder = model.get_decoder()
    # get_decoder returns the model itself for Llama 4, and the head for ModernBERT.
    return model.model if decoder is model or isinstance(decoder, torch.nn.Linear) else decoder


@torch.no_grad()
def layout_of(model: Any) -> Layout:
    """Return the fastest layout with the same results as for each sequence alone.

    A model that can be packed is switched to the attention of packed rows.

    Raises:
        ConfigError: if a token changes the hidden states of earlier tokens.
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
            f"{model.config.name_or_path}: {type(model).__name__} lets tokens attend to later ones; "
            "take a causal language model."
        )
    if _packs(model, tokens, torch.cat(apart, dim=1)):
        return "packed"
    rows = torch.nn.utils.rnn.pad_sequence([part[0] for part in parts], batch_first=True)
    padded = _hidden(decoder, rows)
    pads = all(_same(row[: alone.shape[1]], alone[0]) for row, alone in zip(padded, apart, strict=True))
    return "padded" if pads else "alone"


def _packs(model: Any, tokens: Tensor, expected: Tensor) -> bool:
    """Whether packed sequences give the expected hidden states. If so, keep the model's packed attention."""
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
        inputs = pack(Segments(PROBE_TOKENS), tokens.device)
        same = _same(_hidden(decoder_of(model), tokens, **inputs), expected)
        same = same and bool(windows) and _has_windows(model.config.get_text_config(), windows)
        model(input_ids=tokens, use_cache=False, **inputs)  # may pass more arguments than its decoder does
    except Exception:  # any error means that the model needs its own attention
        same = False
    finally:
        AttentionInterface.register(PACKED, packed_attention)
    if not same:
        model.set_attn_implementation(before)
    return same


@torch.no_grad()
def shares_prefixes(model: Any) -> bool:
    """Whether sequences of a packed row get the same hidden states if they share a prefix."""
    decoder, device = decoder_of(model), next(model.parameters()).device
    tokens = (
        torch.arange(sum(SHARED_TOKENS), device=device)[None]
        * 7
        % model.get_input_embeddings().num_embeddings
    )
    prefix, *rests = tokens.split(SHARED_TOKENS, dim=1)
    apart = [_hidden(decoder, torch.cat([prefix, rest], dim=1)) for rest in rests]
    expected = [apart[0], *(hidden[:, prefix.shape[1] :] for hidden in apart[1:])]
    try:
        inputs = pack(Segments(SHARED_TOKENS, [-1] + [0] * len(rests)), device)
        return _same(_hidden(decoder, tokens, **inputs), torch.cat(expected, dim=1))
    except Exception:  # any error means that each sequence needs its own prefix
        return False


def _has_windows(config: Any, windows: list[int | None]) -> bool:
    """Whether each layer with a sliding window passes its length to the attention.

    The trial is shorter than windows, and packed rows have no mask, in which some models implement windows.

    Args:
        windows: window passed to the attention, layer by layer.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return getattr(config, "sliding_window", None) is None or None not in windows
    if not set(kinds) <= {"full_attention", "sliding_attention"}:
        return False
    num_windows = len(windows) - windows.count(None)
    return bool(kinds.count("sliding_attention") <= num_windows)


def _hidden(decoder: Any, tokens: Tensor, **inputs: Any) -> Tensor:
    hidden: Tensor = decoder(input_ids=tokens, use_cache=False, **inputs)[0]
    return hidden


def _same(actual: Tensor, expected: Tensor) -> bool:
    return bool((actual - expected).abs().max() <= TOLERANCE * expected.abs().max())
