"""Options of the advantages, `algorithms/advantages.py`: a class for each, as `options.py` says."""

from typing import Annotated, Literal

from pydantic import Field

from trinity_db.settings import Settings
from trinity_db.trainer.options import Own


class Group(Settings):
    """Rewards compared within their rollout group (GRPO)."""

    name: Literal["group"] = "group"
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Divide by the standard deviation of the group's rewards, of all rewards of the batch, or by nothing
    (Dr. GRPO)."""
    unbiased: bool = True
    """The standard deviation with n - 1; false: with n."""


class LeaveOneOut(Settings):
    """A reward less the mean of the others in its rollout group (RLOO)."""

    name: Literal["leave_one_out"] = "leave_one_out"


class Reward(Settings):
    """The reward as it is (REINFORCE, TOPR)."""

    name: Literal["reward"] = "reward"


class Opmd(Settings):
    """A reward less a value of its rollout group (OPMD)."""

    name: Literal["opmd"] = "opmd"
    baseline: Literal["mean", "logavgexp"] = "mean"
    """The value: mean, or logavgexp, which lies between the mean and the highest reward."""
    temperature: float = Field(1.0, gt=0)
    """For logavgexp, in units of reward. Near 0 the value is the highest reward; if large, the mean."""


class Asymre(Settings):
    """A reward less the shifted mean of its rollout group (AsymRE)."""

    name: Literal["asymre"] = "asymre"
    baseline_shift: float = Field(-0.1, allow_inf_nan=False)
    """Added to the mean, in units of reward. Below 0, good responses weigh more than bad ones."""


class Zero(Settings):
    """Advantage 0 for every reward. What is learned comes from elsewhere, for example from a teacher."""

    name: Literal["zero"] = "zero"


class MultiStepGroup(Settings):
    """Attempts of several steps compared within their group by their final rewards (multi-step GRPO)."""

    name: Literal["multi_step_group"] = "multi_step_group"
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Divide by the standard deviation of the group's final rewards, of all of the batch, or by nothing."""
    step_norm: bool = False
    """Divide by the number of steps too, so that long and short attempts weigh the same."""


class Gigpo(Settings):
    """Attempts compared within their rollout group, and steps with those taken in the same state (GiGPO)."""

    name: Literal["gigpo"] = "gigpo"
    omega: float = Field(1.0, ge=0)
    """Weight of the step's advantage beside the attempt's."""
    gamma: float = Field(0.95, gt=0, le=1)
    """How much of a reward counts one step earlier."""
    scale_rewards: Literal["group", "none"] = "none"
    """Divide by the standard deviation of the compared numbers, or by nothing."""


class Remax(Settings):
    """A reward less that of a greedy rollout. Each group has one more rollout for it, at temperature 0
    (ReMax)."""

    name: Literal["remax"] = "remax"


Advantage = Annotated[
    Group | LeaveOneOut | Reward | Opmd | Asymre | Zero | MultiStepGroup | Gigpo | Remax | Own,
    Field(discriminator="name"),
]
