"""Attention of sequences end to end, against the formula; and what is asked of the kernel for GPUs.

No GPU is needed: in place of the kernel stands the formula, with the arguments that torch documents.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trinity_db.models import inner_values, packed_kernels
from trinity_db.models.packed_kernels import attend, kernel_for
from trinity_db.models.segments import Segments

LENGTHS = [17, 40, 40, 3, 3, 3, 1]
# Continuations of the first two sequences, and of one of these: longer and shorter ones than their contexts.
SEGMENTS = Segments([*LENGTHS, 20, 9, 9, 4, 30, 30, 2, 6, 5], [*[-1] * 7, 0, 0, 0, 0, 1, 1, 1, 8, 8])
TOTAL = SEGMENTS.starts[-1]
WINDOWS = [None, 1, 2, 4, 16, 30]


def formula(query: Tensor, key: Tensor, value: Tensor, sees: Tensor, scale: float | None) -> Tensor:
    """[H, T, D] Attention by softmax. sees [T, T]: whether a token sees another."""
    shares = query.shape[0] // key.shape[0]
    key, value = (one.repeat_interleave(shares, dim=0) for one in (key, value))
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    return scores.masked_fill(~sees, -torch.inf).softmax(-1) @ value


def seen(segments: Segments, window: int | None) -> Tensor:
    """[T, T] Which tokens a token sees: the last ones up to itself, of its segment and those before it."""
    sees = torch.zeros(segments.starts[-1], segments.starts[-1], dtype=torch.bool)
    for segment in range(len(segments.lengths)):
        own, path = segments.indices([segment]), segments.indices(segments.path(segment))
        for token in own:
            before = path[: list(path).index(token) + 1]
            sees[token, before if window is None else before[-window:]] = True
    return sees


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
    read = [end - begin for begin, end in pairwise(cu_seq_k.tolist())]
    assert (max_q, max_k) == (max(lengths), max(read))
    assert window_size[1] == 0, "no token sees those after it"
    assert enable_gqa
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert {one.dtype for one in (query, key, value)} <= {torch.bfloat16, torch.float16}
    found = []
    for part in zip(
        *(torch.split(*one) for one in ((query, lengths), (key, read), (value, read))), strict=True
    ):
        queries, keys, values = (one.transpose(0, 1) for one in part)
        distance = (
            torch.arange(len(part[0]))[:, None] + len(part[1]) - len(part[0]) - torch.arange(len(part[1]))
        )
        sees = (distance >= 0) & ((distance <= window_size[0]) if window_size[0] >= 0 else True)
        found.append(formula(queries, keys, values, sees, scale).transpose(0, 1))
    return torch.cat(found)


def given(shared: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, heads, TOTAL, 8, generator=generator, dtype=dtype).requires_grad_()
        for heads in (4, shared, shared)
    ]


def with_gradients(found: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.linspace(-1, 2, found.numel(), dtype=found.dtype).view_as(found)
    return [found.detach(), *torch.autograd.grad((weights * found).sum(), inputs)]


def expected(inputs: list[Tensor], window: int | None, scale: float | None = None) -> list[Tensor]:
    sees = seen(SEGMENTS, window)
    query, key, value = (one[0] for one in inputs)
    return with_gradients(formula(query, key, value, sees, scale).transpose(0, 1)[None], inputs)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("shared", [4, 2, 1])
def test_each_segment_attends_to_itself_and_its_context_within_its_window(
    window: int | None, shared: int
) -> None:
    inputs = given(shared)
    query, key, value = inputs
    found = with_gradients(attend(query, key, value, SEGMENTS, window, 0.3), inputs)
    torch.testing.assert_close(found, expected(inputs, window, 0.3), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("window", "runs"),
    [(None, [(17, 1), (40, 2), (3, 3), (1, 1)]), (4, [(17, 1), (40, 1), (40, 1), (3, 3), (1, 1)])],
)
def test_neighbours_of_one_length_are_computed_together_unless_they_are_cut_to_blocks(
    window: int | None, runs: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    one = packed_kernels._attend_together

    def counted(query: Tensor, *others: Any) -> Tensor:
        computed.append((query.shape[2], query.shape[0]))
        return one(query, *others)

    monkeypatch.setattr(packed_kernels, "_attend_together", counted)
    query, key, value = (one[:, :, : sum(LENGTHS)] for one in given(2))
    attend(query, key, value, Segments(LENGTHS), window, None)
    assert computed == runs


def test_many_short_continuations_of_a_long_prefix_keep_no_copies_of_its_keys() -> None:
    segments = Segments([400, *[1] * 200], [-1, *[0] * 200])
    inputs = [torch.randn(1, heads, 600, 8).requires_grad_() for heads in (4, 2, 2)]
    query, key, value = inputs
    # Stacks of the CPU read the prefix once for every 200 tokens, runs in a window once for each token.
    for window, stacks in ((None, True), (500, False)):
        attended = partial(attend, query, key, value, segments, window, None)
        assert (inner_values.kept_bytes(attended, inputs) > 0) == stacks
    found = with_gradients(attend(query, key, value, segments, 500, None), inputs)
    torch.testing.assert_close(found, with_gradients(attend(query, key, value, segments, None, None), inputs))


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
        attend(query, key, value, Segments([1024]), 16, None)
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
        found = with_gradients(attend(query, key, value, SEGMENTS, window, None).float(), inputs)
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
