"""Losses of demonstrated tokens: pure functions of log-probabilities, one loss per token.

Shapes: B sequences, K token columns. `aggregation.py` takes the mean, usually `token_mean` over all the
tokens of an update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trinity_db.trainer.recipes.parts.built_in import built_in

if TYPE_CHECKING:
    from torch import Tensor


@built_in()
def nll(logprobs: Tensor) -> Tensor:
    """The negative log-likelihood of each trained token.

    [B, K] -log p: the negative log-likelihood.

    Args:
        logprobs: [B, K] log-probabilities of the demonstrated tokens under the policy being trained.
    """
    return -logprobs


@built_in()
def dft(logprobs: Tensor, mask: Tensor) -> Tensor:
    """The negative log-likelihood, with each token weighted by its probability (dynamic fine-tuning).

    [B, K] -p·log p, with p as a constant: the gradient is that of -p, which is small for unlikely tokens.

    Args:
        logprobs: [B, K] log-probabilities of the demonstrated tokens under the policy being trained.
        mask: [B, K] True where a token is trained. Numbers elsewhere have no effect.

    Source: DFT, arXiv 2508.05629.
    """
    return -_probabilities(logprobs, mask) * logprobs


@built_in()
def phi(logprobs: Tensor, mask: Tensor) -> Tensor:
    """The negative log-likelihood, with each token weighted by the policy's uncertainty (CHORD-φ).

    [B, K] -p(1 - p)·log p, with the weight as a constant: small for very likely and very unlikely tokens.

    The weight is largest, 1/4, at p = 1/2. Arguments are those of `dft`.

    Source: CHORD-φ, arXiv 2508.11408. Trinity-RFT can also exclude tokens above a probability; by default it
    does not.
    """
    probabilities = _probabilities(logprobs, mask)
    return -probabilities * (1 - probabilities) * logprobs


def _probabilities(logprobs: Tensor, mask: Tensor) -> Tensor:
    """[B, K] p, without gradient; 1 outside the mask."""
    return logprobs.detach().masked_fill(~mask, 0.0).exp()
