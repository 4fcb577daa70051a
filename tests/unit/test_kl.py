"""Divergence estimates against numbers worked out by hand; what they descend as losses, by enumeration."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.recipes import recipe
from trinity_db.config.base import validate
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.recipes.parts import kl
from trinity_db.trainer.recipes.parts.kinds import chosen, section

Estimator = Callable[..., Tensor]
ESTIMATORS: list[Estimator] = [kl.k1, kl.k2, kl.k3, kl.low_var, kl.abs]


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


def everywhere(like: Tensor) -> Tensor:
    return torch.ones_like(like, dtype=torch.bool)


def reverse_kl(policy: Tensor, reference: Tensor) -> Tensor:
    return (policy.exp() * (policy - reference)).sum()


def forward_kl(policy: Tensor, reference: Tensor) -> Tensor:
    return (reference.exp() * (reference - policy)).sum()


def distance(policy: Tensor, reference: Tensor) -> Tensor:
    return (policy.exp() - reference.exp()).abs().sum()


def test_estimates_equal_the_hand_computed_numbers() -> None:
    logprobs, reference = row(-1.0, -2.0), row(-1.5, -1.0)  # d = 0.5 and -1
    expected = {
        kl.k1: [0.5, -1],
        kl.k2: [0.125, 0.5],
        kl.k3: [math.exp(-0.5) - 0.5, math.e - 2],
        kl.low_var: [math.exp(-0.5) - 0.5, math.e - 2],
        kl.abs: [0.5, 1],
    }
    for estimate, numbers in expected.items():
        assert estimate(logprobs, reference, everywhere(logprobs))[0].tolist() == pytest.approx(numbers)


def test_low_var_is_bounded_where_k3_is_not() -> None:
    logprobs, reference = row(-30.0, -4.0, -0.1), row(-1.0, -0.5, -30.0)
    mask = everywhere(logprobs)
    low_var, k3 = kl.low_var(logprobs, reference, mask)[0], kl.k3(logprobs, reference, mask)[0]
    # e^29; e^3.5 - 4.5; e^-29.9 - 1 + 29.9, whose d is cut off at 20.
    assert k3.tolist() == pytest.approx([math.exp(29) - 30, math.exp(3.5) - 4.5, 28.9])
    assert low_var.tolist() == pytest.approx([10, 10, 10])


@pytest.mark.parametrize(
    ("estimate", "descended"),
    [(kl.k1, None), (kl.k2, reverse_kl), (kl.k3, forward_kl), (kl.low_var, forward_kl), (kl.abs, distance)],
)
def test_the_expected_gradient_of_an_estimate_is_the_one_that_is_said(
    estimate: Estimator, descended: Callable[[Tensor, Tensor], Tensor] | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 6, dtype=torch.float64, generator=generator).requires_grad_()
    reference = torch.randn(1, 6, dtype=torch.float64, generator=generator).log_softmax(dim=1)
    policy = logits.log_softmax(dim=1)
    # Each token of the vocabulary by the chance of its being sampled.
    estimates = estimate(policy, reference, everywhere(policy))
    (gradient,) = torch.autograd.grad((policy.exp().detach() * estimates).sum(), logits, retain_graph=True)
    expected = torch.zeros_like(logits)
    if descended:
        (expected,) = torch.autograd.grad(descended(policy, reference), logits)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-14)


def test_corrected_k3_descends_the_reverse_divergence_on_tokens_of_another_policy() -> None:
    generator = torch.Generator().manual_seed(1)
    logits, others, references = torch.randn(3, 1, 6, dtype=torch.float64, generator=generator)
    logits.requires_grad_()
    policy, old, reference = (x.log_softmax(dim=1) for x in (logits, others, references))
    estimates = kl.corrected_k3(policy, reference, old, everywhere(policy))
    assert (old.exp() * estimates).sum().item() == pytest.approx(reverse_kl(policy, reference).item())
    (gradient,) = torch.autograd.grad((old.exp() * estimates).sum(), logits, retain_graph=True)
    (expected,) = torch.autograd.grad(reverse_kl(policy, reference), logits)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("estimate", [kl.k1, kl.k3, kl.low_var])
def test_the_expected_value_of_an_unbiased_estimate_is_the_divergence(estimate: Estimator) -> None:
    policy = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
    reference = torch.tensor([[0.2, 0.2, 0.6]], dtype=torch.float64).log()
    mean = (policy.exp() * estimate(policy, reference, everywhere(policy))).sum()
    assert mean.item() == pytest.approx(reverse_kl(policy, reference).item())


@pytest.mark.parametrize("junk", [math.nan, math.inf, -1e4])
def test_what_stands_outside_the_mask_reaches_no_gradient(junk: float) -> None:
    mask = torch.tensor([[True, False]])
    other = row(-2.0, junk)
    estimators: list[Estimator] = [*ESTIMATORS, partial(kl.corrected_k3, old=other)]
    for estimate in estimators:
        logprobs = row(-1.0, -0.5).requires_grad_()
        estimates = estimate(logprobs=logprobs, reference=other, mask=mask)
        (gradient,) = torch.autograd.grad(estimates.sum(), logprobs)
        assert estimates[0, 1].item() == 0
        assert gradient[0, 1].item() == 0
        assert gradient.isfinite().all()


def test_the_penalty_is_summed_over_the_trained_tokens_of_each_response() -> None:
    estimates = torch.tensor([[0.5, -0.25, 9.0], [2.0, 9.0, 9.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    rewards = kl.penalised_rewards(torch.tensor([1.0, 0.0]), estimates, mask, coefficient=0.1)
    assert rewards.tolist() == pytest.approx([1 - 0.025, -0.2])
    assert not rewards.requires_grad


def test_where_the_last_reward_counts_each_step_has_the_penalty_of_its_whole_attempt() -> None:
    estimates = torch.tensor([[0.5, 1.0], [2.0, 9.0], [4.0, 0.0]])
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    attempts = torch.tensor([7, 3, 7])
    rewards = kl.penalised_rewards(torch.ones(3), estimates, mask, coefficient=0.1, attempts=attempts)
    assert rewards.tolist() == pytest.approx([1 - 0.55, 1 - 0.2, 1 - 0.55])


OWN = """
from trinity_db.trainer.recipes.parts import advantages
from trinity_db.trainer.recipes.parts.properties import having

