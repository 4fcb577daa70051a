"""Limits of the device, to compare the other figures with, and the cost of a new shape of attention.

On some GPUs PyTorch prefers cuDNN's attention, which plans each shape that it has not seen. Padded rows, and
each token of the engine `transformers`, are new shapes.
"""

import statistics
import time
from collections.abc import Iterator

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import trained
from benchmarks.context import Context
from benchmarks.gpu.measurement import Row, alone, milliseconds

HEADS, HEAD_SIZE, ROWS = 14, 64, 64
SHAPES = 8
WIDTH = {"cuda": 8192, "cpu": 256}  # of square matrices
NUMBERS = {"cuda": 1 << 28, "cpu": 1 << 22}  # float32 numbers to copy
CALLS = 1000


def measure(context: Context, device: str) -> Iterator[Row]:
    """Yield rows without a model."""
    for dtype in (torch.bfloat16, torch.float32):
        yield alone(context, "", f"{dtype} product", product, (device, dtype), device)
    for target in ("device", "pageable memory", *(["pinned memory"] if device == "cuda" else [])):
        yield alone(context, "", f"copy to {target}", copy, (device, target), device)
    for title in ("launch of a small kernel", "item()"):
        yield alone(context, "", title, small, (device, title), device)
    for is_training in (True, False):
        for has_cudnn in (True, False) if device == "cuda" else (False,):
            title = f"attention of {'a training step' if is_training else 'one token'}"
            title += f", cuDNN {'as by default' if has_cudnn else 'off'}"
            yield alone(context, "", title, new_shapes, (device, is_training, has_cudnn), device)


def product(arguments: tuple[str, torch.dtype]) -> dict[str, float]:
    """Multiply two square matrices."""
    device, dtype = arguments
    width = WIDTH[device]
    left, right = (torch.randn(width, width, device=device).to(dtype) for _ in range(2))
    return {"TFLOP/s": 2 * width**3 / milliseconds(lambda: left @ right, device) / 1e9}


def copy(arguments: tuple[str, str]) -> dict[str, float]:
    """Copy from the device; a copy within the device reads and writes."""
    device, target = arguments
    source = torch.ones(NUMBERS[device], device=device)
    copied = (
        source.clone() if target == "device" else torch.empty(source.shape, pin_memory=target[:3] == "pin")
    )
    passes = 2 if target == "device" else 1
    return {"GB/s": passes * 4 * len(source) / milliseconds(lambda: copied.copy_(source), device) / 1e6}


def small(arguments: tuple[str, str]) -> dict[str, float]:
    """Launch a kernel, or read one number, many times."""
    device, call = arguments
    tensor = torch.zeros(1, device=device)

    def calls() -> None:
        for _ in range(CALLS):
            tensor.item() if call == "item()" else tensor.add_(1)

    return {"µs": 1e3 * milliseconds(calls, device) / CALLS}


def new_shapes(arguments: tuple[str, bool, bool]) -> dict[str, float]:
    """Compare the first and the second call of attention with a length."""
    device, is_training, has_cudnn = arguments
    torch.backends.cuda.enable_cudnn_sdp(has_cudnn)

    def call(length: int) -> float:
        trained.synchronize(device)
        start = time.perf_counter()
        count, queries = (1, length) if is_training else (ROWS, 1)
        query, key, value = (
            torch.randn(
                count, HEADS, n, HEAD_SIZE, device=device, dtype=torch.bfloat16, requires_grad=is_training
            )
            for n in (queries, length, length)
        )
        output = scaled_dot_product_attention(query, key, value, is_causal=is_training)
        if is_training:
            torch.autograd.backward(output.sum())
        trained.synchronize(device)
        return 1e3 * (time.perf_counter() - start)

    call(200)
    first, second = zip(*((call(n), call(n)) for n in range(300, 300 + 7 * SHAPES, 7)), strict=True)
    return {"ms new shape": statistics.median(first), "ms known shape": statistics.median(second)}
