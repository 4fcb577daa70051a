"""The named algorithms, each a few lines that name its parts, and the six ways to compose parts.

A composition says what kinds of parts there are and how batches are drawn; a recipe is one with its
parts chosen. In the configuration any part of a recipe can be replaced and any option changed.
"""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from trinity_db.schema.states import Draws
from trinity_db.settings import Change, Settings
from trinity_db.trainer.parts.kinds import KINDS, chosen
from trinity_db.trainer.parts.options import Distilled, Divergence, PairLoss, Part, Values

PARTS: dict[str, Any] = {name: kind.sections for name, kind in KINDS.items()}
"""The parts of each kind, as a union of the sections that choose them."""

# A type checker sees what compositions read of each section; the sections are made when they are imported.
if TYPE_CHECKING:
    Advantage = Part
    PolicyLoss = Part
    Correction = Part
    Kl = Divergence
    Distillation = Distilled
    Value = Values
    Aggregation = Part
    PreferenceLoss = PairLoss
    LabelLoss = Part
    SupervisedLoss = Part
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
    """Learns from rollout groups by reward: each token is weighed by how much better its response was."""

    name: str = "policy_gradient"
    """The recipe that these settings started from."""
    advantage: Advantage = _advantage("group")
    """How much better a response is than what it is compared with; computed at the draw."""
    loss: PolicyLoss = _loss("ppo_clip")
    """The loss of a token, given its advantage and how far the policy has moved."""
    correction: Correction | None = None
    """How rows of an older policy are corrected. With a correction the ratio is relative to the policy at the
    start of the step, and a weight covers the distance from the older policy. None: the ratio is relative to
    the policy that sampled the row."""
    kl: Kl | None = None
    """Divergence from the reference, added to the loss or taken off the reward. None: no divergence term."""
    distillation: Distillation | None = None
    """An advantage for each token from the teacher that processors.score names, added to that of the
    reward. None: no teacher."""
    value: Value | None = None
    """A value head, learned beside the policy, that predicts what a response earns from each token on. A
    token's advantage is how much better the response came out. It is computed at the start of a step; the
    draw records the reward. None: all tokens of a response have the advantage of the draw."""
    whiten: bool = False
    """Normalise the advantages over all tokens of a step: mean 0, variance 1."""
    entropy_coefficient: Annotated[float, Change.DATED] = Field(0.0, ge=0)
    """Bonus for the policy's entropy, in units of the loss per nat and token."""
    aggregation: Aggregation = _mean("token_mean")
    """How the losses of tokens become one number."""

    @model_validator(mode="after")
    def values_are_the_only_baseline(self) -> Self:
        if self.value and self.advantage.name not in ("reward", "own"):
            raise ValueError(
                f"value: a reward is compared with its value, not by '{self.advantage.name}' as well; "
                "set advantage: reward"
            )
        return self

    @model_validator(mode="after")
    def something_is_learned(self) -> Self:
        if self.advantage.name == "zero" and self.distillation is None:
            raise ValueError("advantage zero learns nothing from rewards: name a distillation beside it")
        return self

    @model_validator(mode="after")
    def a_divergence_in_the_reward_is_learned_from(self) -> Self:
        if self.kl and self.kl.applies_to == "reward" and self.advantage.name == "zero":
            raise ValueError(
                "kl: it is taken off rewards, and advantage zero reads none; take another than k1, with "
                "applies_to: loss, as {name: k3, applies_to: loss}"
            )
        return self

    @property
    def draws(self) -> Draws:
        return "groups"

    @property
    def reads_rewards(self) -> bool:
        """Whether a row without a reward cannot be learned from."""
        return self.advantage.name != "zero"


class MixConfig(PolicyGradientConfig):
    """Learns from rollout groups by reward, and from imported rows in the same batch by imitation."""

    name: str = "mix"
    """The recipe that these settings started from."""
    expert_rows: int = Field(32, ge=1)
    """Imported rows in each step, beside trainer.batch_size rollout groups. They come from the data sets
    under `data`, in passes without end."""
    expert_loss: SupervisedLoss = _tokens("nll")
    """The loss of a token of an imported row."""
    mu: Annotated[float, Change.DATED] = Field(0.1, ge=0, le=1)
    """Share of the imported rows in the loss. The rollout groups have the rest."""
    mu_warmup_steps: Annotated[int, Change.DATED] = Field(0, ge=0)
    """Steps over which mu rises from zero."""
    mu_valley: Annotated[float | None, Change.DATED] = Field(None, ge=0, le=1)
    """After the warm-up mu falls to this along half a cosine. None: mu stays."""
    mu_decay_steps: Annotated[int, Change.DATED] = Field(0, ge=0)
    """Steps over which mu falls."""

    @model_validator(mode="after")
    def no_teacher_is_asked_of_imported_rows(self) -> Self:
        if self.distillation is not None:
            raise ValueError("distillation reads a teacher on each row, and imported ones have none: drop it")
        return self

    @model_validator(mode="after")
    def mu_falls_over_some_steps(self) -> Self:
        if (self.mu_valley is None) != (self.mu_decay_steps == 0):
            raise ValueError("mu_valley and mu_decay_steps go together: set both, or leave out both")
        return self


