"""Estimates, from sampled tokens, of the divergence of the policy from the reference.

Each function returns [B, K], one number per token (B sequences, K token columns), from d = logprobs -
reference. They assume that the policy itself sampled the tokens. As numbers, all measure a distance. As
losses, they differ in their expected gradient, which is not the gradient of that distance:

    k1 zero · k2, corrected_k3 KL(policy ‖ reference) · k3, low_var KL(reference ‖ policy)
    abs the sum of |policy - reference|, twice the total variation

Therefore k1 is rejected as a loss. In the reward (`penalised_rewards`) only the number matters. Where the
mask is False, the estimate and its gradient are 0. Source of k1 to k3: J. Schulman, "Approximating KL
divergence" (2020). The tests enumerate the gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trinity_db.trainer.recipes.parts.built_in import built_in
from trinity_db.trainer.recipes.parts.options import Divergence, DivergenceInReward

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0  # nats, of low_var and of the ratio of corrected_k3; e^20 is finite in float32
MAX_LOW_VAR = 10.0  # nats, verl's bound


def _is_no_loss(options: Divergence) -> None:
    if options.applies_to == "loss":
        raise ValueError(
            "k1 as a loss has an expected gradient of zero; use k2 or corrected_k3, or set applies_to: reward"
        )


@built_in(DivergenceInReward, check=_is_no_loss)
def k1(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """The log-ratio itself: unbiased, and in the reward only.

    [B, K] d: unbiased for KL(policy ‖ reference), positive or negative. In the reward only.

    Its gradient is that of log π alone. The expectation of that is zero.
    """
    return _difference(logprobs, reference, mask)


@built_in(Divergence)
def k2(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """Half the square of the log-ratio; as a loss it has the gradient of KL(policy ‖ reference).

    [B, K] d²/2: never negative, biased where the policies are far apart.
    """
    return _difference(logprobs, reference, mask).square() / 2


@built_in(Divergence)
def k3(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """Unbiased and never negative; as a loss it has the gradient of KL(reference ‖ policy).

    [B, K] e^-d - 1 + d: unbiased for KL(policy ‖ reference), never negative. GRPO uses it.

    Source: GRPO, arXiv 2402.03300 equation 4. Not clamped, like in TRL and Trinity-RFT. verl's k3 is
    `low_var`.
    """
    difference = _difference(logprobs, reference, mask)
    return (-difference).exp() - 1 + difference


@built_in(Divergence)
def low_var(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """k3 with bounds.

    [B, K] k3 with d within ±20 and the result at most 10: verl's `low_var_kl` with its bounds.

    At a bound the gradient is zero, so the loss does not move such a token towards the reference.
    """
    difference = _difference(logprobs, reference, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return ((-difference).exp() - 1 + difference).clamp(max=MAX_LOW_VAR)


@built_in(Divergence)
def abs(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:  # its name in verl and Trinity-RFT
    """The size of the log-ratio.

    [B, K] |d|: grows slowly where the policies are far apart.
    """
    return _difference(logprobs, reference, mask).abs()


def _is_a_loss(options: Divergence) -> None:
    if options.applies_to == "reward":
        raise ValueError("corrected_k3 in the reward equals k3, since the policy has not moved; use k3")


@built_in(Divergence, check=_is_a_loss)
def corrected_k3(logprobs: Tensor, reference: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """k3 times the probability ratio: as a loss it has the gradient of KL(policy ‖ reference).

    [B, K] r·k3, r = exp(logprobs - old) with gradient: k3 for tokens sampled by another policy.

    It differs from k3 as a loss only, because in the reward r is 1. Source: DeepSeek-V3.2, arXiv 2512.02556
    equation 7; TRL's `use_bias_correction_kl`. Trinity-RFT clamps r at 2, which undoes the correction there.
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
    """[B] R - coefficient·Σ_t estimate: the rewards less the divergence.

    Call it before advantages are computed, with estimates of the current policy. The estimates are summed
    over a sequence, like in TRL's RLOO. verl and AReaL subtract them token by token; for a reward per
    sequence the sum is the same.

    Args:
        attempts: [B] equal whole numbers for the steps of one attempt. Each step then gets the sum over all
            steps of its attempt, because the attempt's reward is that of its last step, and log π of an
            attempt is the sum over its steps. None: each sequence is an attempt.

    Sources: arXiv 1909.08593 equation 2; RLOO, 2402.14740.
    """
    penalties = coefficient * estimates.detach().masked_fill(~mask, 0.0).double().sum(dim=1)
    if attempts is not None:
        import torch

        attempt_of = torch.unique(attempts.cpu(), return_inverse=True)[1]
        sums = attempt_of.bincount(penalties.cpu())  # on the CPU: a GPU adds in an arbitrary order
        penalties = sums[attempt_of].to(penalties)
    return rewards - penalties


def adapted_coefficient(
    coefficient: float, measured: float, *, target: float, horizon: int, sequences: int
) -> float:
    """The next step's coefficient: c·(1 + clip(measured/target - 1, ±0.2)·sequences/horizon).

    Args:
        measured: The last step's divergence in nats per token: the mean over sequences of their means.
        target: The target divergence.
        horizon: Number of sequences over which the coefficient changes by at most a fifth.
        sequences: Number of sequences of the last step.

    Source: arXiv 1909.08593 section 2.2; verl and Trinity-RFT.
    """
    error = min(max(measured / target - 1, -0.2), 0.2)
    return coefficient * (1 + error * sequences / horizon)


def _difference(logprobs: Tensor, subtracted: Tensor, mask: Tensor) -> Tensor:
    """[B, K] logprobs - other, 0 outside the mask, so that numbers there affect no gradient."""
    return (logprobs - subtracted).masked_fill(~mask, 0.0)
