"""What a teacher is worth: in expectation the gradient of a divergence, found by going through all tokens."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.support.recipes import recipe
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.recipes.parts.distillation import jsd, reverse_kl
from trinity_db.trainer.recipes.parts.totals import Totals

VOCABULARY = 7
BETAS = (0.1, 0.5, 0.9)


def two_policies(spread: float, seed: int) -> tuple[Tensor, Tensor]:
    """[V] Logits of a policy, with gradient, and the log-probabilities of a teacher."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(2, VOCABULARY, generator=generator, dtype=torch.float64)
    return logits[0].clone().requires_grad_(), logits[1].log_softmax(0)


def reverse_divergence(policy: Tensor, teacher: Tensor) -> Tensor:
    return (policy.exp() * (policy - teacher)).sum()


def jensen_shannon(policy: Tensor, teacher: Tensor, beta: float) -> Tensor:
    mixture = (beta * teacher.exp() + (1 - beta) * policy.exp()).log()
    to_teacher = (teacher.exp() * (teacher - mixture)).sum()
    return beta * to_teacher + (1 - beta) * (policy.exp() * (policy - mixture)).sum()


def expected_gradient(
    logits: Tensor, teacher: Tensor, part: Callable[..., Tensor], **options: float
) -> Tensor:
    """[V] Of the policy gradient's loss, each token with its probability in place of a sample."""
    policy = logits.log_softmax(0)
    mask = torch.ones(1, VOCABULARY, dtype=torch.bool)
    advantages = part(policy[None].detach(), teacher[None], mask, **options)[0]
    loss = -(policy.exp().detach() * advantages * policy).sum()
    return torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize("spread", [0.3, 2.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_log_ratio_leads_towards_the_reverse_divergence(spread: float, seed: int) -> None:
    logits, teacher = two_policies(spread, seed)
    exact = torch.autograd.grad(reverse_divergence(logits.log_softmax(0), teacher), logits)[0]
    torch.testing.assert_close(expected_gradient(logits, teacher, reverse_kl), exact, atol=1e-12, rtol=0)
    assert exact.abs().max() > 0.01


@pytest.mark.parametrize("spread", [0.3, 2.0])
@pytest.mark.parametrize("beta", BETAS)
def test_jsd_leads_towards_the_jensen_shannon_divergence(spread: float, beta: float) -> None:
    logits, teacher = two_policies(spread, seed=2)
    exact = torch.autograd.grad(jensen_shannon(logits.log_softmax(0), teacher, beta), logits)[0]
    found = expected_gradient(logits, teacher, jsd, beta=beta)
    torch.testing.assert_close(found, exact, atol=1e-12, rtol=0)
    assert exact.abs().max() > 1e-3


def test_jsd_is_between_the_two_divergences() -> None:
    logits, teacher = two_policies(1.0, seed=3)
    policy = logits.log_softmax(0)
    reverse = torch.autograd.grad(reverse_divergence(policy, teacher), logits, retain_graph=True)[0]
    forward = torch.autograd.grad(-(teacher.exp() * policy).sum(), logits)[0]
    near = 1e-6
    at_one = expected_gradient(logits, teacher, jsd, beta=1 - near) / near
    at_zero = expected_gradient(logits, teacher, jsd, beta=near) / near
    torch.testing.assert_close(at_one, reverse, atol=1e-4, rtol=0)
    torch.testing.assert_close(at_zero, forward, atol=1e-4, rtol=0)


def test_no_token_loses_without_bound_by_jsd() -> None:
    old, mask = torch.full((1, 2), -0.1), torch.ones(1, 2, dtype=torch.bool)
    far = torch.tensor([[-1e4, -0.1]])
    torch.testing.assert_close(jsd(old, far, mask, beta=0.5), torch.tensor([[0.5 * -0.6931472, 0.0]]))
    torch.testing.assert_close(reverse_kl(old, far, mask), torch.tensor([[-9999.9, 0.0]]))


@pytest.mark.parametrize("part", [reverse_kl, jsd])
def test_what_stands_outside_the_mask_reaches_no_result_and_there_is_no_gradient(
    part: Callable[..., Tensor],
) -> None:
    old = torch.tensor([[-1.0, torch.nan]], requires_grad=True)
    teacher = torch.tensor([[-2.0, torch.nan]], requires_grad=True)
    found = part(old, teacher, torch.tensor([[True, False]]))
    assert found[0, 0] < 0 == found[0, 1]
    assert not found.requires_grad


def columns() -> dict[str, Tensor]:
    mask = torch.tensor([[True, True, True], [True, False, False]])
    behaviour = torch.tensor([[-1.0, -2.0, -0.5], [-1.5, 0.0, 0.0]])
    teacher = torch.tensor([[-0.5, -3.0, -0.5], [-1.0, 0.0, 0.0]])
    rows = {"mask": mask, "behaviour": behaviour, "teacher": teacher, "weight": torch.ones(2)}
    return rows | {"advantages": torch.tensor([[0.0], [0.25]])}


def test_a_teacher_adds_to_the_advantages_of_the_reward() -> None:
    algorithm = create(recipe("grpo", distillation={"name": "reverse_kl", "coefficient": 2.0}))
    rows, _ = algorithm.prepare(columns())
    assert rows["advantages"].tolist() == [[1.0, -2.0, 0.0], [1.25, 0.25, 0.25]]


def test_a_step_says_how_far_the_teacher_is() -> None:
    algorithm = create(recipe("on_policy_distillation"))
    rows, _ = algorithm.prepare(columns())
    scored = {"logprobs": rows["behaviour"], "entropy": torch.zeros(2, 3), "correct": rows["mask"]}
    shares = algorithm.shares({**rows, **scored}, Totals(tokens=4, sequences=2, items=2))
    assert shares["teacher_kl"].item() == pytest.approx((-0.5 + 1.0 + 0.0 - 0.5) / 4)
    # Nothing has moved: the loss is the negative mean of the advantages.
    assert shares["loss"].item() == pytest.approx(-(0.5 - 1.0 + 0.0 + 0.75) / 4)


def test_a_teacher_is_compared_with_the_policy_that_ratios_are_relative_to() -> None:
    correction = {"name": "truncated_importance_sampling"}
    algorithm = create(recipe("on_policy_distillation", correction=correction))
    assert set(algorithm.needs) == {"mask", "advantages", "teacher", "behaviour", "proximal"}
    proximal = columns()["behaviour"] - 1.0
    rows, _ = algorithm.prepare(columns() | {"proximal": proximal, "logprobs": proximal})
    assert rows["advantages"].tolist() == [[1.5, 0.0, 1.0], [1.75, 0.25, 0.25]]
