"""Aggregation against numbers worked out by hand, and that the size of a micro-batch changes nothing."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from trinity_db.trainer.recipes.parts.aggregation import (
    seq_mean_token_mean,
    seq_mean_token_sum,
    seq_mean_token_sum_norm,
    token_mean,
)
from trinity_db.trainer.recipes.parts.totals import Totals

AGGREGATIONS = [
    token_mean,
    seq_mean_token_sum,
    seq_mean_token_mean,
    partial(seq_mean_token_sum_norm, length=8),
]
Aggregation = Callable[[Tensor, Tensor, Totals], Tensor]

VALUES = torch.tensor([[1.0, 2.0, 3.0, 9.0], [5.0, 9.0, 9.0, 9.0], [9.0, 9.0, 9.0, 9.0]], dtype=torch.float64)
LENGTHS = torch.tensor([3, 1, 0])


def mask_of(lengths: Tensor, columns: int) -> Tensor:
    return torch.arange(columns) < lengths[:, None]


def totals_of(mask: Tensor) -> Totals:
    return Totals(tokens=int(mask.sum()), sequences=int(mask.any(dim=1).sum()), items=len(mask))


def ragged(seed: int = 0) -> tuple[Tensor, Tensor]:
    values = torch.randn(7, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return values.requires_grad_(), mask_of(torch.tensor([9, 1, 4, 0, 7, 1, 6]), 9)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    list(
        zip(AGGREGATIONS, [(6 + 5) / 4, (6 + 5) / 2, (6 / 3 + 5 / 1) / 2, (6 / 8 + 5 / 8) / 2], strict=True)
    ),
)
def test_aggregations_equal_the_hand_computed_numbers(aggregate: Aggregation, expected: float) -> None:
    mask = mask_of(LENGTHS, 4)
    assert aggregate(VALUES, mask, totals_of(mask)).item() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("aggregate", AGGREGATIONS)
def test_micro_batches_of_any_size_give_the_same_loss_and_gradient(aggregate: Aggregation, size: int) -> None:
    values, mask = ragged()
    totals = totals_of(mask)
    whole = aggregate(values, mask, totals)
    (expected,) = torch.autograd.grad(whole, values)
    parts = [
        aggregate(values[start : start + size], mask[start : start + size], totals)
        for start in range(0, len(values), size)
    ]
    (gradient,) = torch.autograd.grad(torch.stack(parts).sum(), values)
    assert torch.stack(parts).sum().item() == pytest.approx(whole.item(), abs=1e-14)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("aggregate", AGGREGATIONS)
def test_what_stands_outside_the_mask_reaches_neither_loss_nor_gradient(aggregate: Aggregation) -> None:
    values, mask = ragged()
    junk = torch.full_like(values, torch.nan).where(~mask, values.detach()).requires_grad_()
    loss = aggregate(junk, mask, totals_of(mask))
    (gradient,) = torch.autograd.grad(loss, junk)
    assert loss.item() == pytest.approx(aggregate(values, mask, totals_of(mask)).item(), abs=1e-14)
    assert gradient.isfinite().all()
    assert (gradient[~mask] == 0).all()


@pytest.mark.parametrize("aggregate", AGGREGATIONS)
def test_a_sequence_without_a_trained_token_changes_nothing(aggregate: Aggregation) -> None:
    values, mask = ragged()
    kept = mask.any(dim=1)
    with_it = aggregate(values, mask, totals_of(mask)).item()
    without = aggregate(values[kept], mask[kept], totals_of(mask[kept])).item()
    assert with_it == pytest.approx(without, abs=1e-14)


def test_of_sequences_of_one_length_token_mean_and_sequence_mean_are_the_same() -> None:
    values, mask = ragged()[0], mask_of(torch.full((7,), 5), 9)
    totals = totals_of(mask)
    expected = token_mean(values, mask, totals).item()
    assert seq_mean_token_mean(values, mask, totals).item() == pytest.approx(expected, abs=1e-14)
    normed = seq_mean_token_sum_norm(values, mask, totals, length=5).item()
    assert normed == pytest.approx(expected, abs=1e-14)
