"""Losses of demonstrated tokens against other formulations."""

from collections.abc import Callable

import pytest
import torch

from trinity_db.trainer.recipes.parts.supervised_losses import dft, nll, phi


def test_nll_is_cross_entropy() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(6, 9, dtype=torch.float64), torch.randint(9, (6,))
    logprobs = logits.log_softmax(-1).gather(1, targets[:, None])
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(nll(logprobs)[:, 0], expected)


def test_dft_weighs_each_token_by_its_probability_as_a_constant() -> None:
    logprobs = torch.log(torch.tensor([[0.5, 0.01, 1.0]], dtype=torch.float64)).requires_grad_()
    losses = dft(logprobs, torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(losses, -logprobs.exp() * logprobs)
    # That of -p: the negative log-likelihood has -1 for each token.
    (gradient,) = torch.autograd.grad(losses.sum(), logprobs)
    torch.testing.assert_close(gradient, -logprobs.detach().exp())


def test_phi_weighs_each_token_by_how_undecided_the_policy_is_about_it() -> None:
    logprobs = torch.log(torch.tensor([[0.5, 0.01, 0.99]], dtype=torch.float64)).requires_grad_()
    losses = phi(logprobs, torch.ones(1, 3, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(losses.sum(), logprobs)
    torch.testing.assert_close(gradient, -torch.tensor([[0.25, 0.0099, 0.0099]], dtype=torch.float64))
    torch.testing.assert_close(losses, gradient * logprobs)


@pytest.mark.parametrize("loss", [dft, phi])
def test_nothing_of_a_masked_token_reaches_a_weighed_loss(loss: Callable[..., torch.Tensor]) -> None:
    logprobs = torch.tensor([[-1.0, float("nan")]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    share = loss(logprobs, mask).masked_fill(~mask, 0.0).sum()
    (gradient,) = torch.autograd.grad(share, logprobs)
    # The loss is the weight times -log p, which is 1 here.
    torch.testing.assert_close(gradient, torch.tensor([[-share.item(), 0.0]]))
