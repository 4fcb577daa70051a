"""Kernels for causal attention of sequences packed end to end in one row.

flash      on a GPU, in bfloat16 and float16: one call for all sequences, torch's own `varlen_attn`
efficient  on a GPU, for what flash does not support, such as float32: one call per length, memory is linear
plain      on a CPU: one call per run of neighbours of equal length; short ones with a context are stacked

Sequences that share a prefix are several segments (`segments.py`). The prefix, their context, is computed
once, and a copy of its keys precedes the keys of each call. A causal call gets queries of zeros in place of
the context's, since torch aligns causal attention at the first key.

On a GPU, scaled_dot_product_attention falls back to a kernel that stores all scores, quadratic in the row, if
heads share keys in float32. So shared keys are repeated there. The mask of a window is quadratic too, so long
rows are split into blocks.

Shapes: total tokens, H heads, G heads of keys and values, D the size of a head.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from trinity_db.models.segments import Calls, Segments

logger = logging.getLogger(__name__)

Kernel = Literal["flash", "efficient", "plain"]

FLASH_HEAD = 256  # largest head size that flash supports; a multiple of 8
FLASH_CAPABILITY = (8, 0)  # required compute capability: Ampere and later
TRIAL_LENGTHS, TRIAL_PARENTS = (70, 1, 33, 40, 5), (-1, -1, -1, 0, 3)
TRIAL_WINDOW = 20
MOST_COPIES = 4  # keys that calls read for each token; above that, the backward pass copies them again
TRIAL_TOLERANCE = 0.05  # relative; bfloat16 rounds by 0.004, a wrong window or sequence gives 1


_noted: set[Kernel] = set()


@contextmanager
def noting() -> Iterator[set[Kernel]]:
    """Yield the set of kernels that `attend` uses within this context."""
    _noted.clear()
    yield _noted


def attend(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, window: int | None, scale: float | None
) -> Tensor:
    """Compute causal attention within each sequence.

    Args:
        query: [1, H, total, D]; key and value [1, G, total, D], where G divides H.
        window: tokens that a token attends to, including itself. None: all earlier ones.
        scale: factor of the scores. None: 1 / √D.

    Returns:
        [1, total, H, D].
    """
    kernel = kernel_for(query, key, value, has_window=window is not None)
    _noted.add(kernel)
    compute, calls = _by_calls, _calls(query, segments, window)
    if kernel == "flash":
        compute, calls = _flash, segments.each(window, query.device)
    if calls.num_keys > MOST_COPIES * query.shape[2]:
        attended: Tensor = checkpoint(
            compute, query, key, value, calls, window, scale, use_reentrant=False, preserve_rng_state=False
        )
        return attended
    return compute(query, key, value, calls, window, scale)


def _calls(query: Tensor, segments: Segments, window: int | None) -> Calls:
    """Return the calls of `_by_calls`. On a GPU a mask would need another kernel than causal calls."""
    return segments.calls(window, query.device, _dtype(query) if query.device.type == "cpu" else None)


def _by_calls(
    query: Tensor, key: Tensor, value: Tensor, planned: Calls, window: int | None, scale: float | None
) -> Tensor:
    """[1, total, H, D] Attention by a call for each run or stack of segments."""
    calls, indices = planned
    if indices is not None:
        key, value = key.index_select(2, indices), value.index_select(2, indices)
    # The gradient of one split is one concatenation; the gradient of slices would be a sum of whole tensors.
    queries = torch.split(query, [call.num_queries for call in calls], dim=2)
    sizes = [call.num_keys for call in calls]
    attended = []
    for call, *part in zip(
        calls, queries, torch.split(key, sizes, dim=2), torch.split(value, sizes, dim=2), strict=True
    ):
        several = [torch.unflatten(tensor[0], 1, (call.times, -1)).transpose(0, 1) for tensor in part]
        output = _attend_together(several[0], several[1], several[2], window, scale, call.mask)
        attended.append(output.transpose(1, 2).flatten(0, 1)[None])
    return torch.cat(attended, dim=1)


def kernel_for(query: Tensor, key: Tensor, value: Tensor, *, has_window: bool) -> Kernel:
    """Return the kernel that `attend` uses."""
    if query.device.type != "cuda":
        return "plain"
    size, dtype = query.shape[-1], _dtype(query)
    fits = size <= FLASH_HEAD and size % 8 == 0 and value.shape[-1] == size
    if not fits or dtype not in (torch.bfloat16, torch.float16):
        return "efficient"
    heads = (query.shape[1], key.shape[1])
    return "flash" if _flash_is_right(query.device, dtype, size, heads, has_window) else "efficient"


def _attend_together(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: int | None,
    scale: float | None,
    mask: Tensor | None = None,
) -> Tensor:
    """[N, H, length, D] Attention of segments of equal length; N is 1 if they are split into blocks.

    Args:
        key: [N, G, context + length, D], like value.
        mask: added to the scores. None: causal.
    """
    shares = query.shape[1] // key.shape[1]
    if shares > 1 and query.device.type == "cuda":
        key, value = (tensor.repeat_interleave(shares, dim=1) for tensor in (key, value))
        shares = 1
    if mask is not None:
        return scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=shares > 1)
    length = key.shape[2]
    if context := length - query.shape[2]:
        return _attend_together(pad(query, (0, 0, context, 0)), key, value, window, scale)[:, :, context:]
    if window is not None and length > 2 * window:  # below that, blocks have more scores than the mask
        return _in_blocks(query, key, value, window, scale)
    if window is not None and length > window:
        mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril().triu(1 - window)
    return scaled_dot_product_attention(
        query, key, value, mask, is_causal=mask is None, scale=scale, enable_gqa=shares > 1
    )


def _in_blocks(query: Tensor, key: Tensor, value: Tensor, window: int, scale: float | None) -> Tensor:
    """Blocks of `window` queries, each with the keys of its block and of the one before.

    Memory grows with length times window, not with the square of the length.
    """
    length = query.shape[2]
    blocks = -(-length // window)
    query = pad(query, (0, 0, 0, blocks * window - length))
    # An empty block precedes the first.
    key, value = (pad(tensor, (0, 0, window, blocks * window - length)) for tensor in (key, value))
    queries = query.reshape(1, query.shape[1], blocks, window, -1).movedim(2, 0).flatten(0, 1)
    keys, values = (
        tensor.unfold(2, 2 * window, window).movedim(2, 0).transpose(-1, -2).flatten(0, 1)
        for tensor in (key, value)
    )
    places = torch.arange(window, device=query.device)
    behind = places[:, None] + window - torch.arange(2 * window, device=query.device)
    mask = ((behind >= 0) & (behind < window)).expand(blocks, 1, -1, -1).clone()
    mask[0, :, :, :window] = False
    output = scaled_dot_product_attention(
        queries, keys, values, mask, scale=scale, enable_gqa=queries.shape[1] != keys.shape[1]
    )
    return output.movedim(0, 1).flatten(1, 2)[None, :, :length]


def _flash(
    query: Tensor, key: Tensor, value: Tensor, planned: Calls, window: int | None, scale: float | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    dtype = _dtype(query)
    calls, indices = planned
    queries, keys, values = (tensor[0].transpose(0, 1).to(dtype) for tensor in (query, key, value))
    if indices is not None:
        keys, values = keys.index_select(0, indices), values.index_select(0, indices)
    output = varlen_attn(
        queries,
        keys,
        values,
        _ends([call.num_queries for call in calls], query.device),
        _ends([call.num_keys for call in calls], query.device),
        max(call.num_queries for call in calls),
        max(call.num_keys for call in calls),
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),  # tokens before and after the query
        enable_gqa=True,
    )
    assert isinstance(output, Tensor), "no other output was requested"
    return output[None]


def _ends(lengths: Sequence[int], device: torch.device) -> Tensor:
    """Return where each part begins and the last one ends."""
    return pad(torch.tensor(lengths).cumsum(0), (1, 0)).to(torch.int32).to(device, non_blocking=True)


def _dtype(query: Tensor) -> torch.dtype:
    """Return the dtype of the attention: autocast's if active, like torch's own attention."""
    device = query.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype


@cache
def _flash_is_right(
    device: torch.device, dtype: torch.dtype, size: int, heads: tuple[int, int], has_window: bool
) -> bool:
    """Whether flash computes correct values and gradients here, tested once per shape."""
    if torch.cuda.get_device_capability(device) < FLASH_CAPABILITY:
        return False
    window = TRIAL_WINDOW if has_window else None
    try:
        differences = _trial(device, dtype, size, heads, window)
    except (ImportError, RuntimeError, TypeError, ValueError) as error:  # for example torch before 2.12
        logger.warning("flash attention is not used: %s", " ".join(str(error).split())[:200])
        return False
    if max(differences) > TRIAL_TOLERANCE:
        logger.warning("flash attention is not used: it differs by %.3g in a trial", max(differences))
        return False
    return True


def _trial(
    device: torch.device, dtype: torch.dtype, size: int, heads: tuple[int, int], window: int | None
) -> list[float]:
    """Return relative differences of result and three gradients between flash and float32."""
    generator = torch.Generator().manual_seed(0)
    segments = Segments(TRIAL_LENGTHS, TRIAL_PARENTS)
    inputs = [
        torch.randn(1, count, sum(TRIAL_LENGTHS), size, generator=generator).to(device, dtype)
        for count in (heads[0], heads[1], heads[1])
    ]
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        exact = [tensor.float().requires_grad_() for tensor in inputs]
        rounded = [tensor.clone().requires_grad_() for tensor in inputs]
        expected = _by_calls(exact[0], exact[1], exact[2], _calls(exact[0], segments, window), window, None)
        planned = segments.each(window, device)
        output = _flash(rounded[0], rounded[1], rounded[2], planned, window, None).float()
        weights = torch.randn(expected.shape, generator=generator).to(device)
        wanted = [expected, *torch.autograd.grad((weights * expected).sum(), exact)]
        gotten = [output, *torch.autograd.grad((weights * output).sum(), rounded)]
    return [
        float((actual.detach().float() - other.detach()).abs().max() / other.detach().abs().max())
        for actual, other in zip(gotten, wanted, strict=True)
    ]
