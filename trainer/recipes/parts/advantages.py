"""Advantages: how much better a response is than the responses it is compared with. Pure functions, in numpy.

A part is f(columns, *, options) -> [n] float64. Each column has n numbers, one per row, in any order.
`rewards` are the rewards. `groups`, `rollouts` and `states` are whole numbers: rows with the same number
belong to the same rollout group, attempt, or state of the environment. `steps` is the position of a row in
its attempt, from 0. `greedy` is true for an attempt sampled at temperature 0, and `shares_reward` for one
whose rows each have the reward of the whole attempt. The draw records the result.

In a group of one, the baseline is the row's own reward, so its advantage is 0, like in TRL and verl's
rloo_vectorized. verl's other estimators and Trinity-RFT use the baseline 0, so that the advantage is the
reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from trinity_db.trainer.recipes.parts.built_in import built_in
from trinity_db.trainer.recipes.parts.properties import having

Floats = NDArray[np.float64]

STD_EPSILON = 1e-6  # in units of reward, equal to verl and Trinity-RFT; 1e-4 in TRL, 1e-5 in AReaL
VARIANCE_EPSILON = 1e-8  # in units of reward squared, equal to masked_whiten of verl and Trinity-RFT


@built_in()
def group(
    rewards: ArrayLike,
    groups: ArrayLike,
    *,
    scale_rewards: Literal["group", "batch", "none"] = "group",
    unbiased: bool = True,
) -> Floats:
    """Rewards compared within their rollout group (GRPO).

    Relative to the group's mean, in standard deviations: A = (R - mean_g) / (std + 1e-6).

    If all rewards of a group are equal, its advantages are exactly 0.

    The standard deviation over the batch does not magnify small differences in a group of nearly equal
    rewards. With none, A = R - mean_g. verl, TRL, Trinity-RFT's GRPO and OpenRLHF divide by n - 1;
    Trinity-RFT's REC and TRL's asynchronous trainer by n.

    Args:
        scale_rewards: Divide by the standard deviation of the group's rewards, of all rewards of the batch,
            or by nothing (Dr. GRPO).
        unbiased: Standard deviation with n - 1; false: with n.

    Peers: the names are TRL's. Trinity-RFT's REC has an option `drop="balance"` that removes bad responses at
    random. It is omitted here, since advantages depend on rewards alone, so that a draw can be replayed.

    Sources: GRPO, arXiv 2402.03300 section 4.1; none: Dr. GRPO, arXiv 2503.20783; batch:
    arXiv 2508.08221; REC, arXiv 2509.24203.
    """
    reward, group_of = np.asarray(rewards, np.float64), _numbered(groups)
    centered = reward - _mean(reward, group_of)
    if scale_rewards == "none":
        return centered
    among = group_of if scale_rewards == "group" else np.zeros_like(group_of)
    return centered / (_std(reward, among, unbiased) + STD_EPSILON)


@built_in()
def leave_one_out(rewards: ArrayLike, groups: ArrayLike) -> Floats:
    """The reward less the mean of the other rewards in the rollout group (RLOO).

    Relative to the mean of the others: A_i = R_i - mean_{j≠i} R_j = n / (n - 1) · (R_i - mean_g).

    TRL can also normalise these over the batch, off by default. Omitted here.

    Source: RLOO, arXiv 2402.14740.
    """
    reward, group_of = np.asarray(rewards, np.float64), _numbered(groups)
    size = np.bincount(group_of)[group_of]
    return (reward - _mean(reward, group_of)) * size / np.maximum(size - 1, 1)


@built_in()
@having(rewards_themselves=True)
def reward(rewards: ArrayLike) -> Floats:
    """The unchanged reward (REINFORCE, TOPR).

    A = R: no baseline, so the variance is that of plain REINFORCE.

    TOPR uses it: the sign of an advantage is the sign of the reward. If no reward is negative, the policy
    learns nothing from bad responses.

    Sources: REINFORCE (Williams 1992); TOPR, arXiv 2503.14286.
    """
    return np.array(rewards, np.float64)


@built_in()
def opmd(
    rewards: ArrayLike,
    groups: ArrayLike,
    *,
    baseline: Literal["mean", "logavgexp"] = "mean",
    temperature: Annotated[float, Field(gt=0)] = 1.0,
) -> Floats:
    """The reward less a value of the rollout group (OPMD).

    Relative to a value of the group: A = R - V_g.

    With mean, V = mean R. With logavgexp, V = τ·log(mean exp(R/τ)), with τ the temperature: the value of the
    best policy under a KL divergence of weight τ from the sampling policy. It is between the mean (τ → ∞) and
    the maximum (τ → 0), so that only responses near the best have a positive advantage.

    Args:
        baseline: The value: mean, or logavgexp, which is between the mean and the highest reward.
        temperature: For logavgexp, in units of reward. Near 0 the value is the highest reward; if large,
            the mean.

    Peers: Trinity-RFT has the same, except for groups of one.

    Sources: Kimi k1.5, arXiv 2501.12599; OPMD in Trinity-RFT, arXiv 2505.17826.
    """
    reward, group_of = np.asarray(rewards, np.float64), _numbered(groups)
    if baseline == "mean":
        return reward - _mean(reward, group_of)
    # Rewards relative to the highest one: no exponential overflows, and equal rewards give exactly 0.
    below = reward - _extreme(np.maximum, reward, group_of)
    return below - temperature * np.log(_mean(np.exp(below / temperature), group_of))


@built_in()
def asymre(rewards: ArrayLike, groups: ArrayLike, *, baseline_shift: float = -0.1) -> Floats:
    """The reward less the shifted mean of the rollout group (AsymRE).

    Relative to a shifted mean of the group: A = R - (mean_g + δ).

    In a group with equal rewards, and in a group of one, all advantages are -δ, according to the formula
    (Trinity-RFT: R in a group of one).

    δ is `baseline_shift`. Samples of an older policy require a negative δ; otherwise training may collapse.

    Args:
        baseline_shift: Added to the mean, in units of reward. Below 0, good responses weigh more than bad
            ones.

    Source: AsymRE, arXiv 2506.20520.
    """
    reward, group_of = np.asarray(rewards, np.float64), _numbered(groups)
    return reward - _mean(reward, group_of) - baseline_shift


@built_in()
def zero(rewards: ArrayLike) -> Floats:
    """Advantage 0 for every reward. The policy learns from another source, such as a teacher.

    A = 0. Rewards may be NaN.
    """
    return np.zeros_like(rewards, np.float64)


@built_in()
@having(last_rewards=True)
def multi_step_group(
    rewards: ArrayLike,
    groups: ArrayLike,
    rollouts: ArrayLike,
    steps: ArrayLike,
    *,
    scale_rewards: Literal["group", "batch", "none"] = "group",
    step_norm: bool = False,
) -> Floats:
    """The final rewards of multi-step attempts, compared within their group (multi-step GRPO).

    Compares the attempts of a group by R, the reward of their last step. All steps of an attempt have the
    same A.

    A = (R - mean_g R) / (std R + 1e-6), with mean and deviation over attempts, not over steps.

    Args:
        scale_rewards: Divide by the standard deviation of the group's final rewards, of all of the batch, or
            by nothing.
        step_norm: Also divide by the number of steps, so that long and short attempts have equal weight.

    Peers: Trinity-RFT's step_wise_grpo; its `std_threshold` is the group processor's drop_equal_rewards.

    Sources: GRPO, arXiv 2402.03300; broadcast like in rLLM and Trinity-RFT, arXiv 2505.17826.
    """
    last, attempt = _attempts(rollouts, steps)
    final = np.asarray(rewards, np.float64)[last]
    compared = group(final, np.asarray(groups)[last], scale_rewards=scale_rewards)
    return (compared / np.bincount(attempt) if step_norm else compared)[attempt]


@built_in()
def gigpo(
    rewards: ArrayLike,
    groups: ArrayLike,
    rollouts: ArrayLike,
    steps: ArrayLike,
    states: ArrayLike,
    shares_reward: ArrayLike,
    *,
    omega: Annotated[float, Field(ge=0)] = 1.0,
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.95,
    scale_rewards: Literal["group", "none"] = "none",
) -> Floats:
    """Attempts compared within their rollout group, and steps with other steps in the same state (GiGPO).

    Compares attempts within their group, and steps with other steps in the same state: A = A_E + ω·A_S.

    A_E compares Σ_t r_t, the reward of a whole attempt, among the attempts of its group. A_S compares the
    return Σ_{k≥t} γ^{k-t} r_k among all steps of the group in the same state. Both are differences from the
    mean. With `scale_rewards: group` they are in standard deviations.

    If each row of an attempt has the reward of the whole attempt, as the sequences of a program do, the rows
    are no steps: the attempt's reward is their mean, and a row's return is its own reward.

    ω is `omega`. The discount γ is `gamma`: 0.95 in the paper, 1 in Trinity-RFT.

    Args:
        omega: Weight of the step's advantage relative to the attempt's.
        gamma: Discount of a reward per step.
        scale_rewards: Divide by the standard deviation of the compared numbers, or by nothing.

    Peers: equal to Trinity-RFT, but its states are shared by all groups of a batch, unless users include the
    task. The paper compares within one task. If a state occurs in only one step, its A_S is 0 in both.

    Source: GiGPO, arXiv 2505.10978 section 4.
    """
    reward, shares = np.asarray(rewards, np.float64), np.asarray(shares_reward, np.bool_)
    last, attempt = _attempts(rollouts, steps)
    episodes = np.where(shares[last], _mean(reward, attempt)[last], np.bincount(attempt, reward))
    of_episode = group(episodes, np.asarray(groups)[last], scale_rewards=scale_rewards)[attempt]
    anchors = _numbered(groups) * len(reward) + _numbered(states)
    returns = np.where(shares, reward, _returns(reward, attempt, steps, gamma))
    of_step = group(returns, anchors, scale_rewards=scale_rewards)
    return of_episode + omega * of_step


@built_in()
@having(last_rewards=True)
def remax(
    rewards: ArrayLike, groups: ArrayLike, rollouts: ArrayLike, steps: ArrayLike, greedy: ArrayLike
) -> Floats:
    """The reward less the reward of a greedy rollout, an additional rollout per group at temperature 0
    (ReMax).

    Relative to the reward of the greedy attempt at the same task: A = R - R_greedy; 0 for the greedy attempt.

    R is the final reward of an attempt, and all its steps have its advantage. If a group's greedy attempt
    failed, the baseline is the mean of the other attempts (`leave_one_out`). Neither baseline depends on the
    response itself, so the gradient is unbiased.

    Peers: verl and Trinity-RFT sample the greedy attempt separately, so that every group has one.

    Source: ReMax, arXiv 2310.10505.
    """
    last, attempt = _attempts(rollouts, steps)
    final, group_of = np.asarray(rewards, np.float64)[last], _numbered(np.asarray(groups)[last])
    is_greedy = np.asarray(greedy, np.bool_)[last]
    count = np.bincount(group_of, is_greedy)
    baseline = np.bincount(group_of, np.where(is_greedy, final, 0.0)) / np.maximum(count, 1)
    return np.where(count[group_of] > 0, final - baseline[group_of], leave_one_out(final, group_of))[attempt]


def returns_to_go(reward: float, penalties: NDArray[np.floating]) -> Floats:
    """[k] The return from each token on: G_t = R - Σ_{s≥t} penalty_s, with the reward at the last token.

    The advantage of each token if a divergence is subtracted from the rewards and the advantage does not
    compare within groups. Not discounted (γ = 1), the default of verl and fixed in Trinity-RFT.

    Args:
        penalties: [k] the coefficient times the estimated divergence of each trained token, in order.

    Source: REINFORCE++, arXiv 2501.03262.
    """
    return float(reward) - np.cumsum(np.asarray(penalties, np.float64)[::-1])[::-1]


def whiten(advantages: Sequence[NDArray[np.floating]]) -> list[Floats]:
    """Normalise advantages over all trained tokens of a step: (A - mean) / sqrt(variance + 1e-8).

    Each token counts once in the mean and in the variance (with n - 1), so long responses weigh more. Both
    are over the whole step, never over a micro-batch. If all advantages are equal, the results are exactly 0.

    Args:
        advantages: An array [k] per row, of its trained tokens only.

    Peers: equal to verl, Trinity-RFT (masked_whiten) and TRL's former PPO. OpenRLHF has the variance with n,
    at least 1e-8.

    Source: REINFORCE++, arXiv 2501.03262.
    """
    tokens = np.concatenate([np.asarray(row, np.float64) for row in advantages])
    centered = tokens - tokens.mean()
    if tokens.min() == tokens.max():
        centered[:] = 0.0  # otherwise the division would magnify rounding errors around the mean
    variance = (centered**2).sum() / max(len(tokens) - 1, 1)
    ends = np.cumsum([len(row) for row in advantages])
    return np.split(centered / np.sqrt(variance + VARIANCE_EPSILON), ends[:-1])


def _numbered(groups: ArrayLike) -> NDArray[np.intp]:
    """[n] The index of each row's group, from 0 without gaps."""
    return np.unique(np.asarray(groups), return_inverse=True)[1]


