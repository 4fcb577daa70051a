"""Named algorithms, each defined in a few lines by its parts, and the six ways to compose parts.

A composition defines which kinds of parts there are and how batches are drawn; a recipe is a composition with
chosen parts. The configuration can replace any part of a recipe and change any option. A seventh composition,
`external`, has no loss: a program of the user's trains.
"""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from trinity_db.config.base import Change, Settings
from trinity_db.schema.states import Draws
from trinity_db.trainer.recipes.parts.kinds import KINDS, chosen, part
from trinity_db.trainer.recipes.parts.options import Distilled, Divergence, PairLoss, PartChoice, Values

PARTS: dict[str, Any] = {name: kind.sections for name, kind in KINDS.items()}
"""Parts of each kind, as a union of their sections."""

# For type checkers: the attributes of sections that compositions read; sections are created on import.
if TYPE_CHECKING:
    Advantage = PartChoice
    PolicyLoss = PartChoice
    Correction = PartChoice
    Kl = Divergence
    Distillation = Distilled
    Value = Values
    Aggregation = PartChoice
    PreferenceLoss = PairLoss
    LabelLoss = PartChoice
    SupervisedLoss = PartChoice
else:
    Advantage = PARTS["advantage"]
    PolicyLoss = PARTS["policy loss"]
    Correction = PARTS["correction"]
    Kl = PARTS["kl"]
    Distillation = PARTS["distillation"]
    Value = PARTS["value"]
    Aggregation = PARTS["aggregation"]
    PreferenceLoss = PARTS["preference loss"]
    LabelLoss = PARTS["label loss"]
    SupervisedLoss = PARTS["supervised loss"]

_advantage = partial(chosen, "advantage")
_loss = partial(chosen, "policy loss")
_mean = partial(chosen, "aggregation")
_pairs = partial(chosen, "preference loss")
_labels = partial(chosen, "label loss")
_tokens = partial(chosen, "supervised loss")


class PolicyGradientConfig(Settings):
    """Learns from rollout groups by reward: each token is weighted by how much better its response was."""

    name: str = "policy_gradient"
    """Recipe that these settings started from."""
    advantage: Advantage = _advantage("group")
    """Advantage of a response over its baseline; computed at the draw."""
    loss: PolicyLoss = _loss("ppo_clip")
    """Loss of a token, given its advantage and how far the policy has moved."""
    correction: Correction | None = None
    """Correction for rows of an older policy. With a correction the ratio is relative to the policy at the
    start of the step, and a weight covers the distance from the older policy. None: the ratio is relative to
    the policy that sampled the row."""
    kl: Kl | None = None
    """Divergence from the reference, added to the loss or subtracted from the reward. None: no divergence
    term."""
    distillation: Distillation | None = None
    """Advantage for each token from the teacher in processors.score, added to that of the reward. None: no
    teacher."""
    value: Value | None = None
    """Value head, trained together with the policy, that predicts the reward from each token on. A token's
    advantage is the actual reward relative to the prediction, computed at the start of a step; the draw
    records the reward. None: all tokens of a response have the advantage from the draw."""
    whiten: bool = False
    """Normalise the advantages over all tokens of a step: mean 0, variance 1."""
    entropy_coefficient: Annotated[float, Change.DATED] = Field(0.0, ge=0)
    """Bonus for the policy's entropy, in units of the loss per nat and token."""
    aggregation: Aggregation = _mean("token_mean")
    """Reduction of token losses to one number."""

    @model_validator(mode="after")
    def values_are_the_only_baseline(self) -> Self:
        if self.value and self.advantage.name not in ("reward", "own"):
            raise ValueError(
                f"value: the value is the baseline of a reward, and '{self.advantage.name}' is a second one; "
                "set advantage: reward"
            )
        return self

    @model_validator(mode="after")
    def something_is_learned(self) -> Self:
        if self.advantage.name == "zero" and self.distillation is None:
            raise ValueError("advantage zero learns nothing from rewards: add a distillation")
        return self

    @model_validator(mode="after")
    def a_divergence_in_the_reward_is_learned_from(self) -> Self:
        if self.kl and self.kl.applies_to == "reward" and self.advantage.name == "zero":
            raise ValueError(
                "kl: it is subtracted from rewards, which advantage zero does not read; use another kl with "
                "applies_to: loss, such as {name: k3, applies_to: loss}"
            )
        return self

    @property
    def draws(self) -> Draws:
        return "groups"

    @property
    def reads_rewards(self) -> bool:
        """Whether rows without a reward are useless."""
        return self.advantage.name != "zero"


