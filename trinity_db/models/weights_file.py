"""A safetensors file that is written in blocks, so that it can be hashed while it is written.

The library's own writer holds the GIL while it writes, which would block a trainer that computes its next
step concurrently. The format: 8 bytes with the header's length, a JSON header, and the tensors in sequence
(https://huggingface.co/docs/safetensors).
"""

import json
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

FILE = "model.safetensors"
"""Name of a model's weights file in transformers."""
BLOCK_BYTES = 1 << 24  # bytes per block

SIXTEEN_BITS = ("BF16", "F16")
MAX_HEADER_BYTES = 100_000_000  # as the library allows

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Supported dtypes, and their names in files."""


class WeightsFile:
    """The content of a file with these tensors.

    The tensors may be on any device, and are not copied. Before they change while a thread writes the file,
    call `copy_unwritten`. The file can be written once.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        # Wide numbers first, like the library, so that every tensor starts at a multiple of its width.
        names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        self._lock = threading.Lock()
        self._unwritten = deque(tensors[name].detach().contiguous().reshape(-1) for name in names)
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in names:
            tensor = tensors[name]
            start, end = end, end + tensor.numel() * tensor.element_size()
            header[name] = {
                "dtype": DTYPES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [start, end],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._head = len(text).to_bytes(8, "little") + text
        self.size = len(self._head) + end
        """Size of the file in bytes."""

    def blocks(self) -> Iterator[memoryview]:
        """Yield the bytes of the file, in order. Only one block is copied at a time."""
        yield memoryview(self._head)
        while self._unwritten:
            size = self._unwritten[0].numel() * self._unwritten[0].element_size()
            for start in range(0, size, BLOCK_BYTES):
                with self._lock:
                    part = self._unwritten[0].view(torch.uint8)[start : start + BLOCK_BYTES]
                    block = part.to("cpu", copy=True)
                yield block.numpy().data
            with self._lock:
                self._unwritten.popleft()

    def copy_unwritten(self) -> None:
        """Copy the unwritten tensors to CPU memory, after which the originals may change."""
        with self._lock:
            self._unwritten = deque(tensor.to("cpu", copy=True) for tensor in self._unwritten)


def is_sixteen_bit(file: Path) -> bool:
    """Whether more than half of a file of weights is in 16-bit floating point. False for any other file."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(min(length, MAX_HEADER_BYTES)))
        sizes = Counter[bool]()
        for name, tensor in header.items():
            if name != "__metadata__":
                start, end = tensor["data_offsets"]
                sizes[tensor["dtype"] in SIXTEEN_BITS] += end - start
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return sizes[True] > sizes[False]