def _attempts(rollouts: ArrayLike, steps: ArrayLike) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """[m] The row of each attempt's last step; [n] the index of each row's attempt, from 0."""
    attempt = _numbered(rollouts)
    in_order = np.lexsort((np.asarray(steps), attempt))
    return in_order[np.cumsum(np.bincount(attempt)) - 1], attempt


def _returns(reward: Floats, attempt: NDArray[np.intp], steps: ArrayLike, gamma: float) -> Floats:
    """[n] The discounted return of each attempt from each step on."""
    earned = reward.copy()
    backwards = np.lexsort((np.asarray(steps), attempt))[::-1]
    for later, row in pairwise(backwards):
        if attempt[later] == attempt[row]:
            earned[row] += gamma * earned[later]
    return earned


def _mean(values: Floats, group_of: NDArray[np.intp]) -> Floats:
    """[n] The mean of each number's group, without rounding if all numbers of a group are equal."""
    mean = (np.bincount(group_of, values) / np.bincount(group_of))[group_of]
    lowest, highest = _extreme(np.minimum, values, group_of), _extreme(np.maximum, values, group_of)
    return np.where(lowest == highest, lowest, mean)


def _extreme(ufunc: np.ufunc, values: Floats, group_of: NDArray[np.intp]) -> Floats:
    """[n] The lowest or the highest number of each number's group."""
    extremes = values[np.unique(group_of, return_index=True)[1]]
    ufunc.at(extremes, group_of, values)
    return extremes[group_of]


def _std(values: Floats, group_of: NDArray[np.intp], unbiased: bool) -> Floats:
    """[n] The standard deviation of each number's group; 0 in a group of one."""
    squares = np.bincount(group_of, (values - _mean(values, group_of)) ** 2)
    std: Floats = np.sqrt(squares / np.maximum(np.bincount(group_of) - unbiased, 1))[group_of]
    return std
