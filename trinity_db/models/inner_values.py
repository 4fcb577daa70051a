"""Memory that a forward pass keeps for its backward pass, and the resulting limits of micro-batches."""

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

SHARE = 0.5  # share of free memory; the rest is for temporary values, copies of weights, and other processes
CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


class Limits(NamedTuple):
    """Limits of a micro-batch, in tokens."""

    micro_batch: int
    """Most tokens of a micro-batch with several rows."""
    recompute_above: int
    """Most tokens whose activations fit into memory; above that, layers recompute them."""


def kept_bytes(compute: Callable[[], Tensor], weights: Collection[Tensor]) -> int:
    """Return the bytes that a computation keeps for its backward pass, without its weights."""
    own = {weight.untyped_storage().data_ptr() for weight in weights}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = compute()  # while it exists, no address is reused
    del result
    return sum(kept.values())


def limits(most: int, free: int | None, reserved: int, token_bytes: float) -> Limits:
    """Compute the limits for this much memory.

    Args:
        most: tokens of a micro-batch above which no time is saved. free: free bytes. None: unknown. reserved:
            bytes of `free` that gradients and the optimizer's state will take. token_bytes: bytes per token
            that the backward pass needs.
    """
    if free is None:
        return Limits(most, sys.maxsize)
    fitting = max(1, int(SHARE * max(0, free - reserved) / token_bytes))
    return Limits(min(most, fitting), fitting)


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a GPU, or of this machine within the limit of its container (cgroup v2). None
    if the system does not report it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if not MEMINFO.exists():
        return None
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    return min(free, _free_in_container(free))


def _free_in_container(otherwise: int) -> int:
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        counts = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except OSError:  # no container limits memory
        return otherwise
    cache = int(counts.get("inactive_file", 0))  # the kernel frees it on demand
    return otherwise if limit == "max" else max(0, int(limit) - used + cache)
