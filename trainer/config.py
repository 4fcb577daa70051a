"""Settings of the trainer, of the algorithms it knows, and of how it samples.

In a configuration file `algorithm` is a name, `algorithm: grpo`, or a mapping that names it and
changes its settings, `algorithm: {name: grpo, clip_high: 0.28}`; and so is `sampler`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trinity_db.settings import Settings


class GrpoConfig(Settings):
    """Group-relative policy optimisation: rewards compared within a rollout group, clipped ratio."""

    name: Literal["grpo"] = "grpo"
    clip_low: float = Field(0.2, gt=0, lt=1)
    """The probability ratio new/behaviour earns nothing more below 1 - clip_low."""
    clip_high: float = Field(0.2, gt=0)
    """The probability ratio new/behaviour earns nothing more above 1 + clip_high (DAPO takes 0.28)."""
    scale_by_std: bool = True
    """Divide a group's advantages by the standard deviation of its rewards; false gives Dr. GRPO's."""


class SftConfig(Settings):
    """Supervised fine-tuning on demonstrations: the negative log-likelihood of their responses."""

    name: Literal["sft"] = "sft"


class DpoConfig(Settings):
    """Direct preference optimisation on pairs, against the frozen starting model."""

    name: Literal["dpo"] = "dpo"
    beta: float = Field(0.1, gt=0)
    """How strongly the policy is held to the starting model: more is stronger."""


def _spelled_out(example: str) -> BeforeValidator:
    """A name is a mapping with nothing else; a mapping without one is answered with an example."""

    def spelled_out(value: Any) -> Any:
        if isinstance(value, dict) and "name" not in value:
            raise ValueError(f"name it, as in {example}")
        return {"name": value} if isinstance(value, str) else value

    return BeforeValidator(spelled_out)


AlgorithmConfig = Annotated[
    GrpoConfig | SftConfig | DpoConfig,
    Field(discriminator="name"),
    _spelled_out("{name: dpo, beta: 0.2}"),
]
"""The settings of one algorithm, told apart by their `name`."""


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
    """What one step consumes: rollout groups online, rows (sft) or pairs (dpo) offline."""
    micro_batch_size: int = Field(32, ge=1)
    """Sequences in one forward pass (a pair counts as two). Bounds memory; results do not depend on it."""
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
