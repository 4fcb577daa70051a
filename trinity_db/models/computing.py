"""Says what a process computes with, and measures how much memory of a GPU it took."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Computing:
    """How rows go through a model."""

    device: str
    dtype: str
    layout: str
    """How sequences lie in a micro-batch: packed, padded or alone."""
    attention: tuple[str, ...]
    """Kernels of the attention, as `packed_kernels.py` or transformers names them."""

    def __str__(self) -> str:
        return f"{self.device}, {self.dtype}, rows {self.layout}, attention {' and '.join(self.attention)}"


def name_of(device: torch.device) -> str:
    """The device, and which GPU it is."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def peak_bytes(device: str) -> int | None:
    """The most memory that tensors of this process took on a GPU since the last call. None on a CPU."""
    if torch.device(device).type != "cuda":
        return None
    most = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return most