class MixConfig(PolicyGradientConfig):
    """Learns from rollout groups by reward, and from imported rows in the same batch by imitation."""

    name: str = "mix"
    """Recipe that these settings started from."""
    expert_rows: int = Field(32, ge=1)
    """Imported rows in each step, in addition to trainer.batch_size rollout groups. They come from the data
    sets in `data`, in endless passes."""
    expert_loss: SupervisedLoss = _tokens("nll")
    """Loss of a token of an imported row."""
    mu: Annotated[float, Change.DATED] = Field(0.1, ge=0, le=1)
    """Share of the imported rows in the loss. The rollout groups have the rest."""
    mu_warmup_steps: Annotated[int, Change.DATED] = Field(0, ge=0)
    """Steps over which mu rises from zero."""
    mu_valley: Annotated[float | None, Change.DATED] = Field(None, ge=0, le=1)
    """Value to which mu falls after the warm-up, along half a cosine. None: mu is constant."""
    mu_decay_steps: Annotated[int, Change.DATED] = Field(0, ge=0)
    """Steps over which mu falls."""

    @model_validator(mode="after")
    def no_teacher_is_asked_of_imported_rows(self) -> Self:
        if self.distillation is not None:
            raise ValueError("distillation needs a teacher's scores, but imported rows have none: remove it")
        return self

    @model_validator(mode="after")
    def mu_falls_over_some_steps(self) -> Self:
        if (self.mu_valley is None) != (self.mu_decay_steps == 0):
            raise ValueError("mu_valley and mu_decay_steps belong together: set both, or neither")
        return self


class PreferenceConfig(Settings):
    """Learns from pairs, so that the chosen response becomes more likely than the rejected one."""

    name: str = "preference"
    """Recipe that these settings started from."""
    loss: tuple[PreferenceLoss, ...] = (_pairs("sigmoid"),)
    """Loss of a pair. Several losses in a list are summed with their `weight`."""

    @field_validator("loss")
    @classmethod
    def there_is_a_loss(cls, loss: tuple[PreferenceLoss, ...]) -> tuple[PreferenceLoss, ...]:
        if not loss:
            raise ValueError("name at least one loss")
        return loss

    @property
    def draws(self) -> Draws:
        return "pairs"


class RewardModelConfig(Settings):
    """Learns a reward model from pairs: it gives the chosen response a higher number than the rejected one. A
    version is a checkpoint of the class AutoModelForSequenceClassification with one label."""

    name: str = "reward_model"
    """Recipe that these settings started from."""
    margin: Annotated[float, Change.DATED] = Field(0.0, ge=0)
    """Required difference between the rewards of a pair, as a multiple of the pair's own margin in the store
    (preference.margin, 0 if missing). Held-out pairs are measured without it."""
    center_coefficient: Annotated[float, Change.DATED] = Field(0.0, ge=0)
    """Cost of the squared sum of the two rewards of a pair, which centers rewards around 0. 0.01 is usual."""

    @property
    def draws(self) -> Draws:
        return "pairs"


