"""Advantages: how much better a response is than the responses it is compared with. Pure functions, in numpy.

A part is f(columns, *, options) -> [n] float64. Each column has n numbers, one for each row, in any order.
`rewards` are the rewards. `groups`, `rollouts` and `states` are whole numbers: rows with the same number
belong to the same rollout group, the same attempt, or the same state of the environment. `steps` is the place
of a row in its attempt, from 0. `greedy` is true for an attempt sampled at temperature 0. The draw records
the result.

A group of one: its baseline is its own reward, so its advantage is 0, as in TRL and verl's rloo_vectorized.
Elsewhere verl, and Trinity-RFT, take 0 for the baseline, which leaves the raw reward.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trinity_db.trainer.algorithms.properties import having

Floats = NDArray[np.float64]

STD_EPSILON = 1e-6  # in units of reward, as verl and Trinity-RFT have it; TRL takes 1e-4, AReaL 1e-5
VARIANCE_EPSILON = 1e-8  # in units of reward squared, as verl's and Trinity-RFT's masked_whiten have it


def group(
    rewards: ArrayLike,
    groups: ArrayLike,
    *,
    scale_rewards: Literal["group", "batch", "none"] = "group",
    unbiased: bool = True,
) -> Floats:
    """Relative to the group's mean, in standard deviations: A = (R - mean_g) / (std + 1e-6).

    A group in which all rewards are equal has advantages of exactly 0.

    Args:
        scale_rewards: whose standard deviation: the group's own; that of all rewards of the batch, which does
            not blow up the small differences of a group that mostly agrees; or none, A = R - mean_g.
        unbiased: the standard deviation with n - 1 (verl, TRL, Trinity-RFT's GRPO, OpenRLHF), or with n
            (Trinity-RFT's REC, TRL's asynchronous trainer).

    Peers: the names are TRL's. Trinity-RFT's option `drop="balance"` of REC, which takes a random choice of
    bad responses away, is left out: an advantage here follows from the rewards alone, so that a draw can be
    run again.

    Sources: GRPO, arXiv 2402.03300 section 4.1; none: Dr. GRPO, arXiv 2503.20783; batch:
    arXiv 2508.08221; REC, arXiv 2509.24203.
    """
    reward, of = np.asarray(rewards, np.float64), _numbered(groups)
    centered = reward - _mean(reward, of)
    if scale_rewards == "none":
        return centered
    among = of if scale_rewards == "group" else np.zeros_like(of)
    return centered / (_std(reward, among, unbiased) + STD_EPSILON)


def leave_one_out(rewards: ArrayLike, groups: ArrayLike) -> Floats:
    """Relative to the mean of the others: A_i = R_i - mean_{j≠i} R_j = n / (n - 1) · (R_i - mean_g).

    TRL can normalise these over the batch besides; that is off there by default, and left out here.

    Source: RLOO, arXiv 2402.14740.
    """
    reward, of = np.asarray(rewards, np.float64), _numbered(groups)
    size = np.bincount(of)[of]
    return (reward - _mean(reward, of)) * size / np.maximum(size - 1, 1)


@having(rewards_themselves=True)
def reward(rewards: ArrayLike) -> Floats:
    """The reward as it is, A = R: no baseline, the variance of plain REINFORCE.

    TOPR uses it: the sign of an advantage is the sign of the reward. With rewards that are never negative it
    learns nothing about bad responses.

    Sources: REINFORCE (Williams 1992); TOPR, arXiv 2503.14286.
    """
    return np.array(rewards, np.float64)


def opmd(
    rewards: ArrayLike,
    groups: ArrayLike,
    *,
    baseline: Literal["mean", "logavgexp"] = "mean",
    temperature: float = 1.0,
) -> Floats:
    """Relative to a value of the group: A = R - V_g.

    Args:
        baseline: mean: V = mean R. logavgexp: V = τ·log(mean exp(R/τ)), the value of the best policy that a
            KL divergence of weight τ holds to the one that sampled; between the mean (τ → ∞) and the maximum
            (τ → 0), so that only responses near the best have a positive advantage.
        temperature: τ of logavgexp, in units of reward.

    Peers: Trinity-RFT alone; the same but for groups of one.

    Sources: Kimi k1.5, arXiv 2501.12599; OPMD in Trinity-RFT, arXiv 2505.17826.
    """
    reward, of = np.asarray(rewards, np.float64), _numbered(groups)
    if baseline == "mean":
        return reward - _mean(reward, of)
    # Relative to the highest, so that no exponential overflows and equal rewards give exactly 0.
    below = reward - _extreme(np.maximum, reward, of)
    return below - temperature * np.log(_mean(np.exp(below / temperature), of))


def asymre(rewards: ArrayLike, groups: ArrayLike, *, baseline_shift: float = -0.1) -> Floats:
    """Relative to a baseline beside the group's mean: A = R - (mean_g + δ).

    Args:
        baseline_shift: δ, in units of reward. Below 0 the good responses weigh more than the bad, which is
            what samples of an older policy need; at 0 and above, training off-policy may collapse.

    A group in which all rewards are equal, and one of a single member, has the advantage -δ throughout, as
    the formula says (Trinity-RFT: R for a single member).

    Source: AsymRE, arXiv 2506.20520.
    """
    reward, of = np.asarray(rewards, np.float64), _numbered(groups)
    return reward - _mean(reward, of) - baseline_shift


def zero(rewards: ArrayLike) -> Floats:
    """A = 0: what is learned comes from elsewhere, as from a teacher. A row may have no reward (NaN)."""
    return np.zeros_like(rewards, np.float64)


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
    """The attempts of a group compared by R, the reward of their last step. All steps of an attempt share it.

    A = (R - mean_g R) / (std R + 1e-6), with mean and deviation over attempts, not over steps.

    Args:
        scale_rewards: whose standard deviation, as `group` has it, of final rewards.
        step_norm: divide by the number of steps, so that a long attempt weighs no more than a short one.

    Peers: Trinity-RFT's step_wise_grpo; its `std_threshold` is the group processor's drop_equal_rewards.

    Sources: GRPO, arXiv 2402.03300; broadcast as in rLLM and Trinity-RFT, arXiv 2505.17826.
    """
    last, attempt = _attempts(rollouts, steps)
    final = np.asarray(rewards, np.float64)[last]
    compared = group(final, np.asarray(groups)[last], scale_rewards=scale_rewards)
    return (compared / np.bincount(attempt) if step_norm else compared)[attempt]


def gigpo(
    rewards: ArrayLike,
    groups: ArrayLike,
    rollouts: ArrayLike,
    steps: ArrayLike,
    states: ArrayLike,
    *,
    omega: float = 1.0,
    gamma: float = 0.95,
    scale_rewards: Literal["group", "none"] = "none",
) -> Floats:
    """Attempts compared within their group, and steps with those taken in the same state: A = A_E + ω·A_S.

    A_E: of Σ_t r_t, the reward of the whole attempt, among the attempts of its group. A_S: of the return
    Σ_{k≥t} γ^{k-t} r_k, among the steps that any attempt of the group took in that state. Both are less the
    mean, and with `group` in standard deviations.

    Args:
        omega: ω, how much a step counts beside its attempt.
        gamma: γ, what a reward is worth one step earlier. 0.95 as in the paper; Trinity-RFT takes 1.

    Peers: Trinity-RFT as here, but that all groups of a batch share its states, unless users put the task
    into them; the paper compares within one task. Where only one step was in a state, its A_S is 0 in both.

    Source: GiGPO, arXiv 2505.10978 section 4.
    """
    reward = np.asarray(rewards, np.float64)
    last, attempt = _attempts(rollouts, steps)
    episodes = np.bincount(attempt, reward)
    of_episode = group(episodes, np.asarray(groups)[last], scale_rewards=scale_rewards)[attempt]
    anchors = _numbered(groups) * len(reward) + _numbered(states)
    of_step = group(_returns(reward, attempt, steps, gamma), anchors, scale_rewards=scale_rewards)
    return of_episode + omega * of_step


@having(last_rewards=True)
def remax(
    rewards: ArrayLike, groups: ArrayLike, rollouts: ArrayLike, steps: ArrayLike, greedy: ArrayLike
) -> Floats:
    """Relative to what the greedy attempt at the same task earned: A = R - R_greedy; its own is 0.

    R is the final reward of an attempt, and all its steps have its advantage. A group whose greedy attempt
    failed has the mean of the others for its baseline (`leave_one_out`), which like the greedy one does not
    depend on what the response itself did, so that the gradient stays unbiased.

    Peers: verl and Trinity-RFT make the greedy attempt beside the batch and know no group without one.

    Source: ReMax, arXiv 2310.10505.
    """
    last, attempt = _attempts(rollouts, steps)
    final, of = np.asarray(rewards, np.float64)[last], _numbered(np.asarray(groups)[last])
    is_greedy = np.asarray(greedy, np.bool_)[last]
    count = np.bincount(of, is_greedy)
    baseline = np.bincount(of, np.where(is_greedy, final, 0.0)) / np.maximum(count, 1)
    return np.where(count[of] > 0, final - baseline[of], leave_one_out(final, of))[attempt]


def returns_to_go(reward: float, penalties: NDArray[np.floating]) -> Floats:
    """[k] What a row's tokens still earn: G_t = R - Σ_{s≥t} penalty_s, with the reward at the last token.

    The advantage of a single token where a divergence is taken off the rewards and nothing is compared within
    groups. Not discounted, γ = 1: the default of verl, the only choice of Trinity-RFT.

    Args:
        penalties: [k] of the row's trained tokens, in order; coefficient times estimated divergence.

    Source: REINFORCE++, arXiv 2501.03262.
    """
    return float(reward) - np.cumsum(np.asarray(penalties, np.float64)[::-1])[::-1]


def whiten(advantages: Sequence[NDArray[np.floating]]) -> list[Floats]:
    """Advantages of tokens, normalised over all trained tokens of a step: (A - mean) / sqrt(variance + 1e-8).

    A long response weighs by its tokens, in the mean as well as in the variance, which is the unbiased one.
    Over the whole step and never over a micro-batch. Tokens that are all equal come out as exactly 0.

    Args:
        advantages: an array [k] for each row, of its trained tokens only.

    Peers: verl, Trinity-RFT (masked_whiten) and TRL's former PPO as here; OpenRLHF with the population's
    variance, at least 1e-8.

    Source: REINFORCE++, arXiv 2501.03262.
    """
    tokens = np.concatenate([np.asarray(row, np.float64) for row in advantages])
    centered = tokens - tokens.mean()
    if tokens.min() == tokens.max():
        centered[:] = 0.0  # rounding errors around the mean, which the division would blow up
    variance = (centered**2).sum() / max(len(tokens) - 1, 1)
    ends = np.cumsum([len(row) for row in advantages])
    return np.split(centered / np.sqrt(variance + VARIANCE_EPSILON), ends[:-1])


def _numbered(groups: ArrayLike) -> NDArray[np.intp]:
    """[n] The groups' numbers, from 0 on."""
    return np.unique(np.asarray(groups), return_inverse=True)[1]


def _attempts(rollouts: ArrayLike, steps: ArrayLike) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """[m] The row of each attempt's last step; [n] the number of each row's attempt, from 0 on."""
    attempt = _numbered(rollouts)
    in_order = np.lexsort((np.asarray(steps), attempt))
    return in_order[np.cumsum(np.bincount(attempt)) - 1], attempt


def _returns(reward: Floats, attempt: NDArray[np.intp], steps: ArrayLike, gamma: float) -> Floats:
    """[n] What each step's attempt earns from it on, a reward one step later being worth gamma."""
    earned = reward.copy()
    backwards = np.lexsort((np.asarray(steps), attempt))[::-1]
    for later, row in pairwise(backwards):
        if attempt[later] == attempt[row]:
            earned[row] += gamma * earned[later]
    return earned


def _mean(values: Floats, of: NDArray[np.intp]) -> Floats:
    """[n] The mean of each one's group; where all of a group are equal that very number, without rounding."""
    mean = (np.bincount(of, values) / np.bincount(of))[of]
    lowest, highest = _extreme(np.minimum, values, of), _extreme(np.maximum, values, of)
    return np.where(lowest == highest, lowest, mean)


def _extreme(which: np.ufunc, values: Floats, of: NDArray[np.intp]) -> Floats:
    """[n] The lowest or the highest of each one's group."""
    found = values[np.unique(of, return_index=True)[1]]
    which.at(found, of, values)
    return found[of]


def _std(values: Floats, of: NDArray[np.intp], unbiased: bool) -> Floats:
    """[n] The standard deviation of each one's group; 0 of a single number."""
    squares = np.bincount(of, (values - _mean(values, of)) ** 2)
    std: Floats = np.sqrt(squares / np.maximum(np.bincount(of) - unbiased, 1))[of]
    return std
