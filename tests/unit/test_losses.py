"""Advantages and losses against numbers worked out by hand and against other formulations."""

import math

import numpy as np
import pytest
import torch

from trinity_db.trainer.algorithms import Rows, Totals, create
from trinity_db.trainer.algorithms.advantages import group_advantages
from trinity_db.trainer.algorithms.losses import (
    approximate_kl,
    dpo_loss,
    dpo_rewards,
    is_clipped,
    log_ratio,
    masked_share,
    ppo_clip_loss,
    sft_loss,
)
from trinity_db.trainer.config import DpoConfig, GrpoConfig


def test_group_advantages_equal_those_worked_out_by_hand() -> None:
    # Group 7: mean 0.5, unbiased std sqrt(1/3). Group 2: mean 2, std 1.
    rewards, groups = [1, 0, 3, 0, 1, 2, 1], [7, 7, 2, 7, 7, 2, 2]
    unit = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    expected = [unit, -unit, 1, -unit, unit, 0, -1]
    assert group_advantages(rewards, groups) == pytest.approx(expected, abs=2e-6)
    expected = [0.5, -0.5, 1, -0.5, 0.5, 0, -1]
    assert group_advantages(rewards, groups, scale_by_std=False) == pytest.approx(expected)


@pytest.mark.parametrize("scale_by_std", [True, False])
def test_a_group_with_nothing_to_compare_has_no_advantage(scale_by_std: bool) -> None:
    # The mean of three times 0.1 is not exactly 0.1 in floating point.
    advantages = group_advantages([0.1, 0.1, 0.1, 5.0], [0, 0, 0, 1], scale_by_std=scale_by_std)
    assert advantages.tolist() == [0, 0, 0, 0]


def test_group_advantages_do_not_depend_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(0)
    rewards, groups, order = rng.normal(size=40), rng.integers(0, 6, 40), rng.permutation(40)
    assert group_advantages(rewards[order], groups[order]) == pytest.approx(
        group_advantages(rewards, groups)[order]
    )


def test_ppo_loss_equals_the_hand_computed_numbers() -> None:
    ratio = torch.tensor([[1.0, 1.1, 1.5, 0.5, 1.5, 0.5]])
    advantages = torch.tensor([[2.0, 2.0, 2.0, 2.0, -2.0, -2.0]])
    loss = ppo_clip_loss(ratio, advantages, 0.2, 0.28)
    assert loss[0].tolist() == pytest.approx([-2.0, -2.2, -2.56, -1.0, 3.0, 1.6])
    clipped = is_clipped(ratio, advantages, 0.2, 0.28)
    assert clipped[0].tolist() == [False, False, True, False, False, True]


def test_ppo_gradient_is_minus_the_advantage_where_the_policy_has_not_moved() -> None:
    logprobs = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]], requires_grad=True)
    advantages = torch.tensor([[1.5], [-0.5]])
    ratio = log_ratio(logprobs, logprobs.detach()).exp()
    (gradient,) = torch.autograd.grad(ppo_clip_loss(ratio, advantages, 0.2, 0.2).sum(), logprobs)
    torch.testing.assert_close(gradient, -advantages.expand(2, 2))


def test_ppo_gradient_equals_its_analytic_form_and_vanishes_where_clipped() -> None:
    torch.manual_seed(0)
    behaviour = -torch.rand(50, 4, dtype=torch.float64)
    logprobs = (behaviour + 0.5 * torch.randn(50, 4, dtype=torch.float64)).requires_grad_()
    advantages = torch.randn(50, 1, dtype=torch.float64)
    ratio = log_ratio(logprobs, behaviour).exp()
    (gradient,) = torch.autograd.grad(ppo_clip_loss(ratio, advantages, 0.2, 0.3).sum(), logprobs)
    clipped = is_clipped(ratio, advantages, 0.2, 0.3)
    torch.testing.assert_close(gradient, torch.where(clipped, 0.0, -advantages * ratio.detach()))
    assert 0 < clipped.double().mean() < 1


def test_a_huge_ratio_stays_finite() -> None:
    ratios = log_ratio(torch.tensor([[0.0, -500.0]]), torch.tensor([[-500.0, 0.0]])).exp()
    assert ratios[0].tolist() == pytest.approx([math.exp(20), math.exp(-20)])


def test_the_kl_estimate_has_the_true_kl_as_its_mean() -> None:
    old = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    new = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    estimate = (old * approximate_kl(new.log() - old.log())).sum()
    torch.testing.assert_close(estimate, (old * (old.log() - new.log())).sum())


