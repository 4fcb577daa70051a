"""The kernels that compute causal attention of sequences end to end in one row.

flash      on a GPU, in bfloat16 and float16: one call for all sequences, torch's own `varlen_attn`
efficient  on a GPU, for what flash does not take, as float32: one call a length, memory grows with the row
plain      on a CPU: one call for neighbours of one length

On a GPU scaled_dot_product_attention falls to a kernel that keeps all scores, the square of the row, if heads
share keys in float32. So shared keys are repeated there. A mask for a window is the square of the row too, so
long rows are cut to blocks.
Shapes: total tokens, H heads, G heads of keys and values, D the size of a head.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import groupby, pairwise
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

logger = logging.getLogger(__name__)

Kernel = Literal["flash", "efficient", "plain"]

FLASH_HEAD = 256  # largest size of a head that flash takes; a multiple of 8
FLASH_CAPABILITY = (8, 0)  # of a GPU: Ampere and later
TRIAL_LENGTHS = (70, 1, 33)
TRIAL_WINDOW = 20
TRIAL_TOLERANCE = 0.05  # relative; bfloat16 rounds by 0.004, a wrong window or sequence gives 1


_noted: set[Kernel] = set()


@contextmanager
def noting() -> Iterator[set[Kernel]]:
    """The kernels that `attend` computes with within this `with`."""
    _noted.clear()
    yield _noted


def attend(
    query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], window: int | None, scale: float | None
) -> Tensor:
    """Attention within each sequence, to tokens that are not later.

    Args:
        query: [1, H, total, D]; key and value [1, G, total, D], where G divides H.
        window: tokens that a token sees, itself included. None: all before it.
        scale: of the scores. None: 1 / √D.

    Returns:
        [1, total, H, D].
    """
    kernel = kernel_for(query, key, value, has_window=window is not None)
    _noted.add(kernel)
    if kernel == "flash":
        return _flash(query, key, value, lengths, window, scale)
    runs = _runs(lengths, window)
    # The gradient of one split is one concatenation. The gradient of slices would be a sum of whole tensors.
    sizes = [length * count for length, count in runs]
    parts = zip(*(torch.split(whole, sizes, dim=2) for whole in (query, key, value)), strict=True)
    attended = []
    for (length, count), part in zip(runs, parts, strict=True):
        several = [one[0].unflatten(1, (count, length)).transpose(0, 1) for one in part]
        found = _one(several[0], several[1], several[2], window, scale)
        attended.append(found.transpose(1, 2).flatten(0, 1)[None])
    return torch.cat(attended, dim=1)


def _runs(lengths: Sequence[int], window: int | None) -> list[tuple[int, int]]:
    """Lengths, and how many neighbours have each: these are computed by one call. Of many short sequences the
    calls would take longer than what they compute.

    A sequence that is cut to blocks comes alone.
    """
    runs = [(length, len(list(same))) for length, same in groupby(lengths)]
    if window is None:
        return runs
    return [
        run
        for length, count in runs
        for run in ([(length, 1)] * count if length > 2 * window else [(length, count)])
    ]


def kernel_for(query: Tensor, key: Tensor, value: Tensor, *, has_window: bool) -> Kernel:
    """The kernel that `attend` computes with."""
    if query.device.type != "cuda":
        return "plain"
    size, dtype = query.shape[-1], _dtype(query)
    fits = size <= FLASH_HEAD and size % 8 == 0 and value.shape[-1] == size
    if not fits or dtype not in (torch.bfloat16, torch.float16):
        return "efficient"
    heads = (query.shape[1], key.shape[1])
    return "flash" if _flash_is_right(query.device, dtype, size, heads, has_window) else "efficient"


def _one(query: Tensor, key: Tensor, value: Tensor, window: int | None, scale: float | None) -> Tensor:
    """[N, H, length, D] Attention of sequences of one length. Where they are cut to blocks, N is 1."""
    shares = query.shape[1] // key.shape[1]
    if shares > 1 and query.device.type == "cuda":
        key, value = (one.repeat_interleave(shares, dim=1) for one in (key, value))
        shares = 1
    length = query.shape[2]
    if window is not None and length > 2 * window:  # below it, blocks have more scores than the mask
        return _in_blocks(query, key, value, window, scale)
    mask = None
    if window is not None and length > window:
        mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril().triu(1 - window)
    return scaled_dot_product_attention(
        query, key, value, mask, is_causal=mask is None, scale=scale, enable_gqa=shares > 1
    )


def _in_blocks(query: Tensor, key: Tensor, value: Tensor, window: int, scale: float | None) -> Tensor:
    """Blocks of `window` queries, each with the keys of its block and of the one before.

    Memory grows with length times window, and not with the square of the length.
    """
    length = query.shape[2]
    blocks = -(-length // window)
    query = pad(query, (0, 0, 0, blocks * window - length))
    # One block of nothing stands before the first.
    key, value = (pad(one, (0, 0, window, blocks * window - length)) for one in (key, value))
    queries = query.reshape(1, query.shape[1], blocks, window, -1).movedim(2, 0).flatten(0, 1)
    keys, values = (
        one.unfold(2, 2 * window, window).movedim(2, 0).transpose(-1, -2).flatten(0, 1)
        for one in (key, value)
    )
    places = torch.arange(window, device=query.device)
    behind = places[:, None] + window - torch.arange(2 * window, device=query.device)
    mask = ((behind >= 0) & (behind < window)).expand(blocks, 1, -1, -1).clone()
    mask[0, :, :, :window] = False
    found = scaled_dot_product_attention(
        queries, keys, values, mask, scale=scale, enable_gqa=queries.shape[1] != keys.shape[1]
    )
    return found.movedim(0, 1).flatten(1, 2)[None, :, :length]


def _flash(
    query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], window: int | None, scale: float | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    dtype = _dtype(query)
    ends = pad(torch.tensor(lengths).cumsum(0), (1, 0)).to(torch.int32).to(query.device, non_blocking=True)
    queries, keys, values = (one[0].transpose(0, 1).to(dtype) for one in (query, key, value))
    found = varlen_attn(
        queries,
        keys,
        values,
        ends,
        ends,
        max(lengths),
        max(lengths),
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),  # tokens before, and after, the one that looks
        enable_gqa=True,
    )
    assert isinstance(found, Tensor), "nothing beside it was asked for"
    return found[None]


def _dtype(query: Tensor) -> torch.dtype:
    """The dtype that attention is computed in: under autocast its dtype, as for torch's own attention."""
    device = query.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype


