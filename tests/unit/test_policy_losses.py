"""Policy losses against numbers worked out by hand, and what holds for all of them."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from trinity_db.trainer.recipes.parts.kinds import chosen
from trinity_db.trainer.recipes.parts.policy_losses import (
    cispo,
    dppo,
    gspo,
    policy_gradient,
    ppo_clip,
    rec,
    sapo,
    sequence_clip,
    sppo,
    topr,
)

Loss = Callable[..., dict[str, Tensor]]


def without_old(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> dict[str, Tensor]:
    return policy_gradient(logprobs, advantages, mask)


LOSSES: dict[str, Loss] = {
    "ppo_clip": ppo_clip,
    "ppo_clip with dual clip": partial(ppo_clip, dual_clip=1.5),
    "policy_gradient": without_old,
    "sequence_clip": sequence_clip,
    "gspo": gspo,
    "cispo": cispo,
    "sapo": sapo,
    "sppo": sppo,
    "topr": topr,
    "dppo": dppo,
    "rec": rec,
    "rec, one_side": partial(rec, clip_mode="one_side", weight="ratio"),
    "rec, two_side": partial(rec, clip_mode="two_side", weight="ratio"),
    "rec, ring": partial(rec, clip_mode="ring", weight="ratio"),
    "rec, sequence": partial(rec, clip_mode="sequence_one_side", weight="sequence_ratio"),
}
KEEP_THE_GRADIENT = {"cispo", "topr"}  # where they clip
every_loss = pytest.mark.parametrize("name", LOSSES)


def by_ratio(
    loss: Loss, ratios: list[float], advantages: list[float], old: float = -2.0
) -> list[list[float]]:
    """Loss, gradient and clip ratio of tokens with these ratios, each a sequence of its own."""
    before = torch.full((len(ratios), 1), old, dtype=torch.float64)
    logprobs = (before + torch.tensor(ratios, dtype=torch.float64).log()[:, None]).requires_grad_()
    advantage = torch.tensor(advantages, dtype=torch.float64)[:, None]
    result = loss(logprobs, before, advantage, torch.ones(len(ratios), 1, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(result["loss"].sum(), logprobs)
    return [x.detach()[:, 0].tolist() for x in (result["loss"], gradient, result.get("clip_ratio", gradient))]


def some_rows(spread: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(30, 6, generator=generator, dtype=torch.float64) - 0.1
    moved = spread * torch.randn(30, 6, generator=generator, dtype=torch.float64)
    advantages = torch.randn(30, 1, generator=generator, dtype=torch.float64)
    mask = torch.arange(6) < torch.arange(30)[:, None] % 7
    return (old + moved).requires_grad_(), old, advantages, mask


@every_loss
def test_where_the_policy_has_not_moved_the_gradient_is_the_policy_gradient(name: str) -> None:
    logprobs, old, advantages, mask = some_rows(spread=0.0)
    loss = LOSSES[name](logprobs, old, advantages, mask)["loss"]
    if name == "sequence_clip":  # the same at each token: their mean is the sequence's
        loss = loss / mask.sum(dim=1, keepdim=True).clamp(min=1)
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    torch.testing.assert_close(gradient, -advantages * mask)


@every_loss
def test_a_token_counted_as_clipped_adds_no_gradient_and_others_do(name: str) -> None:
    logprobs, old, advantages, mask = some_rows(spread=0.6)
    result = LOSSES[name](logprobs, old, advantages, mask)
    if "clip_ratio" not in result or name == "rec" or name in KEEP_THE_GRADIENT:
        assert name in {"policy_gradient", "sapo", "rec", *KEEP_THE_GRADIENT}
        return
    (gradient,) = torch.autograd.grad(result["loss"].sum(), logprobs)
    assert torch.equal(gradient[mask] == 0, result["clip_ratio"][mask] == 1)
    assert 0 < result["clip_ratio"][mask].mean() < 1


@every_loss
@pytest.mark.parametrize("rubbish", [math.nan, math.inf, -math.inf])
def test_what_stands_at_masked_places_reaches_neither_loss_nor_gradient(name: str, rubbish: float) -> None:
    logprobs, old, advantages, mask = some_rows(spread=0.6)
    clean = LOSSES[name](logprobs, old, advantages, mask)
    (expected,) = torch.autograd.grad(clean["loss"].sum(), logprobs)
    spoiled = [x.detach().expand(mask.shape).masked_fill(~mask, rubbish) for x in (logprobs, old, advantages)]
    result = LOSSES[name](spoiled[0].requires_grad_(), *spoiled[1:], mask)
    (gradient,) = torch.autograd.grad(result["loss"].sum(), spoiled[0])
    torch.testing.assert_close(result, clean)
    torch.testing.assert_close(gradient, expected)
    assert not result["loss"][~mask].any()
    assert not gradient[~mask].any()


@every_loss
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_huge_ratios_stay_finite(name: str, advantage: float) -> None:
    logprobs = torch.tensor([[-1e-3] * 5, [-500.0] * 5], requires_grad=True)
    old, mask = logprobs.detach().flip(0), torch.ones(2, 5, dtype=torch.bool)
    result = LOSSES[name](logprobs, old, torch.full((2, 1), advantage), mask)
    (gradient,) = torch.autograd.grad(result["loss"].sum(), logprobs)
    assert result["loss"].isfinite().all()
    assert gradient.isfinite().all()


def test_ppo_clip_equals_the_hand_computed_numbers() -> None:
    ratios, advantages = [1.0, 1.1, 1.5, 0.5, 1.5, 0.5], [2.0, 2.0, 2.0, 2.0, -2.0, -2.0]
    loss, gradient, clipped = by_ratio(partial(ppo_clip, clip_high=0.28), ratios, advantages)
    assert loss == pytest.approx([-2.0, -2.2, -2.56, -1.0, 3.0, 1.6])
    assert gradient == pytest.approx([-2.0, -2.2, 0.0, -1.0, 3.0, 0.0])
    assert clipped == [0, 0, 1, 0, 0, 1]


def test_dual_clip_bounds_the_pull_of_negative_advantages_only() -> None:
    ratios, advantages = [5.0, 2.0, 5.0], [-2.0, -2.0, 2.0]
    loss, gradient, clipped = by_ratio(partial(ppo_clip, dual_clip=3.0), ratios, advantages)
    assert loss == pytest.approx([6.0, 4.0, -2.4])
    assert gradient == pytest.approx([0.0, 4.0, 0.0])
    assert clipped == [1, 0, 1]


def test_tau_only_shortens_the_policy_gradient() -> None:
    logprobs, _, advantages, mask = some_rows(spread=0.3)
    plain = policy_gradient(logprobs, advantages, mask)["loss"]
    torch.testing.assert_close(policy_gradient(logprobs, advantages, mask, tau=3.0)["loss"], plain / 4)


def test_a_sequence_is_clipped_by_the_product_of_its_ratios_or_by_their_geometric_mean() -> None:
    # Two tokens that doubled, two that doubled and halved, and one alone beside padding.
    change = torch.tensor([[2.0, 2.0], [2.0, 0.5], [1.1, 9.0]], dtype=torch.float64).log()
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    advantages = torch.tensor([[1.0], [1.0], [-1.0]], dtype=torch.float64)
    result = sequence_clip(change - 3, torch.full_like(change, -3.0), advantages, mask, clip_high=0.5)
    expected = torch.tensor([[-1.5, -1.5], [-1.0, -1.0], [1.1, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(result["loss"], expected)
    assert result["clip_ratio"].tolist() == [[1, 1], [0, 0], [0, 0]]
    result = gspo(change - 3, torch.full_like(change, -3.0), advantages, mask, clip_high=1.5)
    expected = torch.tensor([[-2.0, -2.0], [-1.0, -1.0], [1.1, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(result["loss"], expected)
    assert not result["clip_ratio"].any()


def test_gspo_by_token_is_gspo_by_sequence() -> None:
    logprobs, old, advantages, mask = some_rows(spread=0.6)
    lengths = mask.sum(dim=1).clamp(min=1)
    tokens = gspo(logprobs, old, advantages, mask, clip_low=0.2, clip_high=0.3)["loss"]
    (gradient,) = torch.autograd.grad((tokens.sum(dim=1) / lengths).sum(), logprobs)
    ratio = (((logprobs - old) * mask).sum(dim=1) / lengths).exp()
    sequences = torch.maximum(-advantages[:, 0] * ratio, -advantages[:, 0] * ratio.clamp(0.8, 1.3))
    (expected,) = torch.autograd.grad(sequences.sum(), logprobs)
    torch.testing.assert_close(gradient, expected)


def test_cispo_bounds_the_weight_and_keeps_the_gradient() -> None:
    loss, gradient, clipped = by_ratio(partial(cispo, clip_low=0.5), [0.2, 1.2, 4.0, 4.0], [1, 1, 1, -1])
    logprobs = [-2 + math.log(ratio) for ratio in (0.2, 1.2, 4.0, 4.0)]
    weights = [0.5, 1.2, 1.28, -1.28]
    assert loss == pytest.approx([-w * x for w, x in zip(weights, logprobs, strict=True)])
    assert gradient == pytest.approx([-w for w in weights])
    assert clipped == [1, 0, 1, 1]


def test_masked_cispo_leaves_out_what_has_left_the_range_in_the_direction_of_its_advantage() -> None:
    ratios, advantages = [0.2, 0.2, 1.2, 4.0, 4.0], [1.0, -1.0, 1.0, 1.0, -1.0]
    options = partial(cispo, clip_low=0.5, mask_clipped=True)
    loss, gradient, clipped = by_ratio(options, ratios, advantages)
    # The weights as without the mask, and 0 for r < 0.5 with A < 0 and for r > 1.28 with A > 0.
    weights = [0.5, 0.0, 1.2, 0.0, -1.28]
    assert loss == pytest.approx([-w * (math.log(r) - 2) for w, r in zip(weights, ratios, strict=True)])
    assert gradient == pytest.approx([-w for w in weights])
    assert clipped == [1, 1, 0, 1, 1]
    logprobs, old, advantage, mask = some_rows(spread=0.6)
    kept = cispo(logprobs, old, advantage, mask, mask_clipped=True)["unmasked_ratio"]
    ratio = (logprobs - old).exp()
    assert torch.equal(kept[mask] == 0, ((ratio > 1.28) & (advantage > 0))[mask])
    assert "unmasked_ratio" not in cispo(logprobs, old, advantage, mask)


def test_sapos_gate_closes_on_both_sides_and_faster_for_negative_advantages() -> None:
    ratios = [1.0, 3.0, 0.2, 3.0]
    _, gradient, _ = by_ratio(partial(sapo, temperature_negative=2.0), ratios, [1.0, 1.0, 1.0, -1.0])
    # The derivative by log r: 4·σ(τ(r - 1))·σ(-τ(r - 1))·r.
    gates = [1 / math.cosh(t * (r - 1) / 2) ** 2 for r, t in zip(ratios, [1, 1, 1, 2], strict=True)]
    signs = [-1, -1, -1, 1]
    assert gradient == pytest.approx([s * g * r for s, g, r in zip(signs, gates, ratios, strict=True)])
    assert gates[3] < gates[1] < gates[0]


def test_sppo_leaves_out_what_is_outside_whatever_the_sign_of_the_advantage() -> None:
    ratios, advantages = [1.0, 1.25, 0.8, 1.35, 1.35, 0.7, 0.75], [2.0, 2.0, 2.0, 2.0, -2.0, 2.0, -2.0]
    loss, gradient, clipped = by_ratio(sppo, ratios, advantages)
    assert loss == pytest.approx([0, -2 * math.log(1.25), -2 * math.log(0.8), 0, 0, 0, 0])
    assert gradient == pytest.approx([-2, -2, -2, 0, 0, 0, 0])
    assert clipped == [0, 0, 0, 1, 1, 1, 1]


def test_topr_tapers_bad_responses_only() -> None:
    _, gradient, clipped = by_ratio(topr, [0.1, 0.1, 5.0, 5.0], [2.0, -2.0, 2.0, -2.0])
    assert gradient == pytest.approx([-2.0, 0.2, -2.0, 2.0])
    assert clipped == [0, 0, 0, 1]
    _, gradient, _ = by_ratio(partial(topr, threshold=0.5), [0.1, 0.1], [0.5, 0.6])
    assert gradient == pytest.approx([-0.05, -0.6])


def test_dppo_looks_at_the_probability_and_not_at_the_ratio() -> None:
    # A rare token that became nine times as likely stays; a likely one that gained a quarter does not.
    rare = by_ratio(partial(dppo, max_ratio=8.0), [9.0, 9.0], [1.0, -1.0], old=math.log(0.01))
    assert rare[1] == pytest.approx([-8.0, 8.0])
    assert rare[2] == [0, 0]
    likely = by_ratio(dppo, [1.25, 1.25, 0.5, 0.5], [1.0, -1.0, 1.0, -1.0], old=math.log(0.81))
    assert likely[1] == pytest.approx([0.0, 1.25, -0.5, 0.0])
    assert likely[2] == [1, 0, 0, 1]


RATIOS, ADVANTAGES = [1.1, 1.5, 4.0, 0.7, 0.3, 1.5, 4.0, 0.7, 0.3], [2.0] * 5 + [-2.0] * 4


@pytest.mark.parametrize(
    ("clip_mode", "left_out"),
    [
        ("none", [0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("two_side", [0, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("one_side", [0, 1, 1, 0, 0, 0, 0, 1, 1]),
        ("sequence_one_side", [0, 1, 1, 0, 0, 0, 0, 1, 1]),  # each sequence has one token here
        ("ring", [0, 1, 1, 1, 0, 1, 0, 1, 1]),
    ],
)
def test_rec_leaves_out_by_its_mode(clip_mode: Any, left_out: list[int]) -> None:
    _, gradient, clipped = by_ratio(partial(rec, clip_mode=clip_mode), RATIOS, ADVANTAGES)
    assert clipped == left_out
    expected = [-a * (1 - cut) for a, cut in zip(ADVANTAGES, left_out, strict=True)]
    assert gradient == pytest.approx(expected)


def test_rec_weighs_and_regularises() -> None:
    _, gradient, _ = by_ratio(partial(rec, weight="ratio"), [3.0, 0.5], [2.0, -2.0])
    assert gradient == pytest.approx([-6.0, 1.0])
    _, gradient, _ = by_ratio(partial(rec, weight="advantage", temperature=4.0), [3.0, 0.5], [2.0, -2.0])
    assert gradient == pytest.approx([-2 * math.exp(0.5), 2 * math.exp(-0.5)])
    k2 = partial(rec, clip_mode="two_side", regularizer="k2", coefficient=0.1)
    _, gradient, _ = by_ratio(k2, [3.0, 1.1], [2.0, -2.0])  # what is left out is regularised too
    assert gradient == pytest.approx([0.2 * math.log(3), 2 + 0.2 * math.log(1.1)])
    _, gradient, _ = by_ratio(partial(rec, regularizer="forward_kl", coefficient=0.1), [3.0], [2.0])
    assert gradient == pytest.approx([-2.1])


def test_rec_refuses_what_does_not_go_together() -> None:
    with pytest.raises(ValidationError, match="weight sequence_ratio requires clip_mode sequence_one_side"):
        chosen("policy loss", "rec", weight="sequence_ratio", clip_mode="ring")
    with pytest.raises(ValidationError, match="needs a coefficient"):
        chosen("policy loss", "rec", regularizer="k2")
    with pytest.raises(ValidationError, match="needs a coefficient"):
        chosen("policy loss", "rec", coefficient=0.1)
    assert (
        chosen("policy loss", "rec", weight="sequence_ratio", clip_mode="sequence_one_side").clip_high == 0.2
    )
