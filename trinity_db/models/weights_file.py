"""A safetensors file that is written in blocks, so that a digest sees each byte on its way to the disk.

The library's own writer holds Python's lock while it writes. A trainer that computes its next step beside it
would stand still meanwhile. The format: 8 bytes with the header's length, a header in JSON, and the tensors
one after the other (https://huggingface.co/docs/safetensors).
"""

import json
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

FILE = "model.safetensors"
"""The name under which `transformers` looks for a model's weights."""
BLOCK_BYTES = 1 << 24  # at a time

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
"""The dtypes that a file holds, and their names in it."""


class WeightsFile:
    """The content of a file with these tensors.

    The tensors may be on any device, and are not copied. Whoever changes them while a thread writes the file
    calls `copy_unwritten` before. The file can be written once.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        # Wide numbers first, as the library orders them: so every tensor begins at a multiple of its width.
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
        """In bytes."""

    def blocks(self) -> Iterator[memoryview]:
        """The bytes of the file, in order. Each block is a copy, the only one besides the tensors."""
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
        """Copy the tensors that are not written yet into the memory of the CPU. Then they may change."""
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
