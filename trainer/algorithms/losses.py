"""Losses and their aggregation: pure functions of tensors.

Each returns one loss per token or per pair; `masked_share` or a plain sum over the step's total
makes a scalar of them. Shapes: B sequences, K token columns, N pairs.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

MAX_LOG_RATIO = 20.0  # nats; e^20 is far outside any clip range and still finite in float32


def masked_share(values: Tensor, mask: Tensor, total: int) -> Tensor:
    """Sum of the values [B, K] where the mask is True, divided by the step's total: a token mean.

    The total counts the tokens of the whole optimizer step, so that long and short sequences, and
    micro-batches of any size, weigh each token alike (DAPO, arXiv 2503.14476 section 3.3).
    """
    return values.masked_fill(~mask, 0.0).sum() / total


def log_ratio(logprobs: Tensor, behaviour: Tensor) -> Tensor:
    """[B, K] log(new/behaviour) per token, kept within ±20 so that its exponential stays finite."""
    return (logprobs - behaviour).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def ppo_clip_loss(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """[B, K] max(-A·r, -A·clamp(r, 1 - clip_low, 1 + clip_high)): no gain from leaving the range.

    Args:
        ratio: [B, K] r = probability now / probability when sampled.
        advantages: [B, 1] or [B, K].
        clip_low, clip_high: width of the range below and above 1.

    Sources: PPO, arXiv 1707.06347 equation 7; two widths, DAPO, arXiv 2503.14476 section 3.1.
    """
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(-advantages * ratio, -advantages * clipped)


def is_clipped(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """[B, K] True where `ppo_clip_loss` is flat, so that the token adds no gradient."""
    return ((advantages > 0) & (ratio > 1 + clip_high)) | ((advantages < 0) & (ratio < 1 - clip_low))


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """[B, K] r - 1 - log r: unbiased for KL(behaviour ‖ now) over sampled tokens, and never negative.

    Source: J. Schulman, "Approximating KL divergence" (2020), estimator k3.
    """
    return log_ratio.exp() - 1 - log_ratio


def sft_loss(logprobs: Tensor) -> Tensor:
    """[B, K] -log p per token: the negative log-likelihood."""
    return -logprobs


def dpo_rewards(logprobs: Tensor, reference: Tensor, mask: Tensor, beta: float) -> Tensor:
    """[B] The implicit reward of each sequence, β·(log π(y) - log π_ref(y)), summed over its tokens.

    Source: DPO, arXiv 2305.18290 equation 5 (up to a constant of the prompt).
    """
    return beta * (logprobs - reference).masked_fill(~mask, 0.0).sum(dim=1)


def dpo_loss(chosen_rewards: Tensor, rejected_rewards: Tensor) -> Tensor:
    """[N] -log σ(chosen - rejected) per pair, of implicit rewards.

    Source: DPO, arXiv 2305.18290 equation 7.
    """
    return -logsigmoid(chosen_rewards - rejected_rewards)
