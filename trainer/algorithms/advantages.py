"""Advantages computed from rewards, at the draw."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

STD_EPSILON = 1e-6  # in units of reward, as verl and Trinity-RFT have it; TRL takes 1e-4


def group_advantages(
    rewards: ArrayLike, group_index: ArrayLike, *, scale_by_std: bool = True
) -> NDArray[np.float64]:
    """Advantage of each rollout relative to its group: A = (R - mean_g) / (std_g + 1e-6).

    The standard deviation is the unbiased one (n - 1). A group of one, and a group in which all
    rewards are equal, has nothing to compare: its advantages are exactly 0.

    Args:
        rewards: [n] One number per rollout.
        group_index: [n] Whole numbers; equal numbers mark one group, in any order.
        scale_by_std: False leaves out the division.

    Returns:
        [n] in the order of `rewards`.

    Sources: GRPO, arXiv 2402.03300 section 4.1; without the division Dr. GRPO, arXiv 2503.20783.
    """
    reward = np.asarray(rewards, np.float64)
    _, group = np.unique(np.asarray(group_index), return_inverse=True)
    size = np.bincount(group)
    centered = reward - (np.bincount(group, reward) / size)[group]
    # Equal rewards leave rounding errors around their mean, which the division would blow up.
    low, high = np.full(len(size), np.inf), np.full(len(size), -np.inf)
    np.minimum.at(low, group, reward)
    np.maximum.at(high, group, reward)
    centered[(low == high)[group]] = 0.0
    if not scale_by_std:
        return centered
    std = np.sqrt(np.bincount(group, centered**2) / np.maximum(size - 1, 1))
    advantages: NDArray[np.float64] = centered / (std + STD_EPSILON)[group]
    return advantages
