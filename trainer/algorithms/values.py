"""Values: what the policy expects a response to earn, and the advantages and the loss that follow.

V_t is the prediction of the value head before token t is chosen, in units of reward. A part is
f(token_rewards, values, mask, *, options) -> [B, K], the advantage of each trained token. Shapes: B
sequences, K token columns. Numbers where the mask is False do not count.
"""

import torch
from torch import Tensor


def gae(
    token_rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float = 1.0, lam: float = 1.0
) -> Tensor:
    """Generalised advantage estimation, backwards over the trained tokens of each row:

        δ_t = r_t + γ·V_t' - V_t,   A_t = δ_t + γ·λ·A_t'

    where t' is the trained token after t, and V and A are 0 after the last one. With λ = 1, A is the
    reward still to come less the value; with λ = 0 it is δ.

    Tokens that are not trained, such as a tool's answer between two turns, are skipped and discount nothing,
    as in verl. Trinity-RFT counts them as steps, although their values are never trained. γ = λ = 1 as in
    verl, Trinity-RFT, OpenRLHF and AReaL; λ = 0.95 in TRL's former PPO. Rows of an older policy are not
    corrected here, as in all of them.

    Source: arXiv 1506.02438 equation 16.
    """
    advantages = torch.zeros_like(values)
    next_value = next_advantage = values.new_zeros(len(values))
    for t in reversed(range(mask.shape[1])):
        trained = mask[:, t]
        delta = token_rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = torch.where(trained, delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(trained, values[:, t], next_value)
        advantages[:, t] = next_advantage
    return advantages.masked_fill(~mask, 0.0)


def token_rewards(rewards: Tensor, penalties: Tensor | float, mask: Tensor) -> Tensor:
    """[B, K] The reward [B] at the last trained token of each row, less a penalty [B, K] at each.

    Sources: arXiv 1909.08593 equation 2, the divergence as penalty; per token as in verl and TRL.
    """
    comes_after = mask.flip(1).cumsum(dim=1).flip(1)  # trained tokens from here on
    is_last = mask & (comes_after == 1)
    return (is_last * rewards[:, None] - penalties).masked_fill(~mask, 0.0)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, *, clip_range: float | None
) -> dict[str, Tensor]:
    """½·max((V - R)², (clamp(V, V_old ± clip_range) - R)²) [B, K]: no gain from leaving the range.

    Without a range ½·(V - R)². "clip_ratio" [B, K] is 1.0 where the clamped value is further away, so that
    the token adds no gradient. Without it the mean squared error has its ½ here too, as OpenRLHF has it;
    Stable-Baselines3's A2C has none.

    Sources: A3C, arXiv 1602.01783; the clipping, OpenAI's PPO (baselines, ppo2), not its paper. verl, TRL's
    former PPO, OpenRLHF and AReaL as here.
    """
    values, old_values, returns = (one.masked_fill(~mask, 0.0) for one in (values, old_values, returns))
    errors = (values - returns).square()
    if clip_range is None:
        return {"loss": errors / 2, "clip_ratio": torch.zeros_like(errors)}
    clamped = (values.clamp(old_values - clip_range, old_values + clip_range) - returns).square()
    return {"loss": torch.maximum(errors, clamped) / 2, "clip_ratio": (clamped > errors).to(errors)}


def value_metrics(values: Tensor, returns: Tensor, mask: Tensor) -> dict[str, float]:
    """Of all trained tokens of a step, before it learns from them.

    `explained_variance` is 1 - Var(R - V) / Var(R): 1 where values foretell returns, 0 where they are no
    better than the mean; left out where returns do not vary (Stable-Baselines3: NaN; verl adds 1e-5).
    """
    value, earned = values[mask], returns[mask]
    metrics = {"values/mean": value.mean().item(), "returns/mean": earned.mean().item()}
    variance = earned.var(correction=0).item()
    if variance > 0:
        metrics["explained_variance"] = 1 - (earned - value).var(correction=0).item() / variance
    return metrics
