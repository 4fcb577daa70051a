"""Describes how a process computes, and measures its peak GPU memory."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Computing:
    """Device, number format and layout of a model's computation."""

    device: str
    dtype: str
    layout: str
    """Layout of sequences in a micro-batch: packed, padded or alone."""
    attention: tuple[str, ...]
    """Attention kernels, with the names of `packed_kernels.py` or transformers."""

    def __str__(self) -> str:
        return f"{self.device}, {self.dtype}, rows {self.layout}, attention {' and '.join(self.attention)}"


def name_of(device: torch.device) -> str:
    """Return the device, with the name of the GPU."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def peak_bytes(device: str) -> int | None:
    """Return the peak GPU memory of this process's tensors since the last call; None on a CPU."""
    if torch.device(device).type != "cuda":
        return None
    most = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return most
