"""Values: predictions of a response's reward, and the advantages and loss derived from them.

V_t is the value head's prediction before token t is chosen, in units of reward. A part is
f(token_rewards, values, mask, *, options) -> [B, K], the advantage of each trained token. Shapes: B
sequences, K token columns. Numbers outside the mask have no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trinity_db.trainer.recipes.parts.built_in import built_in
from trinity_db.trainer.recipes.parts.options import Values

if TYPE_CHECKING:
    from torch import Tensor


@built_in(Values)
def gae(
    token_rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0,
    lam: Annotated[float, Field(ge=0, le=1)] = 1.0,
) -> Tensor:
    """Generalised advantage estimation: the outcome of each token relative to the expected value.

    Computed backwards over the trained tokens of each row:

        δ_t = r_t + γ·V_t' - V_t,   A_t = δ_t + γ·λ·A_t'

    where t' is the trained token after t, and V and A are 0 after the last one. With λ = 1, A is the
    remaining reward less the value. With λ = 0, A is δ.

    Tokens that are not trained, such as a tool's answer between two turns, are skipped and do not discount,
    like in verl. Trinity-RFT counts them as steps, although their values are never trained. The default γ = λ
    = 1 is that of verl, Trinity-RFT, OpenRLHF and AReaL; TRL's former PPO has λ = 0.95. Like all of these,
    the estimate does not correct rows of an older policy.

    Args:
        gamma: Discount of a reward per token.
        lam: 1 uses the reward itself and has no bias. 0 uses the value of the next token and has low
            variance.

    Source: arXiv 1506.02438 equation 16.
    """
    advantages = values.new_zeros(values.shape)
    next_value = next_advantage = values.new_zeros(len(values))
    for t in reversed(range(mask.shape[1])):
        trained = mask[:, t]
        delta = token_rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = (delta + gamma * lam * next_advantage).where(trained, next_advantage)
        next_value = values[:, t].where(trained, next_value)
        advantages[:, t] = next_advantage
    return advantages.masked_fill(~mask, 0.0)


def token_rewards(rewards: Tensor, penalties: Tensor | float, mask: Tensor) -> Tensor:
    """[B, K] The reward [B] at the last trained token of each row, less a penalty [B, K] at each token.

    Sources: arXiv 1909.08593 equation 2, with the divergence as penalty; per token like in verl and TRL.
    """
    comes_after = mask.flip(1).cumsum(dim=1).flip(1)  # trained tokens from here on
    is_last = mask & (comes_after == 1)
    return (is_last * rewards[:, None] - penalties).masked_fill(~mask, 0.0)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, *, clip_range: float | None
) -> dict[str, Tensor]:
    """½·max((V - R)², (clamp(V, V_old ± clip_range) - R)²) [B, K]: leaving the range does not lower the loss.

    Without a range it is ½·(V - R)², like in OpenRLHF; Stable-Baselines3's A2C has no ½. "clip_ratio" [B, K]
    is 1.0 where the clamped value is farther from R. Such a token adds no gradient.

    Sources: A3C, arXiv 1602.01783; the clipping, OpenAI's PPO (baselines, ppo2), not its paper. Equal to
    verl, TRL's former PPO, OpenRLHF and AReaL.
    """
    values, old_values, returns = (column.masked_fill(~mask, 0.0) for column in (values, old_values, returns))
    errors = (values - returns).square()
    if clip_range is None:
        return {"loss": errors / 2, "clip_ratio": errors.new_zeros(errors.shape)}
    clamped = (values.clamp(old_values - clip_range, old_values + clip_range) - returns).square()
    return {"loss": errors.maximum(clamped) / 2, "clip_ratio": (clamped > errors).to(errors)}


def value_metrics(values: Tensor, returns: Tensor, mask: Tensor) -> dict[str, float]:
    """Compute metrics of all trained tokens of a step, before the step learns from them.

    `explained_variance` is 1 - Var(R - V) / Var(R): 1 if values predict returns exactly, and 0 if they are no
    better than the mean. It is omitted if returns do not vary (Stable-Baselines3: NaN; verl adds 1e-5).
    """
    value, earned = values[mask], returns[mask]
    metrics = {"values/mean": value.mean().item(), "returns/mean": earned.mean().item()}
    variance = earned.var(correction=0).item()
    if variance > 0:
        metrics["explained_variance"] = 1 - (earned - value).var(correction=0).item() / variance
    return metrics