@cache
def _flash_is_right(
    device: torch.device, dtype: torch.dtype, size: int, heads: tuple[int, int], has_window: bool
) -> bool:
    """Whether flash computes right values and gradients here, by a trial, once for each shape."""
    if torch.cuda.get_device_capability(device) < FLASH_CAPABILITY:
        return False
    window = TRIAL_WINDOW if has_window else None
    try:
        differences = _trial(device, dtype, size, heads, window)
    except (ImportError, RuntimeError, TypeError, ValueError) as error:  # as where torch is older than 2.12
        logger.warning("flash attention is not used: %s", " ".join(str(error).split())[:200])
        return False
    if max(differences) > TRIAL_TOLERANCE:
        logger.warning("flash attention is not used: it differs by %.3g in a trial", max(differences))
        return False
    return True


def _trial(
    device: torch.device, dtype: torch.dtype, size: int, heads: tuple[int, int], window: int | None
) -> list[float]:
    """Relative differences between flash and the same in float32, of the result and of three gradients."""
    generator = torch.Generator().manual_seed(0)
    given = [
        torch.randn(1, count, sum(TRIAL_LENGTHS), size, generator=generator).to(device, dtype)
        for count in (heads[0], heads[1], heads[1])
    ]
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        exact = [one.float().requires_grad_() for one in given]
        rounded = [one.clone().requires_grad_() for one in given]
        bounds = [0, *torch.tensor(TRIAL_LENGTHS).cumsum(0).tolist()]
        parts = [[one[:, :, a:b] for one in exact] for a, b in pairwise(bounds)]
        expected = torch.cat(
            [_one(part[0], part[1], part[2], window, None).transpose(1, 2) for part in parts], 1
        )
        found = _flash(rounded[0], rounded[1], rounded[2], TRIAL_LENGTHS, window, None).float()
        weights = torch.randn(expected.shape, generator=generator).to(device)
        wanted = [expected, *torch.autograd.grad((weights * expected).sum(), exact)]
        gotten = [found, *torch.autograd.grad((weights * found).sum(), rounded)]
    return [
        float((one.detach().float() - other.detach()).abs().max() / other.detach().abs().max())
        for one, other in zip(gotten, wanted, strict=True)
    ]
