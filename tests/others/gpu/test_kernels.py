"""Each attention kernel against the formula in float32 on the CPU, and what the default of numbers is."""

import pytest
import torch
from torch import Tensor

from trinity_db.models import packed_kernels
from trinity_db.models.libraries import computing_dtype
from trinity_db.models.segments import Segments
from trinity_db.trainer.config import TrainerConfig

LENGTHS = [300, 1, 77, 512]
HEADS, SHARED, SIZE = 8, 2, 64
NEAR = {torch.float32: 1e-3, torch.bfloat16: 0.03}  # relative to the largest value


def formula(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    """[1, T, H, D] Attention by softmax over all scores, sequence by sequence."""
    shares = query.shape[1] // key.shape[1]
    found = []
    for queries, keys, values in zip(
        *(torch.split(one, LENGTHS, dim=2) for one in (query, key, value)), strict=True
    ):
        keys, values = (one.repeat_interleave(shares, dim=1) for one in (keys, values))
        length = queries.shape[2]
        sees = torch.ones(length, length, dtype=torch.bool).tril()
        sees = sees if window is None else sees.triu(1 - window)
        scores = queries @ keys.transpose(-1, -2) * SIZE**-0.5
        attended = scores.masked_fill(~sees, -torch.inf).softmax(-1) @ values
        found.append(attended.transpose(1, 2))
    return torch.cat(found, dim=1)


def with_gradients(found: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.linspace(-1, 2, found.numel()).view_as(found).to(found)
    gradients = torch.autograd.grad((weights * found).float().sum(), inputs)
    return [one.detach().float().cpu() for one in (found, *gradients)]


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_a_kernel_computes_the_formula(dtype: torch.dtype, window: int | None, device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, sum(LENGTHS), SIZE) for heads in (HEADS, SHARED, SHARED)]
    given = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    exact = [one.float().requires_grad_() for one in given]
    expected = with_gradients(formula(exact[0], exact[1], exact[2], window), exact)
    inputs = [one.to(device).requires_grad_() for one in given]
    with packed_kernels.noting() as kernels:
        attended = packed_kernels.attend(inputs[0], inputs[1], inputs[2], Segments(LENGTHS), window, None)
    for found, wanted in zip(with_gradients(attended, inputs), expected, strict=True):
        assert float((found - wanted).abs().max() / wanted.abs().max()) < NEAR[dtype]
    on_gpu = "flash" if dtype is torch.bfloat16 else "efficient"
    assert kernels == {"plain" if device == "cpu" else on_gpu}


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_a_kernel_attends_to_shared_prefixes(dtype: torch.dtype, window: int | None, device: str) -> None:
    """Against the kernel of the CPU in float32, which `tests/unit/test_packed_kernels.py` tests."""
    segments = Segments([*LENGTHS, 200, 30, 30, 30, 9], [*[-1] * len(LENGTHS), 0, 0, 0, 3, 4])
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, segments.starts[-1], SIZE) for heads in (HEADS, SHARED, SHARED)]
    given = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    exact = [one.float().requires_grad_() for one in given]
    inputs = [one.to(device).requires_grad_() for one in given]
    found, expected = (
        with_gradients(packed_kernels.attend(one[0], one[1], one[2], segments, window, None), one)
        for one in (inputs, exact)
    )
    for mine, theirs in zip(found, expected, strict=True):
        assert float((mine - theirs).abs().max() / theirs.abs().max()) < NEAR[dtype]


def test_bfloat16_is_the_default_where_the_device_computes_in_it(device: str) -> None:
    is_native = device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    expected = torch.bfloat16 if is_native else torch.float32
    assert computing_dtype(TrainerConfig().dtype, device) is expected
