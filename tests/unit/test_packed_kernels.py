"""Attention of sequences end to end, against the formula; and what is asked of the kernel for GPUs.

No GPU is needed: in place of the kernel stands the formula, with the arguments that torch documents.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trinity_db.models import packed_kernels
from trinity_db.models.packed_kernels import attend, kernel_for

LENGTHS = [17, 40, 40, 3, 3, 3, 1]
WINDOWS = [None, 1, 4, 16, 30]


def formula(query: Tensor, key: Tensor, value: Tensor, sees: Tensor, scale: float | None) -> Tensor:
    """[H, T, D] Attention by softmax. sees [T, T]: whether a token sees another."""
    shares = query.shape[0] // key.shape[0]
    key, value = (one.repeat_interleave(shares, dim=0) for one in (key, value))
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    return scores.masked_fill(~sees, -torch.inf).softmax(-1) @ value


def seen(lengths: list[int], before: int) -> Tensor:
    """[T, T] Which tokens a token sees: of its sequence, itself and so many before. -1: all before."""
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    place = torch.arange(sum(lengths))
    distance = place[:, None] - place
    sees = (sequence[:, None] == sequence) & (distance >= 0)
    return sees if before < 0 else sees & (distance <= before)


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Tensor:
    """What torch documents of its kernel: [T, H, D] tensors, and sequences by where they begin and end."""
    lengths = [end - begin for begin, end in pairwise(cu_seq_q.tolist())]
    assert torch.equal(cu_seq_k, cu_seq_q)
    assert max_q == max_k == max(lengths)
    assert window_size[1] == 0, "no token sees those after it"
    assert enable_gqa
    assert cu_seq_q.dtype == torch.int32
    assert {one.dtype for one in (query, key, value)} <= {torch.bfloat16, torch.float16}
    queries, keys, values = (one.transpose(0, 1) for one in (query, key, value))
    return formula(queries, keys, values, seen(lengths, window_size[0]), scale).transpose(0, 1)


def given(shared: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, heads, sum(LENGTHS), 8, generator=generator, dtype=dtype).requires_grad_()
        for heads in (4, shared, shared)
    ]


def with_gradients(found: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.linspace(-1, 2, found.numel(), dtype=found.dtype).view_as(found)
    return [found.detach(), *torch.autograd.grad((weights * found).sum(), inputs)]


def expected(inputs: list[Tensor], window: int | None, scale: float | None = None) -> list[Tensor]:
    sees = seen(LENGTHS, -1 if window is None else window - 1)
    query, key, value = (one[0] for one in inputs)
    return with_gradients(formula(query, key, value, sees, scale).transpose(0, 1)[None], inputs)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("shared", [4, 2, 1])
def test_each_sequence_attends_to_itself_within_its_window(window: int | None, shared: int) -> None:
    inputs = given(shared)
    query, key, value = inputs
    found = with_gradients(attend(query, key, value, LENGTHS, window, 0.3), inputs)
    torch.testing.assert_close(found, expected(inputs, window, 0.3), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("window", "runs"),
    [(None, [(17, 1), (40, 2), (3, 3), (1, 1)]), (4, [(17, 1), (40, 1), (40, 1), (3, 3), (1, 1)])],
)
def test_neighbours_of_one_length_are_computed_together_unless_they_are_cut_to_blocks(
    window: int | None, runs: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    one = packed_kernels._one

    def counted(query: Tensor, *others: Any) -> Tensor:
        computed.append((query.shape[2], query.shape[0]))
        return one(query, *others)

    monkeypatch.setattr(packed_kernels, "_one", counted)
    query, key, value = given(2)
    attend(query, key, value, LENGTHS, window, None)
    assert computed == runs


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the largest tensor that is made."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), others: Any = None) -> Any:
        result = function(*arguments, **(others or {}))
        sizes = [one.numel() for one in tree_leaves(result) if isinstance(one, Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return result


def test_a_window_of_a_long_row_takes_no_square_of_the_row() -> None:
    query, key, value = (torch.randn(1, 1, 1024, 8) for _ in range(3))
    with Largest() as largest:  # type: ignore[no-untyped-call]
        attend(query, key, value, [1024], 16, None)
    assert largest.numbers <= 1024 * 2 * 16


class GPU:
    """A machine that says it has a GPU, and computes on the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch.setattr
        self.is_of((9, 0))

    def is_of(self, capability: tuple[int, int]) -> None:
        self._patch(torch.cuda, "get_device_capability", lambda device: capability)

    def computes_by(self, kernel: Callable[..., Tensor]) -> None:
        self._patch("torch.nn.attention.varlen.varlen_attn", kernel)

    def takes_flash(self, window: bool = True) -> bool:
        return packed_kernels._flash_is_right(torch.device("cpu"), torch.bfloat16, 16, (4, 2), window)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[GPU]:
    packed_kernels._flash_is_right.cache_clear()
    yield GPU(monkeypatch)
    packed_kernels._flash_is_right.cache_clear()


@pytest.mark.parametrize("window", WINDOWS)
def test_flash_is_asked_once_for_all_sequences_in_the_dtype_of_autocast(
    window: int | None, gpu: GPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def counted(*arguments: Any, **others: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return varlen_attn(*arguments, **others)

    gpu.computes_by(counted)
    monkeypatch.setattr(packed_kernels, "kernel_for", lambda *_, **__: "flash")
    inputs = given(2, torch.float32)
    query, key, value = inputs
    with torch.autocast("cpu", torch.bfloat16):
        found = with_gradients(attend(query, key, value, LENGTHS, window, None).float(), inputs)
    assert calls == 1
    for mine, theirs in zip(found, expected(inputs, window), strict=True):
        assert (mine - theirs).abs().max() < 0.03 * max(1.0, float(theirs.abs().max()))


def test_flash_is_taken_where_a_trial_shows_that_it_is_right(
    gpu: GPU, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.computes_by(varlen_attn)
    assert gpu.takes_flash()
    assert gpu.takes_flash(window=False)
    assert not caplog.text


def without_window(*arguments: Any, **others: Any) -> Tensor:
    return varlen_attn(*arguments, **others | {"window_size": (-1, 0)})


def with_half_the_window(*arguments: Any, window_size: tuple[int, int], **others: Any) -> Tensor:
    return varlen_attn(*arguments, **others, window_size=(window_size[0] // 2, 0))


def without_gradient(*arguments: Any, **others: Any) -> Tensor:
    found = varlen_attn(*arguments, **others)
    return found.detach() + 0 * found


def not_there(*_: Any, **__: Any) -> Tensor:
    raise RuntimeError("no kernel image is available")


@pytest.mark.parametrize("kernel", [without_window, with_half_the_window, without_gradient, not_there])
def test_flash_that_computes_something_else_is_not_taken_and_that_is_said(
    kernel: Callable[..., Tensor], gpu: GPU, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.computes_by(kernel)
    assert not gpu.takes_flash()
    assert caplog.text.count("flash attention is not used") == 1


def test_an_older_gpu_is_not_asked(gpu: GPU) -> None:
    gpu.computes_by(varlen_attn)
    gpu.is_of((7, 5))
    assert not gpu.takes_flash()


def test_a_cpu_computes_plainly() -> None:
    query, key, value = given(2)
    assert kernel_for(query, key, value, has_window=False) == "plain"
