"""Losses of demonstrated tokens against other formulations."""

import torch

from trinity_db.trainer.algorithms.supervised_losses import dft, nll


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


def test_nothing_of_a_masked_token_reaches_the_gradient_of_dft() -> None:
    logprobs = torch.tensor([[-1.0, float("nan")]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    share = dft(logprobs, mask).masked_fill(~mask, 0.0).sum()
    (gradient,) = torch.autograd.grad(share, logprobs)
    torch.testing.assert_close(gradient, torch.tensor([[-1.0, 0.0]]).exp() * torch.tensor([[-1.0, 0.0]]))
