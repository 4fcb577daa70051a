"""Steps of `priority`: how much there is to learn from a row of a ready group.

Each returns a number from 0 on. 0 means that the prioritized sampler never draws the row's group, if it has
no other row.
"""

import math
from typing import Annotated

from pydantic import Field

from trinity_db.processors.step import step

LEAST = 0.01  # of a difference of rewards, so that a group without one is drawn at times


@step()
def reward_spread(group_deviation: float | None) -> float:
    """The standard deviation of the rewards of the row's group, at least 0.01.

    All rows of a group have the same. Groups that are solved sometimes come first.
    """
    return max(group_deviation or 0.0, LEAST)


@step()
def advantage_size(attempt_reward: float | None, group_mean: float | None) -> float:
    """How far the reward of the row's attempt lies from the mean of its group, at least 0.01."""
    if attempt_reward is None or group_mean is None:
        return LEAST
    return max(abs(attempt_reward - group_mean), LEAST)


@step()
def novelty(task_groups: int) -> float:
    """1 / sqrt(n) for the n-th group of a task in the run: tasks that were seldom attempted come first.

    The bonus of counts in Bellemare et al., "Unifying Count-Based Exploration and Intrinsic Motivation",
    2016.
    """
    return 1.0 / math.sqrt(task_groups)


@step()
def age(
    staleness: int | None, *, half_life: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 4.0
) -> float:
    """1 for a row of the newest policy version, and half of it after each `half_life` publications.

    It is computed again at each publication.
    """
    return math.exp2(-(staleness or 0) / half_life)
