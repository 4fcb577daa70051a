"""Steps of `priority`: estimates of how much can be learned from a row of a ready group.

Each returns a non-negative number. The prioritized sampler never draws a group whose rows all have priority
0.
"""

import math
from typing import Annotated

from pydantic import Field

from trinity_db.processors.lists.step import step

LEAST = 0.01  # minimum reward difference, so that groups without any are drawn occasionally


@step()
def reward_spread(group_deviation: float | None) -> float:
    """Returns the standard deviation of the rewards of the row's group, at least 0.01.

    It is equal for all rows of a group. Groups that are solved sometimes get the highest priority.
    """
    return max(group_deviation or 0.0, LEAST)


@step()
def advantage_size(attempt_reward: float | None, group_mean: float | None) -> float:
    """Returns the distance of the attempt's reward from the mean of its group, at least 0.01."""
    if attempt_reward is None or group_mean is None:
        return LEAST
    return max(abs(attempt_reward - group_mean), LEAST)


@step()
def novelty(task_groups: int) -> float:
    """Returns 1 / sqrt(n) for the n-th group of a task in the run, which prefers rarely attempted tasks.

    The count-based bonus of Bellemare et al., "Unifying Count-Based Exploration and Intrinsic Motivation",
    2016.
    """
    return 1.0 / math.sqrt(task_groups)


@step()
def age(
    staleness: int | None, *, half_life: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 4.0
) -> float:
    """Returns 1 for a row of the newest policy version, and half as much after each `half_life` publications.

    It is recomputed at each publication.
    """
    return math.exp2(-(staleness or 0) / half_life)