class LabelsConfig(Settings):
    """Learns from single responses labelled good or bad. A response with a reward above zero is good."""

    name: str = "labels"
    """Recipe that these settings started from."""
    loss: LabelLoss = _labels("kto")
    """Loss of a response."""
    desirable_weight: Annotated[float, Change.DATED] = Field(1.0, gt=0)
    """Weight of good responses. KTO's authors keep desirable_weight * good rows between 1 and 4/3 of
    undesirable_weight * bad rows."""
    undesirable_weight: Annotated[float, Change.DATED] = Field(1.0, gt=0)
    """Weight of bad responses."""

    @property
    def draws(self) -> Draws:
        return "labels"

    @property
    def compares_rows(self) -> bool:
        """Whether a row's loss depends on the other rows of its batch."""
        return self.loss.name == "kto"


class SupervisedConfig(Settings):
    """Learns by imitation: rows become more likely."""

    name: str = "supervised"
    """Recipe that these settings started from."""
    loss: SupervisedLoss = _tokens("nll")
    """Loss of a token."""
    aggregation: Aggregation = _mean("token_mean")
    """Reduction of token losses to one number."""
    reward_above: float | None = None
    """Learn from the run's own rollouts with a reward above this. None: learn from imported rows."""

    @property
    def draws(self) -> Draws:
        return "rows" if self.reward_above is None else "groups"


class ExternalConfig(Settings):
    """Learns in a program of yours, which draws batches and publishes versions with `store.trainer`
    (docs/guides/python.md). `trinity-db run` starts no trainer."""

    name: str = "external"
    """Recipe that these settings started from."""
    draws: Literal["groups", "rows", "pairs"] = "groups"
    """Content of a batch: rollout groups, imported rows, or pairs of a chosen and a rejected response."""
    advantage: Advantage = _advantage("group")
    """Advantage of a response over its baseline, for rollout groups; computed at the draw."""

    @model_validator(mode="after")
    def only_groups_have_advantages(self) -> Self:
        if self.draws != "groups" and self.advantage != _advantage("group"):
            raise ValueError(f"draws: {self.draws} has no groups to compare rewards in: leave out advantage")
        return self

    @property
    def reads_rewards(self) -> bool:
        """Whether rows without a reward are useless."""
        return self.advantage.name != "zero"


Composition = (
    PolicyGradientConfig
    | MixConfig
    | PreferenceConfig
    | RewardModelConfig
    | LabelsConfig
    | SupervisedConfig
    | ExternalConfig
)

