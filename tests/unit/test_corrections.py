"""Weights of off-policy rows against numbers worked out by hand, loops, and the identities between forms."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from trinity_db.config.base import validate
from trinity_db.trainer.recipes.parts.corrections import (
    engine_difference,
    importance_metrics,
    interpolated_proximal,
    m2po,
    masked_importance_sampling,
    off_policy_sequence_masking,
    sampling_difference,
    truncated_importance_sampling,
)
from trinity_db.trainer.recipes.parts.kinds import section
from trinity_db.trainer.recipes.parts.totals import Totals

Correction = Callable[..., Tensor]
Level = Literal["token", "sequence"]

BEHAVIOUR = torch.tensor([[-1.0, -2.0, -1.0], [-0.5, -3.0, -7.0]], dtype=torch.float64)
LOG_RATIOS = torch.tensor([[0.5, -1.0, 2.0], [0.25, 0.25, 9.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True], [True, True, False]])
PROXIMAL = BEHAVIOUR + LOG_RATIOS


def exponentials(*exponents: float | None) -> list[float]:
    return [0.0 if x is None else math.exp(x) for x in exponents]


def batch(spread: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Proximal, behaviour, mask with ragged lengths, advantages of both signs."""
    generator = torch.Generator().manual_seed(seed)
    behaviour = -torch.rand(6, 12, dtype=torch.float64, generator=generator) * 4
    proximal = behaviour + spread * torch.randn(6, 12, dtype=torch.float64, generator=generator)
    mask = torch.arange(12) < torch.tensor([12, 1, 5, 8, 3, 1])[:, None]
    advantages = torch.randn(6, 1, dtype=torch.float64, generator=generator)
    return proximal, behaviour, mask, advantages


def test_truncated_weights_equal_the_hand_computed_numbers() -> None:
    token = truncated_importance_sampling(PROXIMAL, BEHAVIOUR, MASK, high=2.0)
    assert token[0].tolist() == pytest.approx([math.exp(0.5), math.exp(-1), 2])
    assert token[1].tolist() == pytest.approx(exponentials(0.25, 0.25, None))
    sequence = truncated_importance_sampling(PROXIMAL, BEHAVIOUR, MASK, level="sequence", high=2.0)
    assert sequence[0].tolist() == pytest.approx([2, 2, 2])  # e^1.5 is above
    assert sequence[1].tolist() == pytest.approx(exponentials(0.5, 0.5, None))


def test_masked_weights_equal_the_hand_computed_numbers() -> None:
    token = masked_importance_sampling(PROXIMAL, BEHAVIOUR, MASK)
    assert token[0].tolist() == pytest.approx(exponentials(0.5, None, None))
    assert token[1].tolist() == pytest.approx(exponentials(0.25, 0.25, None))
    sequence = masked_importance_sampling(PROXIMAL, BEHAVIOUR, MASK, level="sequence", low=0, high=4)
    assert sequence[0].tolist() == [0, 0, 0]
    assert sequence[1].tolist() == pytest.approx(exponentials(0.5, 0.5, None))


def test_both_ends_of_the_range_are_kept() -> None:
    behaviour, mask = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    proximal = torch.tensor([[math.log(0.5), math.log(4)]], dtype=torch.float64)
    kept = masked_importance_sampling(proximal, behaviour, mask, low=0.5, high=4)
    assert kept[0].tolist() == pytest.approx([0.5, 4])


def test_a_bad_response_of_a_policy_far_away_is_masked_and_a_good_one_is_not() -> None:
    behaviour = torch.full((4, 3), -1.0, dtype=torch.float64)
    drift = torch.tensor([[0.3, 0.3, 9.0], [0.3, 0.3, 9.0], [0.1, -0.1, 9.0], [-3.0, -3.0, 9.0]])
    mask = torch.tensor([[True, True, False]]).expand(4, 3)
    advantages = torch.tensor([[-1.0], [1.0], [-1.0], [-1.0]])
    weights = off_policy_sequence_masking(behaviour - drift, behaviour, mask, advantages)
    assert weights.tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 0]]


def test_sequence_masking_judges_advantages_token_by_token_where_they_are() -> None:
    behaviour, mask = torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool)
    advantages = torch.tensor([[1.0, -1.0, 0.0]])
    weights = off_policy_sequence_masking(behaviour - 1, behaviour, mask, advantages)
    assert weights.tolist() == [[1, 0, 1]]


