"""Settings of the trainer, of its algorithm, and of how it samples.

In a configuration file `algorithm` is a name, `algorithm: grpo`, or a mapping that names it and
changes options or parts, `algorithm: {name: grpo, clip_high: 0.28, kl: k3}`; and so is `sampler`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from trinity_db.settings import Settings
from trinity_db.trainer.recipes import PolicyGradientConfig, PreferenceConfig, SupervisedConfig
from trinity_db.trainer.spelling import composed, composition_of

AlgorithmConfig = Annotated[
    Annotated[PolicyGradientConfig, Tag("policy_gradient")]
    | Annotated[PreferenceConfig, Tag("preference")]
    | Annotated[SupervisedConfig, Tag("supervised")],
    Discriminator(lambda value: composition_of(value)),
    BeforeValidator(composed),
]
"""A recipe with its parts: by name, with options of its parts beside it, or with parts of one's choice."""


def _spelled_out(example: str) -> BeforeValidator:
    """A name is a mapping with nothing else; a mapping without one is answered with an example."""

    def spelled_out(value: Any) -> Any:
        if isinstance(value, dict) and "name" not in value:
            raise ValueError(f"name it, as in {example}")
        return {"name": value} if isinstance(value, str) else value

    return BeforeValidator(spelled_out)


class FifoConfig(Settings):
    """The oldest rollout groups first."""

    name: Literal["fifo"] = "fifo"


class NewestConfig(Settings):
    """The newest rollout groups first. Older ones wait, and expire by max_staleness."""

    name: Literal["newest"] = "newest"


class UniformConfig(Settings):
    """Each rollout group with the same chance."""

    name: Literal["uniform"] = "uniform"


class PrioritizedConfig(Settings):
    """Each rollout group with a chance that follows its priority.

    Without priorities, which processors.group.priority sets, all groups weigh the same.
    """

    name: Literal["prioritized"] = "prioritized"
    alpha: float = Field(0.6, ge=0, le=2)
    """Groups are picked in proportion to priority^alpha: 0 ignores priorities, 1 takes them as they are. One
    with priority 0 is never picked."""
    beta: float = Field(0.4, ge=0, le=1)
    """How far a row's share in the loss makes up for its chance: 0 not at all, 1 wholly."""


SamplerConfig = Annotated[
    FifoConfig | NewestConfig | UniformConfig | PrioritizedConfig,
    Field(discriminator="name"),
    _spelled_out("{name: prioritized, alpha: 1}"),
]
"""The settings of one sampler, told apart by their `name`."""


class TrainerConfig(Settings):
    """How the policy is improved, and when a new version is published."""

    steps: int | None = Field(None, ge=1)
    """Optimizer steps after which an online run ends."""
    epochs: int = Field(1, ge=1)
    """How often an offline run uses each row."""
    batch_size: int = Field(32, ge=1)
    """What one step consumes: rollout groups online, rows (as sft) or pairs (as dpo) offline."""
    micro_batch_size: int = Field(32, ge=1)
    """Sequences in one forward pass (a pair counts as two). Bounds memory; results do not depend on it."""
    micro_batch_tokens: int = Field(4096, ge=1)
    """Tokens in one forward pass, prompts included; a longer sequence goes alone. Bounds memory likewise."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What forward and backward pass compute in; weights, optimizer and losses stay in float32."""
    gradient_checkpointing: bool = False
    """Compute each layer's inner values again in the backward pass: less memory for a third more time."""
    learning_rate: float = Field(1e-5, gt=0)
    """Peak learning rate of AdamW."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """The gradient of a step is scaled down to this norm when it is longer."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises from zero."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The learning rate after the warm-up; linear and cosine fall to zero at the last step."""
    publish_every: int | None = Field(None, ge=1)
    """Steps between published policy versions, each with a checkpoint; the last step publishes in any case.
    None: every step online, every 100 steps offline."""
    keep_checkpoints: int = Field(3, ge=2)
    """Latest checkpoints kept on disk; at least two, since an explorer may still read the one before."""
    max_length: int | None = Field(None, ge=2)
    """Longest offline sequence in tokens, prompt and response together; longer ones lose their end.
    None: the model's context."""
    eval_every: int | None = Field(None, ge=1)
    """Steps between evaluations on held-out rows (offline). None: at the end only."""
    checkpoints: Path | None = None
    """Folder for this run's checkpoints; later ones may go to another. None: below TRINITY_DB_HOME, by the
    run's name."""
