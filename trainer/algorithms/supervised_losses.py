"""Losses of demonstrated tokens: pure functions of log-probabilities, one loss per token.

Shapes: B sequences, K token columns. The mean is `aggregation.py`'s; over the tokens of the whole
optimiser step it is the usual one.
"""

from torch import Tensor


def nll(logprobs: Tensor) -> Tensor:
    """[B, K] -log p: the negative log-likelihood.

    Args:
        logprobs: [B, K] of the demonstrated tokens under the policy being trained.
    """
    return -logprobs


def dft(logprobs: Tensor, mask: Tensor) -> Tensor:
    """[B, K] -p·log p, p as a constant: the gradient is that of -p, which does not chase unlikely tokens.

    Args:
        logprobs: [B, K] of the demonstrated tokens under the policy being trained.
        mask: [B, K] True where a token is trained; anything may stand elsewhere.

    Source: DFT, arXiv 2508.05629.
    """
    return -_probabilities(logprobs, mask) * logprobs


def phi(logprobs: Tensor, mask: Tensor) -> Tensor:
    """[B, K] -p(1 - p)·log p, the weight as a constant: small for tokens that are known or far off.

    The weight is at most 1/4, where the policy is undecided. Args as in `dft`.

    Source: CHORD-φ, arXiv 2508.11408. Trinity-RFT can leave out tokens above a probability too;
    by default it leaves out none.
    """
    probabilities = _probabilities(logprobs, mask)
    return -probabilities * (1 - probabilities) * logprobs


def _probabilities(logprobs: Tensor, mask: Tensor) -> Tensor:
    """[B, K] p, without gradient; what stands outside the mask is 1."""
    return logprobs.detach().masked_fill(~mask, 0.0).exp()