def test_a_share_leaves_out_masked_tokens_even_if_they_are_not_numbers() -> None:
    values = torch.tensor([[1.0, float("nan")], [2.0, 4.0]], requires_grad=True)
    share = masked_share(values, torch.tensor([[True, False], [True, True]]), total=10)
    assert share.item() == pytest.approx(0.7)
    (gradient,) = torch.autograd.grad(share, values)
    torch.testing.assert_close(gradient, torch.tensor([[0.1, 0.0], [0.1, 0.1]]))


def test_sft_loss_is_cross_entropy() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(6, 9), torch.randint(9, (6,))
    logprobs = logits.log_softmax(-1).gather(1, targets[:, None])
    expected = torch.nn.functional.cross_entropy(logits, targets)
    torch.testing.assert_close(sft_loss(logprobs).mean(), expected)


def dpo_rows(policy: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor) -> Rows:
    return Rows(mask=mask, logprobs=policy, entropy=policy, correct=mask, reference=reference)


def test_dpo_loss_is_log_two_while_the_policy_is_the_reference() -> None:
    logprobs = -torch.rand(6, 5)
    rows = dpo_rows(logprobs, logprobs, torch.ones(6, 5, dtype=torch.bool))
    shares = create(DpoConfig()).shares(rows, Totals(tokens=30, items=3))
    assert shares["loss"].item() == pytest.approx(math.log(2))
    assert shares["rewards/margins"].item() == shares["rewards/accuracies"].item() == 0


def test_dpo_equals_the_hand_computed_numbers() -> None:
    # Summed differences to the reference: 1.0 and -0.5 in the first pair, 0.25 and 0.75 in the second;
    # the masked column must not count.
    differences = torch.tensor([[0.4, 0.6, 9.0], [-0.5, 0.0, 9.0], [0.25, 0.0, 0.0], [0.25, 0.5, 9.0]])
    mask = torch.tensor([[True, True, False], [True, True, False], [True, True, True], [True, True, False]])
    reference = -torch.ones(4, 3)
    shares = create(DpoConfig(beta=0.5)).shares(
        dpo_rows(reference + differences, reference, mask), Totals(tokens=9, items=2)
    )
    sigmoid = [1 / (1 + math.exp(-0.75)), 1 / (1 + math.exp(0.25))]
    assert shares["loss"].item() == pytest.approx(-sum(map(math.log, sigmoid)) / 2)
    assert shares["rewards/chosen"].item() == pytest.approx((0.5 + 0.125) / 2)
    assert shares["rewards/rejected"].item() == pytest.approx((-0.25 + 0.375) / 2)
    assert shares["rewards/margins"].item() == pytest.approx((0.75 - 0.25) / 2)
    assert shares["rewards/accuracies"].item() == 0.5


def test_dpo_gradient_equals_its_analytic_form() -> None:
    torch.manual_seed(0)
    policy, reference = (-torch.rand(4, 3, dtype=torch.float64) for _ in range(2))
    policy.requires_grad_()
    rewards = dpo_rewards(policy, reference, torch.ones(4, 3, dtype=torch.bool), beta=0.3)
    (gradient,) = torch.autograd.grad(dpo_loss(rewards[0::2], rewards[1::2]).sum(), policy)
    # DPO, arXiv 2305.18290 section 4: weight sigma(rejected - chosen), up for chosen, down for rejected.
    weight = 0.3 * torch.sigmoid(rewards[1::2] - rewards[0::2]).detach()
    expected = torch.stack([-weight, weight], dim=1).reshape(4, 1).expand(4, 3)
    torch.testing.assert_close(gradient, expected)


def test_grpo_reports_how_far_the_policy_has_moved() -> None:
    behaviour = torch.full((2, 2), -1.0)
    logprobs = behaviour + torch.tensor([[0.0, 1.0], [0.0, 5.0]])
    mask = torch.tensor([[True, True], [True, False]])
    rows = Rows(
        mask=mask,
        logprobs=logprobs,
        entropy=torch.full((2, 2), 0.5),
        correct=mask,
        behaviour=behaviour,
        advantages=torch.tensor([1.0, -1.0]),
    )
    shares = create(GrpoConfig()).shares(rows, Totals(tokens=3, items=2))
    assert shares["loss"].item() == pytest.approx((-1 - 1.2 + 1) / 3)
    assert shares["clip_ratio"].item() == pytest.approx(1 / 3)
    assert shares["ratio_mean"].item() == pytest.approx((1 + math.e + 1) / 3)
    assert shares["approx_kl"].item() == pytest.approx((math.e - 2) / 3)
    assert shares["entropy"].item() == pytest.approx(0.5)
