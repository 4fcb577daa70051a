"""The named algorithms, each a few lines that name its parts, and the three ways to compose parts.

A composition says what kinds of parts there are and how batches are drawn; a recipe is one with its
parts chosen. In the configuration any part of a recipe can be replaced and any option changed.
"""

from typing import Literal

from pydantic import Field, field_validator

from trinity_db.settings import Settings
from trinity_db.trainer import offline_options as offline
from trinity_db.trainer import options as part
from trinity_db.trainer.offline_options import PreferenceLoss, SupervisedLoss
from trinity_db.trainer.options import Advantage, Aggregation, Correction, Kl, PolicyLoss

Draws = Literal["groups", "rows", "pairs"]
"""What a batch is made of: rollout groups of this run, imported rows, or pairs of rows."""


class PolicyGradientConfig(Settings):
    """Learns from rollout groups by reward: each token weighed by how much better its response was."""

    name: str = "policy_gradient"
    """The recipe that it started from."""
    advantage: Advantage = part.Group()
    """How much better a response is than what it is compared with; computed at the draw."""
    loss: PolicyLoss = part.PpoClip()
    """What a token adds, given its advantage and how far the policy has moved."""
    correction: Correction | None = None
    """What to do about rows that an older policy sampled. The ratio is then relative to the policy at the
    start of the step, and this weighs what lies between the two. None: the ratio covers both."""
    kl: Kl | None = None
    """Divergence from the starting model, in the loss or off the reward. None: not held to it."""
    whiten: bool = False
    """Normalise the advantages over all tokens of a step: mean 0, variance 1."""
    entropy_coefficient: float = Field(0.0, ge=0)
    """What the policy's entropy per token earns, in units of the loss per nat."""
    aggregation: Aggregation = part.TokenMean()
    """How tokens are made one loss."""

    @property
    def draws(self) -> Draws:
        return "groups"


class PreferenceConfig(Settings):
    """Learns from pairs: the chosen response is to become likelier than the rejected one."""

    name: str = "preference"
    """The recipe that it started from."""
    loss: tuple[PreferenceLoss, ...] = (offline.Sigmoid(),)
    """What a pair adds; several, in a list, are added up by their `weight`."""

    @field_validator("loss")
    @classmethod
    def there_is_a_loss(cls, loss: tuple[PreferenceLoss, ...]) -> tuple[PreferenceLoss, ...]:
        if not loss:
            raise ValueError("name one loss or more")
        return loss

    @property
    def draws(self) -> Draws:
        return "pairs"


class SupervisedConfig(Settings):
    """Learns to say what rows say."""

    name: str = "supervised"
    """The recipe that it started from."""
    loss: SupervisedLoss = offline.Nll()
    """What a token adds."""
    aggregation: Aggregation = part.TokenMean()
    """How tokens are made one loss."""
    reward_above: float | None = None
    """Learn from this run's own rollouts, of those groups that a step draws: from the responses with a reward
    above this one. None: from imported rows, all of them."""

    @property
    def draws(self) -> Draws:
        return "rows" if self.reward_above is None else "groups"


Composition = PolicyGradientConfig | PreferenceConfig | SupervisedConfig

RECIPES: dict[str, Composition] = {
    "policy_gradient": PolicyGradientConfig(),
    "grpo": PolicyGradientConfig(),
    # The length scales the loss and nothing else; it is what explorer.max_new_tokens is by default.
    "dr_grpo": PolicyGradientConfig(
        advantage=part.Group(scale_rewards="none"), aggregation=part.SeqMeanTokenSumNorm(length=256)
    ),
    # Overlong shaping and dynamic sampling are the processors': overlong_penalty and drop_equal_rewards.
    "dapo": PolicyGradientConfig(loss=part.PpoClip(clip_high=0.28)),
    "rloo": PolicyGradientConfig(advantage=part.LeaveOneOut()),
    "reinforce": PolicyGradientConfig(advantage=part.Reward(), loss=part.PolicyGradient()),
    "reinforce_plus_plus": PolicyGradientConfig(advantage=part.Reward(), whiten=True, kl=part.K1()),
    "reinforce_plus_plus_baseline": PolicyGradientConfig(
        advantage=part.Group(scale_rewards="none"), whiten=True
    ),
    "gspo": PolicyGradientConfig(loss=part.Gspo(), aggregation=part.SeqMeanTokenMean()),
    "cispo": PolicyGradientConfig(loss=part.Cispo()),
    "sapo": PolicyGradientConfig(loss=part.Sapo(), aggregation=part.SeqMeanTokenMean()),
    "opmd": PolicyGradientConfig(advantage=part.Opmd(), loss=part.PolicyGradient(tau=1.0)),
    "asymre": PolicyGradientConfig(advantage=part.Asymre(), loss=part.PolicyGradient(tau=1.0)),
    "sppo": PolicyGradientConfig(advantage=part.Opmd(), loss=part.Sppo()),
    "topr": PolicyGradientConfig(advantage=part.Reward(), loss=part.Topr()),
    "rec": PolicyGradientConfig(advantage=part.Group(scale_rewards="none", unbiased=False), loss=part.Rec()),
    "dpo": PreferenceConfig(),
    "orpo": PreferenceConfig(loss=(offline.OddsRatio(), offline.ChosenNll())),
    "simpo": PreferenceConfig(loss=(offline.Simpo(),)),
    "cpo": PreferenceConfig(loss=(offline.Cpo(), offline.ChosenNll())),
    "sft": SupervisedConfig(),
    "dft": SupervisedConfig(loss=offline.Dft()),
    "raft": SupervisedConfig(reward_above=0.0),
}
"""By the name that the configuration uses."""
