"""Rounds float32 weights to 16 bits so that each update is visible from the first step on.

A pretrained weight is usually a bfloat16 value. AdamW moves it by about the learning rate per step, and
rounding to nearest returns the old value until half the distance to the next one is crossed, which takes tens
to hundreds of steps. Here each weight has its own threshold instead of one half:

    bfloat16(w) = truncate(bits(w) + t),  t in [0, 65535]

A value on the grid keeps its bits. A weight that has moved by a fraction f of the distance to its neighbour
shows the neighbour with probability f, over the thresholds, so over a matrix the visible update equals the
update. The thresholds never change, so a weight that did not move does not flicker.

A threshold is a hash of the parameter's name and of the element's index in the whole parameter. Nothing is
stored: other numbers of ranks, restarted trainers and engines compute the same bits, on the CPU and on CUDA,
since all arithmetic is on integers or exact.
"""

import struct
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

BLOCK = 1 << 20  # elements with a common seed
CHUNKS = {"cpu": 1 << 15}
"""Elements rounded at a time, by kind of device: a divisor of BLOCK, which is the default. On the CPU as many
as fit into a core's cache, too few for torch to start threads. Temporary tensors take 20 bytes per
element."""


def round_to(weight: Tensor, name: str, dtype: torch.dtype, start: int = 0) -> Tensor:
    """Round a weight to a number format, with a threshold per element.

    NaN and infinities are unchanged. A value above the largest finite number of the format is rounded to
    nearest, so a finite weight becomes infinite only if rounding to nearest makes it so.

    Args:
        weight: a weight of any shape, or a slice of whole rows of it.
        name: name of the parameter, from `seed_names`.
        dtype: bfloat16 or float16. The weight is only converted to any other format.
        start: number of elements of the whole parameter that precede this slice.

    Returns:
        A tensor of the same shape on the same device: the weight itself if it has this format already.
    """
    if dtype not in (torch.bfloat16, torch.float16) or weight.dtype == dtype:
        return weight.to(dtype)
    flat = weight.detach().reshape(-1)
    rounded = torch.empty(flat.shape, dtype=dtype, device=flat.device)
    carried = _to_bfloat16 if dtype == torch.bfloat16 else _to_float16
    for low, high in _chunks(start, flat.numel(), flat.device.type):
        exact = flat[low:high].float()
        rounded[low:high] = _finite(
            exact, carried(exact, _thresholds(name, start + low, high - low, flat.device)), dtype
        )
    return rounded.view(weight.shape)


@torch.no_grad()
def inexact(weights: Iterable[Tensor], dtype: torch.dtype) -> tuple[float, float]:
    """Return the share of weights without an exact value in a number format, and the largest rounding error.

    For sharded weights, only this rank's part counts.
    """
    count = changed = 0
    largest = 0.0
    for weight in weights:
        flat = (weight.to_local() if isinstance(weight, DTensor) else weight).reshape(-1)
        for part in torch.split(flat, BLOCK):
            off = (part.to(dtype).to(part.dtype) - part).abs()
            count += part.numel()
            changed += int(off.count_nonzero())
            largest = max(largest, float(off.amax()))
    return changed / max(count, 1), largest


def seed_names(model: Any) -> dict[str, str]:
    """Map parameter names in the model's state to the names for `round_to`.

    Tied parameters have one name. peft's inserted layers do not change names.
    """
    first: dict[int, str] = {}
    named = (
        (without_adapter(name), parameter)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    )
    return {name: first.setdefault(id(parameter), name) for name, parameter in named}


def without_adapter(name: str) -> str:
    """Return a parameter's name without peft's adapter layer."""
    return name.replace(".base_layer", "")


def _chunks(start: int, count: int, device: str) -> Iterator[tuple[int, int]]:
    """Yield parts of a slice as bounds within it, none of which crosses a block of the whole parameter."""
    size, low = CHUNKS.get(device, BLOCK), 0
    while low < count:
        high = min(low + size - (start + low) % size, count)
        yield low, high
        low = high


def _thresholds(name: str, start: int, count: int, device: torch.device) -> Tensor:
    """[count] Compute thresholds of elements of one block, int32 in [0, 65535]: two per 32-bit hash.

    The hash is lowbias32 by C. Wellons, seeded twice, in int32 that wraps around. torch shifts signed numbers
    arithmetically, so a mask clears the copies of the sign.
    """
    block, first = divmod(start, BLOCK)
    before, between = struct.unpack("<ii", blake2b(f"{name}:{block}".encode(), digest_size=8).digest())
    x = torch.arange(first // 2, (first + count + 1) // 2, dtype=torch.int32, device=device)
    x += before
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x *= 0x7FEB352D
    x ^= (x >> 15).bitwise_and_(0x1FFFF)
    x ^= between
    x *= 0x846CA68B - (1 << 32)
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    halves = x.view(torch.int16)[first % 2 :][:count]
    return halves.to(torch.int32).bitwise_and_(0xFFFF)


def _to_bfloat16(weight: Tensor, thresholds: Tensor) -> Tensor:
    """Round to the upper 16 bits with carry. The sign is a separate bit, so the magnitude is rounded."""
    return thresholds.add_(weight.view(torch.int32)).bitwise_and_(-0x10000).view(torch.float32)


def _to_float16(weight: Tensor, thresholds: Tensor) -> Tensor:
    """Round to the upper 19 bits with carry. Below 2**-14 float16 is subnormal: choose between multiples of
    2**-24."""
    normal = ((thresholds >> 3) + weight.view(torch.int32)).bitwise_and_(-0x2000).view(torch.float32)
    small = (weight.abs() < 2.0**-14).nonzero()[:, 0]
    distances = weight[small].abs() * 2.0**24  # exact, like its integer and fractional parts
    below = distances.floor()
    is_above = ((distances - below) * 65536).floor() + thresholds[small] >= 65536
    normal[small] = ((below + is_above) * 2.0**-24).copysign(weight[small])
    return normal


def _finite(weight: Tensor, rounded: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rounded values, but keep NaN and values outside the format's finite range."""
    limit = torch.finfo(dtype).max
    low, high = weight.aminmax()
    if -limit <= low and high <= limit:
        return rounded
    return torch.where(weight.abs() <= limit, rounded, weight)