@pytest.mark.parametrize("spread", [0.05, 0.35, 1.5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_m2po_masks_what_a_loop_takes_away_one_by_one(spread: float, seed: int) -> None:
    proximal, behaviour, mask, advantages = batch(spread, seed)
    log_ratios = (proximal - behaviour).numpy()
    expected = np.where(mask, np.exp(log_ratios), 0)
    active = {
        (i, t): log_ratios[i, t] ** 2
        for i, t in mask.nonzero().tolist()
        if (advantages[i] > 0 and log_ratios[i, t] > 0) or (advantages[i] < 0 and log_ratios[i, t] < 0)
    }
    while active and sum(active.values()) / len(active) > 0.04:
        largest = max(active, key=lambda token: active[token])
        expected[largest] = 0
        del active[largest]
    weights = m2po(proximal, behaviour, mask, advantages)
    assert weights.numpy() == pytest.approx(expected, abs=1e-12)
    if spread == 1.5:
        assert 0 < (weights[mask] == 0).sum() < mask.sum()


def test_m2po_judges_a_step_as_one_whatever_the_order_of_its_rows() -> None:
    proximal, behaviour, mask, advantages = batch(0.35)
    proximal[3], behaviour[3] = -0.65, -1.0  # equal log-ratios, and the cut may fall among them
    advantages[3] = 1.0
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    for threshold in (0.01, 0.04, 0.09, 0.12):
        whole = m2po(proximal, behaviour, mask, advantages, threshold=threshold)
        shuffled = m2po(
            proximal[order], behaviour[order], mask[order], advantages[order], threshold=threshold
        )
        assert torch.equal(shuffled, whole[order])
        assert len(set(whole[3, :8].tolist())) == 1
    alone = torch.cat(
        [m2po(*(x[i : i + 1] for x in (proximal, behaviour, mask, advantages))) for i in range(6)]
    )
    assert not torch.equal(alone, m2po(proximal, behaviour, mask, advantages))


def test_m2po_may_leave_nothing() -> None:
    behaviour, mask = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    assert m2po(behaviour + 1, behaviour, mask, torch.ones(1, 1)).tolist() == [[0, 0]]


def test_the_interpolated_policy_is_nearer_to_the_present_one_the_staler_a_row_is() -> None:
    logprobs = torch.tensor([[-1.0, -2.0]], dtype=torch.float64).expand(4, 2).requires_grad_()
    behaviour = torch.tensor([[-3.0, -1.0]], dtype=torch.float64).expand(4, 2)
    proximal = interpolated_proximal(logprobs, behaviour, torch.tensor([0, 1, 3, -1]))
    expected = [[-3, -1], [-2, -1.5], [-1.5, -1.75], [-3, -1]]
    assert proximal.numpy() == pytest.approx(np.array(expected), abs=1e-14)
    assert not proximal.requires_grad


@pytest.mark.parametrize("spread", [0.35, 1.5])
def test_interpolation_equals_a_loop_over_versions(spread: float) -> None:
    """AReaL's form: versions v of behaviour and of the policy being trained, proximal is one before that."""
    logprobs, behaviour, mask, _ = batch(spread)
    versions, current = [7, 6, 4, 7, 0, 5], 8
    staleness = torch.tensor([current - 1 - version for version in versions])
    proximal = interpolated_proximal(logprobs, behaviour, staleness)
    for i, t in mask.nonzero().tolist():
        alpha = min(max((current - 1 - versions[i]) / (current - versions[i]), 0), 1)
        expected = behaviour[i, t] + alpha * (logprobs[i, t] - behaviour[i, t])
        assert proximal[i, t].item() == pytest.approx(expected.item(), abs=1e-12)


@pytest.mark.parametrize("spread", [0.35, 1.5])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_decoupled_weights_equal_a_loop_over_tokens(spread: float, level: Level) -> None:
    """AReaL's clamp and mask with its cap of 5, verl's of 2 and IcePop's range, written out."""
    proximal, behaviour, mask, _ = batch(spread)
    for low, high in [(0.0, 5.0), (0.5, 5.0), (0.0, 2.0)]:
        masked = masked_importance_sampling(proximal, behaviour, mask, level=level, low=low, high=high)
        truncated = truncated_importance_sampling(proximal, behaviour, mask, level=level, high=high)
        for i, t in np.ndindex(*mask.shape):
            tokens = [t] if level == "token" else range(int(mask[i].sum()))
            ratio = (
                math.exp(sum((proximal[i, k] - behaviour[i, k]).item() for k in tokens)) * mask[i, t].item()
            )
            kept = ratio if low <= ratio <= high else 0.0
            assert masked[i, t].item() == pytest.approx(kept, abs=1e-12)
            assert truncated[i, t].item() == pytest.approx(min(ratio, high), abs=1e-12)


def test_a_masked_sequence_of_one_token_is_masked_as_a_token_is() -> None:
    proximal, behaviour, _, _ = batch(1.5)
    mask = torch.arange(12) < torch.ones(6, 1)
    for correct in (truncated_importance_sampling, masked_importance_sampling):
        by_token = correct(proximal, behaviour, mask, level="token")
        torch.testing.assert_close(correct(proximal, behaviour, mask, level="sequence"), by_token)


ALL: list[Correction] = [
    truncated_importance_sampling,
    masked_importance_sampling,
    partial(truncated_importance_sampling, level="sequence", high=100),
    partial(masked_importance_sampling, level="sequence", low=0, high=100),
    partial(off_policy_sequence_masking, advantages=-torch.ones(1, 1)),
    partial(m2po, advantages=torch.ones(1, 1)),
]


@pytest.mark.parametrize("correct", ALL)
@pytest.mark.parametrize("unscored", [math.nan, -math.inf, math.inf])
def test_a_token_that_was_not_scored_counts_as_unchanged(correct: Correction, unscored: float) -> None:
    behaviour = torch.tensor([[-1.0, unscored, -2.0]])
    proximal, mask = torch.tensor([[-1.1, -5.0, -1.9]]), torch.ones(1, 3, dtype=torch.bool)
    same = behaviour.clone()
    same[0, 1] = -5.0
    assert torch.equal(correct(proximal, behaviour, mask), correct(proximal, same, mask))


@pytest.mark.parametrize("correct", ALL)
def test_weights_are_nothing_outside_the_mask_and_nothing_there_reaches_them(
    correct: Correction,
) -> None:
    proximal, behaviour, mask, _ = batch(0.35)
    junk = proximal.masked_fill(~mask, math.nan).requires_grad_()
    weights = correct(junk, behaviour.masked_fill(~mask, 3.0), mask)
    assert torch.equal(weights, correct(proximal, behaviour, mask))
    assert (weights[~mask] == 0).all()
    assert not weights.requires_grad


@pytest.mark.parametrize("correct", ALL)
def test_weights_of_half_precision_are_computed_in_single(correct: Correction) -> None:
    proximal, behaviour, mask, _ = batch(0.35)
    halves = proximal.bfloat16(), behaviour.bfloat16()
    weights = correct(*halves, mask)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights, correct(*(x.float() for x in halves), mask))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_far_apart_policies_have_finite_weights(level: Level) -> None:
    behaviour, mask = torch.zeros(1, 50), torch.ones(1, 50, dtype=torch.bool)
    weights = masked_importance_sampling(behaviour + 30, behaviour, mask, level=level, low=0, high=1e30)
    assert weights.isfinite().all()
    assert weights[0, 0].item() == pytest.approx(math.exp(20), rel=1e-5)


def test_metrics_are_those_of_the_weights_as_applied() -> None:
    weights = masked_importance_sampling(PROXIMAL, BEHAVIOUR, MASK)
    totals = Totals(tokens=10, sequences=4, items=4)  # half of them in another micro-batch
    metrics = {name: value.item() for name, value in importance_metrics(weights, MASK, totals).items()}
    ratio = "sampling/importance_sampling_ratio"
    assert metrics == {
        f"{ratio}/mean": pytest.approx((math.exp(0.5) + 2 * math.exp(0.25)) / 10),
        f"{ratio}/min": 0.0,
        f"{ratio}/max": pytest.approx(math.exp(0.5)),
        "sampling/masked_fraction": pytest.approx(2 / 10),
    }


def test_the_sampling_difference_is_absolute_and_of_the_trained_tokens() -> None:
    found = sampling_difference(PROXIMAL, BEHAVIOUR, MASK, Totals(tokens=10, sequences=4, items=4))
    assert found["sampling/sampling_logp_difference/mean"].item() == pytest.approx((0.5 + 1 + 2 + 0.5) / 10)
    assert found["sampling/sampling_logp_difference/max"].item() == pytest.approx(2.0)


def test_the_difference_of_engines_is_that_of_tokens_of_the_same_version() -> None:
    behaviour = torch.tensor([[-1.0, -2.0, -3.0, -1.0], [-1.0, -1.0, -1.0, -1.0]])
    ratios = torch.tensor([[1.0, 1.19, 0.5, 1.0], [0.79, 1.21, 9.0, 0.81]])
    same = torch.tensor([[True, True, False, True], [True, True, False, True]])
    totals = Totals(tokens=16, sequences=4, items=4, same_version_tokens=12)  # half in another micro-batch
    found = engine_difference(behaviour + ratios.log(), behaviour, same, totals)
    compared = [1.0, 1.19, 1.0, 0.79, 1.21, 0.81]
    differences = [abs(math.log(ratio)) for ratio in compared]
    assert {name: value.item() for name, value in found.items()} == {
        "sampling/engine_logp_difference/mean": pytest.approx(sum(differences) / 12, abs=1e-6),
        "sampling/engine_logp_difference/max": pytest.approx(math.log(1 / 0.79), abs=1e-6),
        "sampling/engine_ratio_outside": pytest.approx(2 / 12),
    }


def test_an_unscored_token_is_its_own_proximal_policy() -> None:
    logprobs, behaviour = torch.tensor([[-1.0, -2.0]]), torch.tensor([[math.nan, -math.inf]])
    assert torch.equal(interpolated_proximal(logprobs, behaviour, torch.tensor([0])), logprobs)


def test_m2po_with_an_interpolated_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="m2po compares all tokens of a step before its first update"):
        validate(section("correction", "m2po"), {"proximal": "interpolated"}, "run.yaml")


def test_a_range_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"low 3[.]0 is above high 2[.]0"):
        validate(section("correction", "masked_importance_sampling"), {"low": 3, "high": 2}, "run.yaml")