RECIPES: dict[str, Composition] = {
    "policy_gradient": PolicyGradientConfig(),
    "grpo": PolicyGradientConfig(),
    # The length only scales the loss; it equals the default of explorer.max_new_tokens.
    "dr_grpo": PolicyGradientConfig(
        advantage=_advantage("group", scale_rewards="none"),
        aggregation=_mean("seq_mean_token_sum_norm", length=256),
    ),
    # Overlong shaping and dynamic sampling belong to the processors: overlong_penalty and drop_equal_rewards.
    "dapo": PolicyGradientConfig(loss=_loss("ppo_clip", clip_high=0.28)),
    "rloo": PolicyGradientConfig(advantage=_advantage("leave_one_out")),
    "remax": PolicyGradientConfig(advantage=_advantage("remax"), loss=_loss("policy_gradient")),
    "multi_step_grpo": PolicyGradientConfig(advantage=_advantage("multi_step_group")),
    "gigpo": PolicyGradientConfig(advantage=_advantage("gigpo")),
    "reinforce": PolicyGradientConfig(advantage=_advantage("reward"), loss=_loss("policy_gradient")),
    "reinforce_plus_plus": PolicyGradientConfig(
        advantage=_advantage("reward"), whiten=True, kl=chosen("kl", "k1")
    ),
    "reinforce_plus_plus_baseline": PolicyGradientConfig(
        advantage=_advantage("group", scale_rewards="none"), whiten=True
    ),
    "ppo": PolicyGradientConfig(advantage=_advantage("reward"), value=chosen("value", "gae"), whiten=True),
    # On-policy like the paper: for rows of older versions add a correction. 1 equals the 0.5 of
    # Stable-Baselines3.
    "a2c": PolicyGradientConfig(
        advantage=_advantage("reward"),
        loss=_loss("policy_gradient"),
        value=chosen("value", "gae", clip_range=None, coefficient=1.0),
    ),
    "gspo": PolicyGradientConfig(loss=_loss("gspo"), aggregation=_mean("seq_mean_token_mean")),
    "cispo": PolicyGradientConfig(loss=_loss("cispo")),
    "sapo": PolicyGradientConfig(loss=_loss("sapo"), aggregation=_mean("seq_mean_token_mean")),
    "opmd": PolicyGradientConfig(advantage=_advantage("opmd"), loss=_loss("policy_gradient", tau=1.0)),
    "asymre": PolicyGradientConfig(advantage=_advantage("asymre"), loss=_loss("policy_gradient", tau=1.0)),
    "sppo": PolicyGradientConfig(advantage=_advantage("opmd"), loss=_loss("sppo")),
    "topr": PolicyGradientConfig(advantage=_advantage("reward"), loss=_loss("topr")),
    "rec": PolicyGradientConfig(
        advantage=_advantage("group", scale_rewards="none", unbiased=False), loss=_loss("rec")
    ),
    "on_policy_distillation": PolicyGradientConfig(
        advantage=_advantage("zero"), distillation=chosen("distillation", "reverse_kl")
    ),
    "mix": MixConfig(),
    # CHORD-φ with its authors' options; CHORD-µ is mix with mu 0.9, mu_valley 0.05 and mu_decay_steps 200.
    "chord": MixConfig(expert_loss=_tokens("phi")),
    "dpo": PreferenceConfig(),
    "orpo": PreferenceConfig(loss=(_pairs("odds_ratio"), _pairs("chosen_nll"))),
    "simpo": PreferenceConfig(loss=(_pairs("simpo"),)),
    "cpo": PreferenceConfig(loss=(_pairs("cpo"), _pairs("chosen_nll"))),
    "reward_model": RewardModelConfig(),
    "kto": LabelsConfig(),
    "sft": SupervisedConfig(),
    "dft": SupervisedConfig(loss=_tokens("dft")),
    "raft": SupervisedConfig(reward_above=0.0),
    "external": ExternalConfig(),
}
"""Recipes by name."""


def compares_with_greedy(algorithm: Composition) -> bool:
    """Whether advantages use the attempt of each group that was sampled at temperature 0.

    Judged by the signature of the function, without composing an algorithm.

    Raises:
        ConfigError: if a user's own advantage does not exist, or its signature is invalid.
    """
    if not isinstance(algorithm, PolicyGradientConfig | ExternalConfig):
        return False
    return "greedy" in part("advantage", algorithm.advantage).columns


def has_own_parts(algorithm: Composition) -> bool:
    """Whether a part is a function in a user's file."""
    return ".py:" in algorithm.model_dump_json()


def choices(recipe: Composition) -> dict[str, Any]:
    """Return the parts of a recipe, each as its name and changed options, and the recipe's own options.

    Several parts of a kind are a list.
    """
    chosen: dict[str, Any] = {}
    for key, field in type(recipe).model_fields.items():
        value, default = getattr(recipe, key), field.get_default(call_default_factory=True)
        parts = value if isinstance(value, tuple) else (value,)
        if key == "name" or ((value is None or not isinstance(parts[0], BaseModel)) and value == default):
            continue
        spelled = [_spelled(part) if isinstance(part, PartChoice) else part for part in parts]
        chosen[key] = spelled if isinstance(value, tuple) else spelled[0]
    return chosen


def _spelled(part: PartChoice) -> dict[str, Any]:
    """Return a part like in a configuration: its name, and the options that differ from their defaults."""
    return {"name": part.name, **part.model_dump(exclude_defaults=True, exclude={"name"})}