class PreferenceConfig(Settings):
    """Learns from pairs, so that the chosen response becomes likelier than the rejected one."""

    name: str = "preference"
    """The recipe that these settings started from."""
    loss: tuple[PreferenceLoss, ...] = (_pairs("sigmoid"),)
    """The loss of a pair. Several losses in a list are added up by their `weight`."""

    @field_validator("loss")
    @classmethod
    def there_is_a_loss(cls, loss: tuple[PreferenceLoss, ...]) -> tuple[PreferenceLoss, ...]:
        if not loss:
            raise ValueError("name one loss or more")
        return loss

    @property
    def draws(self) -> Draws:
        return "pairs"


class RewardModelConfig(Settings):
    """Learns a reward model from pairs: it gives the chosen response a higher number than the rejected one. A
    version is a checkpoint of the class AutoModelForSequenceClassification with one label."""

    name: str = "reward_model"
    """The recipe that these settings started from."""
    margin: Annotated[float, Change.DATED] = Field(0.0, ge=0)
    """By how much the rewards of a pair are to differ, as a multiple of the pair's own margin in the store
    (preference.margin, 0 where there is none). Held-out pairs are measured without it."""
    center_coefficient: Annotated[float, Change.DATED] = Field(0.0, ge=0)
    """Cost of the squared sum of the two rewards of a pair, by which rewards lie around 0. 0.01 is usual."""

    @property
    def draws(self) -> Draws:
        return "pairs"


class LabelsConfig(Settings):
    """Learns from single responses that are good or bad. One with a reward above zero is good."""

    name: str = "labels"
    """The recipe that these settings started from."""
    loss: LabelLoss = _labels("kto")
    """The loss of a response."""
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
        """Whether a row's loss depends on the others of its batch."""
        return self.loss.name == "kto"


class SupervisedConfig(Settings):
    """Learns by imitation: rows become likelier."""

    name: str = "supervised"
    """The recipe that these settings started from."""
    loss: SupervisedLoss = _tokens("nll")
    """The loss of a token."""
    aggregation: Aggregation = _mean("token_mean")
    """How the losses of tokens become one number."""
    reward_above: float | None = None
    """Learn from the run's own rollouts with a reward above this. None: learn from imported rows."""

    @property
    def draws(self) -> Draws:
        return "rows" if self.reward_above is None else "groups"


Composition = (
    PolicyGradientConfig | MixConfig | PreferenceConfig | RewardModelConfig | LabelsConfig | SupervisedConfig
)

RECIPES: dict[str, Composition] = {
    "policy_gradient": PolicyGradientConfig(),
    "grpo": PolicyGradientConfig(),
    # The length scales the loss and nothing else; it is what explorer.max_new_tokens is by default.
    "dr_grpo": PolicyGradientConfig(
        advantage=_advantage("group", scale_rewards="none"),
        aggregation=_mean("seq_mean_token_sum_norm", length=256),
    ),
    # Overlong shaping and dynamic sampling are the processors': overlong_penalty and drop_equal_rewards.
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
    # On-policy as it is written: behind other versions add a correction. 1 is the 0.5 of Stable-Baselines3.
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
    # CHORD-φ as its authors have it; CHORD-µ is mix with mu 0.9, mu_valley 0.05 and mu_decay_steps 200.
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
}
"""By the name that the configuration uses."""


def choices(recipe: Composition) -> dict[str, Any]:
    """The parts that a recipe chooses, each as its name and the options that it sets, and its own options.

    A list stands for several parts of a kind.
    """
    chosen: dict[str, Any] = {}
    for key, field in type(recipe).model_fields.items():
        value, default = getattr(recipe, key), field.get_default(call_default_factory=True)
        parts = value if isinstance(value, tuple) else (value,)
        if key == "name" or ((value is None or not isinstance(parts[0], BaseModel)) and value == default):
            continue
        spelled = [_spelled(part) if isinstance(part, Part) else part for part in parts]
        chosen[key] = spelled if isinstance(value, tuple) else spelled[0]
    return chosen


def _spelled(part: Part) -> dict[str, Any]:
    """A part as a configuration may have it: its name, and the options that differ from their defaults."""
    return {"name": part.name, **part.model_dump(exclude_defaults=True, exclude={"name"})}
