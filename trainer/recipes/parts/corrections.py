"""Corrections for rows sampled by an older policy or another engine: weights of the policy loss.

There are three policies. `behaviour` sampled the tokens and is stored with the row. `proximal` is the policy
at the start of the step. `logprobs` is the policy being trained. A correction that reads `proximal` weights a
token by w = proximal/behaviour, and the loss uses ratios to `proximal`. This is decoupled PPO, arXiv
2110.00641, and for language models AReaL, 2505.24298. A correction that does not read `proximal` is only a
mask. Ratios then stay relative to `behaviour`, which is a correction in itself.

Shapes: B sequences, K token columns. Weights are [B, K], without gradient, in float32 or better, 0 outside
the mask. They multiply the loss before it is aggregated. Tokens that lose weight still count in the
denominators, so that other tokens do not gain weight; all peers do this except verl's rejection. A log-ratio
that is not finite counts as 0, like in AReaL (TRL: NaN only; verl: not handled). Engines return NaN or -inf
for tokens that they cannot score.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from trinity_db.trainer.recipes.parts.aggregation import token_mean
from trinity_db.trainer.recipes.parts.built_in import built_in
from trinity_db.trainer.recipes.parts.options import ImportanceWeight
from trinity_db.trainer.recipes.parts.properties import having

if TYPE_CHECKING:
    from torch import Tensor

    from trinity_db.trainer.recipes.parts.totals import Totals

ENGINE_RATIOS = (0.8, 1.2)  # the usual policy loss clips tokens beyond them before anything is learned
MAX_LOG_RATIO = 20.0  # nats, equal to verl: e^20 is far above any bound, and finite in float32


@built_in(ImportanceWeight)
@having(row_by_row=True)
def truncated_importance_sampling(
    proximal: Tensor,
    behaviour: Tensor,
    mask: Tensor,
    *,
    level: Literal["token", "sequence"] = "token",
    high: Annotated[float, Field(gt=0)] = 2.0,
) -> Tensor:
    """Weights each token by proximal/behaviour, up to a bound.

    [B, K] min(w, high), w = proximal/behaviour: bounds the variance at the cost of a small bias.

    verl and TRL also have the product of a sequence's ratios; AReaL uses their geometric mean. The bound is 2
    in verl, 3 in TRL, 5 in AReaL.

    Args:
        level: token: one ratio per token. sequence: all tokens of a sequence have the product of its ratios.
        high: Largest weight.

    Sources: IMPALA, arXiv 1802.01561 section 4.1; for language models F. Yao et al., "Your efficient RL
    framework secretly brings you off-policy RL training" (2025).
    """
    return _ratios(proximal, behaviour, mask, level).clamp(max=high)


def _range_is_not_empty(options: Any) -> None:
    if options.low > options.high:
        raise ValueError(f"low {options.low} is above high {options.high}, an empty range; swap them")


@built_in(ImportanceWeight, check=_range_is_not_empty)
@having(row_by_row=True)
def masked_importance_sampling(
    proximal: Tensor,
    behaviour: Tensor,
    mask: Tensor,
    *,
    level: Literal["token", "sequence"] = "token",
    low: Annotated[float, Field(ge=0)] = 0.5,
    high: Annotated[float, Field(gt=0)] = 5.0,
) -> Tensor:
    """Weights each token by proximal/behaviour, and excludes tokens outside a range (IcePop).

    [B, K] w = proximal/behaviour where low <= w <= high, else 0: tokens outside the range are excluded.

    With level sequence, whole sequences are excluded. The range is OpenRLHF's; TRL masks by sequence, only
    above 3 (low: 0, high: 3).

    Args:
        level: token: one ratio per token. sequence: all tokens of a sequence have the product of its ratios.
        low: Ratios below it are excluded.
        high: Ratios above it are excluded.

    Source: IcePop, arXiv 2510.18855.
    """
    ratios = _ratios(proximal, behaviour, mask, level)
    return ratios.masked_fill((ratios < low) | (ratios > high), 0.0)


@built_in()
@having(row_by_row=True)
def off_policy_sequence_masking(
    logprobs: Tensor,
    behaviour: Tensor,
    mask: Tensor,
    advantages: Tensor,
    *,
    threshold: Annotated[float, Field(ge=0)] = 0.1,
) -> Tensor:
    """Excludes bad responses that have become unlikely. Ratios stay relative to the policy that sampled.

    [B, K] 0 where A < 0 and mean_t(behaviour - logprobs) > threshold, else 1.

    A policy can learn from its own mistakes, but mistakes of a distant policy only disturb the training. The
    mean is over a sequence's trained tokens, in nats. Advantages [B, 1] mask a sequence, advantages [B, K]
    token by token.

    Args:
        threshold: Maximum decrease of a response's log-probability, in nats per token on average.

    Source: DeepSeek-V3.2, arXiv 2512.02556 section 3.1. The threshold of 0.1 is Trinity-RFT's; TRL has no
    default.
    """
    drift = -_log_ratios(logprobs, behaviour).masked_fill(~mask, 0.0)
    mean = drift.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return (mask & ((advantages >= 0) | (mean <= threshold))).to(drift.dtype)


def _knows_the_whole_step(options: ImportanceWeight) -> None:
    if options.proximal == "interpolated":
        raise ValueError(
            "m2po compares all tokens of a step before its first update, when the policy has not moved; "
            "use proximal: recomputed"
        )


@built_in(ImportanceWeight, check=_knows_the_whole_step)
def m2po(
    proximal: Tensor,
    behaviour: Tensor,
    mask: Tensor,
    advantages: Tensor,
    *,
    threshold: Annotated[float, Field(gt=0)] = 0.04,
) -> Tensor:
    """Weights each token by proximal/behaviour, and excludes the tokens that deviate most (M2PO). With one
    update per batch, the remaining tokens are not clipped, like in the paper.

    [B, K] w = proximal/behaviour, and 0 for the largest (log w)² until the mean of the rest is low enough.

    Only tokens that an update would move farther away are considered (A > 0 and w > 1, or A < 0 and w < 1).
    Of these, the tokens with the largest (log w)² are excluded until the mean over the others is at most
    `threshold`. Equal tokens are excluded together, so that the order of rows does not matter. B is the whole
    step. AReaL masks within micro-batches, where the result depends on how rows are split.

    Args:
        threshold: Largest mean of squared log-ratios, in nats², over the tokens that the update moves farther
            away.

    Source: M2PO, arXiv 2510.01161 algorithm 1; its threshold. AReaL counts tokens in all four quadrants.
    """
    import torch

    log_ratios = _log_ratios(proximal, behaviour).masked_fill(~mask, 0.0)
    squares = log_ratios.square()
    counts = mask & (advantages * log_ratios > 0)
    ascending = squares[counts].double().sort().values
    means = ascending.cumsum(dim=0) / torch.arange(1, len(ascending) + 1, device=ascending.device)
    falling = ascending[means > threshold]
    falls = counts & (squares >= falling[0]) if len(falling) else counts.new_zeros(counts.shape)
    return _ratios(proximal, behaviour, mask, "token").masked_fill(falls, 0.0)


def interpolated_proximal(logprobs: Tensor, behaviour: Tensor, staleness: Tensor) -> Tensor:
    """[B, K] behaviour + α(logprobs - behaviour), α = s/(s + 1): an estimate of the proximal policy.

    It needs no forward pass and has no gradient. For a row sampled by the step's own version (s = 0) it is
    `behaviour`. The staler a row, the closer it is to the policy being trained, which is one update ahead of
    the proximal policy.

    Args:
        staleness: [B] s, the number of versions from the row's to the one that the step's weights are or will
            be. AReaL has a version per token; here the version of a row is that of its oldest token.

    Source: A-3PO, arXiv 2512.06547 (AReaL's "loglinear").
    """
    num_updates = staleness.clamp(min=0)[:, None] + 1  # may be negative for rows of a withdrawn version
    return logprobs.detach() - _log_ratios(logprobs, behaviour) / num_updates


def importance_metrics(weights: Tensor, mask: Tensor, totals: Totals) -> dict[str, Tensor]:
    """Shares of means over the step's trained tokens, and the extremes /min and /max of the micro-batch.

    The ratio is the weight as applied, after truncation and masking, like in TRL. For sequence-level weights
    the mean is over tokens here, and over sequences in TRL.
    """
    ratio = "sampling/importance_sampling_ratio"
    return {
        f"{ratio}/mean": token_mean(weights, mask, totals),
        f"{ratio}/min": weights.masked_fill(~mask, math.inf).amin(),
        f"{ratio}/max": weights.masked_fill(~mask, -math.inf).amax(),
        "sampling/masked_fraction": token_mean((weights == 0).to(weights.dtype), mask, totals),
    }


def sampling_difference(
    logprobs: Tensor, behaviour: Tensor, mask: Tensor, totals: Totals
) -> dict[str, Tensor]:
    """Share of the mean, and the maximum, of |log p - log behaviour|: the effect of staleness and of engines.

    p is the policy at the start of the step. `logprobs` has its weights in the first update, because weights
    change only after all its micro-batches. Like in TRL, except that a token that is not finite counts as 0
    here, and is ignored there.
    """
    difference = _log_ratios(logprobs, behaviour).abs()
    name = "sampling/sampling_logp_difference"
    return {
        f"{name}/mean": token_mean(difference, mask, totals),
        f"{name}/max": difference.masked_fill(~mask, 0.0).amax(),
    }


def engine_difference(
    logprobs: Tensor, behaviour: Tensor, same_version: Tensor, totals: Totals
) -> dict[str, Tensor]:
    """Shares of the metrics of `sampling_difference`, over tokens of the version whose weights the step
    starts from.

    Without staleness, the rest is the difference between engine and trainer for the same model. `outside` is
    the share of these tokens whose ratio p / behaviour is below 0.8 or above 1.2.
    """
    log_ratios = _log_ratios(logprobs, behaviour).masked_fill(~same_version, 0.0)
    ratios, difference = log_ratios.exp(), log_ratios.abs()
    outside = (ratios < ENGINE_RATIOS[0]) | (ratios > ENGINE_RATIOS[1])
    return {
        "sampling/engine_logp_difference/mean": difference.sum() / totals.same_version_tokens,
        "sampling/engine_logp_difference/max": difference.amax(),
        "sampling/engine_ratio_outside": outside.sum() / totals.same_version_tokens,
    }


def _ratios(proximal: Tensor, behaviour: Tensor, mask: Tensor, level: Literal["token", "sequence"]) -> Tensor:
    """[B, K] proximal/behaviour, clamped to e^±20; 0 outside the mask."""
    log_ratios = _log_ratios(proximal, behaviour).masked_fill(~mask, 0.0)
    if level == "sequence":
        log_ratios = log_ratios.sum(dim=1, keepdim=True).expand_as(mask)
    return log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().masked_fill(~mask, 0.0)


def _log_ratios(policy: Tensor, behaviour: Tensor) -> Tensor:
    """[B, K] log(policy/behaviour) in float32 or better, without gradient; 0 where it is not finite."""
    import torch

    dtype = torch.promote_types(policy.dtype, torch.float32)
    log_ratios = policy.detach().to(dtype) - behaviour.detach().to(dtype)
    return log_ratios.where(log_ratios.isfinite(), 0.0)
