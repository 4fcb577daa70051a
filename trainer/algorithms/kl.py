"""How far the policy has gone from the reference: estimates of a divergence from sampled tokens.

Each returns [B, K], one number for each token (B sequences, K token columns), from d = logprobs - reference.
They assume that the policy itself sampled the tokens. As a number each of them measures a distance. As a loss
they differ by their expected gradient, which is not the gradient of the number:

    k1 zero · k2, corrected_k3 KL(policy ‖ reference) · k3, low_var KL(reference ‖ policy)
    abs the sum of |policy - reference|, twice the total variation

so k1 is refused as a loss. In the reward (`penalised_rewards`) only the number counts. Where the mask is
False the estimate is 0, and so is its gradient. Source of k1 to k3: J. Schulman, "Approximating KL
divergence" (2020); of the gradients: the tests, which enumerate them.
"""

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # nats, of low_var and of the ratio of corrected_k3; e^20 is finite in float32
MAX_LOW_VAR = 10.0  # nats, verl's bound


def k1(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """[B, K] d: unbiased for KL(policy ‖ reference), of either sign. In the reward only.

    Its gradient is that of log π alone, whose expectation is zero.
    """
    return _difference(logprobs, reference, mask)


def k2(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """[B, K] d²/2: never negative, biased where the policies are far apart."""
    return _difference(logprobs, reference, mask).square() / 2


def k3(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """[B, K] e^-d - 1 + d: unbiased for KL(policy ‖ reference), never negative. GRPO's.

    Source: GRPO, arXiv 2402.03300 equation 4. Not clamped, as in TRL and Trinity-RFT; verl's k3 is `low_var`.
    """
    difference = _difference(logprobs, reference, mask)
    return (-difference).exp() - 1 + difference


def low_var(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """[B, K] k3 with d within ±20 and the result at most 10: verl's `low_var_kl`, and its bounds.

    At a bound the gradient is zero, so a token that far away is not pulled back.
    """
    difference = _difference(logprobs, reference, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return ((-difference).exp() - 1 + difference).clamp(max=MAX_LOW_VAR)


def abs(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:  # as verl and Trinity-RFT call it
    """[B, K] |d|: grows slowly where the policies are far apart."""
    return _difference(logprobs, reference, mask).abs()


def corrected_k3(logprobs: Tensor, reference: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """[B, K] r·k3, r = exp(logprobs - old) with gradient: k3 for tokens that another policy has sampled.

    As a loss only: in the reward r is 1. Source: DeepSeek-V3.2, arXiv 2512.02556 equation 7; TRL's
    `use_bias_correction_kl`. Trinity-RFT cuts r off above 2, which takes the correction back.
    """
    ratio = _difference(logprobs, old, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return ratio * k3(logprobs, reference, mask)


def penalised_rewards(
    rewards: Tensor,
    estimates: Tensor,
    mask: Tensor,
    *,
    coefficient: float,
    attempts: Tensor | None = None,
) -> Tensor:
    """[B] R - coefficient·Σ_t estimate: the divergence as part of what is to be maximised.

    To be called before advantages are computed, with estimates of the policy as it is then. Summed over a
    sequence as in TRL's RLOO; verl and AReaL spread it over the tokens, which a reward per sequence sums up.

    Args:
        attempts: [B] whole numbers of which equal ones mark one attempt, whose reward is that of its last
            step: each of its steps has the sum over all of them then, since log π of what an attempt said is
            the sum over its steps. None: each sequence has its own.

    Sources: arXiv 1909.08593 equation 2; RLOO, 2402.14740.
    """
    penalties = coefficient * estimates.detach().masked_fill(~mask, 0.0).sum(dim=1)
    if attempts is not None:
        of = torch.unique(attempts.cpu(), return_inverse=True)[1]
        together = torch.bincount(of, penalties.double().cpu())  # a GPU would add in any order
        penalties = together[of].to(penalties)
    return rewards - penalties


def adapted_coefficient(
    coefficient: float, measured: float, *, target: float, horizon: int, sequences: int
) -> float:
    """The next step's coefficient: c·(1 + clip(measured/target - 1, ±0.2)·sequences/horizon).

    Args:
        measured: divergence of the last step in nats a token, the mean over its sequences of their means.
        target: what it shall be.
        horizon: sequences over which the coefficient changes by a fifth at most.
        sequences: of the last step.

    Source: arXiv 1909.08593 section 2.2; verl and Trinity-RFT.
    """
    error = min(max(measured / target - 1, -0.2), 0.2)
    return coefficient * (1 + error * sequences / horizon)


def _difference(logprobs: Tensor, other: Tensor, mask: Tensor) -> Tensor:
    """[B, K] logprobs - other, 0 outside the mask: whatever stands there can reach no gradient."""
    return (logprobs - other).masked_fill(~mask, 0.0)
