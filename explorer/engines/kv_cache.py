"""Rows of a transformers cache: selecting rows, and joining the rows of two caches.

Rows are left-padded, so that their newest tokens are in the same column. Shapes: B rows, H heads, L cached
columns, D the size of a head.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

_KNOWN = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)
"""Supported layer classes, compared exactly, as a subclass may hold further tensors."""


def is_known(cache: Any) -> bool:
    """Whether rows of this cache can be selected and joined; otherwise they must be recomputed."""
    return all(type(layer) in _KNOWN for layer in cache.layers)


def select(cache: Any, rows: Tensor, padding: int) -> None:
    """Keep some rows, and drop `padding` columns on the left, which contain only padding."""
    for layer in cache.layers:
        if isinstance(layer, LinearAttentionLayer):
            for states in (layer.conv_states, layer.recurrent_states):
                states.update({index: state[rows] for index, state in states.items() if state is not None})
        if isinstance(layer, DynamicLayer) and layer.is_initialized:
            length = layer.get_seq_length() - padding
            kept = _cached(layer, length)
            layer.keys, layer.values = (
                tensor[rows, :, tensor.shape[2] - kept :] for tensor in (layer.keys, layer.values)
            )
            _set_length(layer, length)


def join(first: Any, second: Any) -> None:
    """Append the rows of the second cache to the first; shorter rows are padded on the left."""
    for mine, other in zip(first.layers, second.layers, strict=True):
        if isinstance(mine, LinearAttentionLayer):
            for states, more in (
                (mine.conv_states, other.conv_states),
                (mine.recurrent_states, other.recurrent_states),
            ):
                states.update(
                    {
                        index: torch.cat([state, more[index]])
                        for index, state in states.items()
                        if state is not None
                    }
                )
        if isinstance(mine, DynamicLayer) and mine.is_initialized:
            length = max(mine.get_seq_length(), other.get_seq_length())
            width = _cached(mine, length)
            mine.keys = torch.cat([_widened(mine.keys, width), _widened(other.keys, width)])
            mine.values = torch.cat([_widened(mine.values, width), _widened(other.values, width)])
            _set_length(mine, length)


def _cached(layer: DynamicLayer, length: int) -> int:
    """Return the number of columns that a layer keeps: a sliding window keeps one less than its size."""
    if isinstance(layer, DynamicSlidingWindowLayer):
        return min(length, int(layer.sliding_window) - 1)
    return length


def _set_length(layer: DynamicLayer, length: int) -> None:
    if isinstance(layer, DynamicSlidingWindowLayer):
        layer.cumulative_length = length


def _widened(values: Tensor, width: int) -> Tensor:
    """Pad [B, H, L, D] with zeros on the left up to `width` columns, which the attention mask hides."""
    return torch.nn.functional.pad(values, (0, 0, width - values.shape[2], 0))