@having(last_rewards=True)
def mine(rewards, groups, rollouts, steps):
    return advantages.multi_step_group(rewards, groups, rollouts, steps, scale_rewards="none")
"""


@pytest.mark.parametrize("name", ["multi_step_grpo", "remax", "own"])
def test_a_divergence_off_the_reward_is_that_of_all_steps_of_an_attempt(name: str, tmp_path: Path) -> None:
    # Attempts 5 and 6 of one group, of two steps and of one, and a greedy one of no weight; a nat costs 0.5.
    rows = {
        "rewards": torch.tensor([0.0, 2.0, 1.0, 0.25]),
        "groups": torch.zeros(4, dtype=torch.int64),
        "rollouts": torch.tensor([5, 5, 6, 7]),
        "steps": torch.tensor([0, 1, 0, 0]),
        "greedy": torch.tensor([False, False, False, True]),
        "behaviour": torch.tensor([[-1.0, -1.0], [-2.0, -1.0], [-1.0, -3.0], [-1.0, -1.0]]),
        "reference": torch.tensor([[-2.0, -2.5], [-3.0, -1.0], [-1.0, -2.0], [-9.0, -9.0]]),
        "mask": torch.ones(4, 2, dtype=torch.bool),
        "weight": torch.tensor([1.0, 1.0, 1.0, 0.0]),
        "advantages": torch.zeros(4, 1),
    }
    if name != "remax":
        rows = {column: values[:3] for column, values in rows.items()}
    changes = {"scale_rewards": "none"} if name == "multi_step_grpo" else {}
    if name == "own":
        (tmp_path / "own.py").write_text(OWN)
        changes = {"advantage": f"{tmp_path}/own.py:mine"}
    composed = "policy_gradient" if name == "own" else name
    algorithm = create(recipe(composed, kl={"name": "k1", "coefficient": 0.5}, **changes))
    advantages = algorithm.prepare(rows)[0]["advantages"][:3, 0].tolist()
    first, second = 2.0 - 0.5 * (1.0 + 1.5 + 1.0), 1.0 + 0.5 * 1.0
    baseline = 0.25 if name == "remax" else (first + second) / 2
    assert advantages == pytest.approx([first - baseline, first - baseline, second - baseline])


@pytest.mark.parametrize(
    ("measured", "expected"),
    [(0.1, 0.02), (0.11, 0.02 * (1 + 0.1 * 64 / 1000)), (5.0, 0.02 * 1.0128), (0.0, 0.02 * 0.9872)],
)
def test_an_adaptive_coefficient_rises_above_the_target_and_falls_below_it(
    measured: float, expected: float
) -> None:
    adapted = kl.adapted_coefficient(0.02, measured, target=0.1, horizon=1000, sequences=64)
    assert adapted == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "given", "reason"),
    [
        ("k1", {"applies_to": "loss"}, "k1 as a loss has an expected gradient of zero; use k2"),
        ("corrected_k3", {"applies_to": "reward"}, "corrected_k3 in the reward equals k3"),
    ],
)
def test_an_estimate_is_refused_where_it_does_nothing(name: str, given: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        validate(section("kl", name), given, "run.yaml")
    assert chosen("kl", "k1").applies_to == "reward"
    assert chosen("kl", "k2").applies_to == "loss"
