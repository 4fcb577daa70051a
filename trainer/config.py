"""Settings of the trainer, of its algorithm, and of how it samples.

In a configuration file `algorithm` is a name, `algorithm: grpo`, or a mapping that names it and
changes options or parts, `algorithm: {name: grpo, clip_high: 0.28, kl: k3}`; and so is `sampler`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from trinity_db.config import ForwardConfig
from trinity_db.settings import Settings
from trinity_db.trainer.recipes import (
    LabelsConfig,
    MixConfig,
    PolicyGradientConfig,
    PreferenceConfig,
    SupervisedConfig,
)
from trinity_db.trainer.spelling import composed, composition_of

AlgorithmConfig = Annotated[
    Annotated[PolicyGradientConfig, Tag("policy_gradient")]
    | Annotated[MixConfig, Tag("mix")]
    | Annotated[PreferenceConfig, Tag("preference")]
    | Annotated[LabelsConfig, Tag("labels")]
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


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class LoraConfig(Settings):
    """Train small matrices beside the frozen weights instead of these (LoRA). Gradients and the optimizer's
    state are theirs alone; a checkpoint is the whole model with them in it, and beside it they, for peft."""

    rank: int = Field(16, ge=1)
    """Rows of the one and columns of the other matrix of a layer (peft's r)."""
    alpha: int = Field(32, ge=1)
    """Their product is multiplied by alpha / rank (peft's lora_alpha)."""
    targets: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(("all-linear",), min_length=1)
    """Which linear layers have them (peft's target_modules), by the ends of their names, as [q_proj, v_proj];
    all-linear: all of them but the output embedding, which never has."""


class StartReference(Settings):
    """The starting model, frozen."""

    name: Literal["start"] = "start"


class SynchronisedReference(Settings):
    """A model that follows the policy: the starting model at first, from time to time mixed with the policy
    (TR-DPO, arXiv 2404.09656). Its weights are a part of each checkpoint."""

    name: Literal["synchronised"] = "synchronised"
    sync_every: int = Field(512, ge=1)
    """Steps after which it is mixed (TRL's ref_model_sync_steps)."""
    mix: float = Field(0.6, gt=0, le=1)
    """The policy's share of the mixture (TRL's ref_model_mixup_alpha); 1: it becomes the policy."""


class PrecomputedReference(Settings):
    """The starting model, asked once: what it says of all imported rows is computed before the first step and
    stored with them. No second model is in memory then, and a step has no forward pass of one."""

    name: Literal["precomputed"] = "precomputed"


ReferenceConfig = Annotated[
    StartReference | SynchronisedReference | PrecomputedReference,
    Field(discriminator="name"),
    _spelled_out("{name: synchronised, sync_every: 100}"),
]
"""The settings of one reference, told apart by their `name`."""


class TrainerConfig(ForwardConfig):
    """How the policy is improved, and when a new version is published."""

    steps: int | None = Field(None, ge=1)
    """Optimizer steps after which an online run ends."""
    epochs: int = Field(1, ge=1)
    """How often an offline run uses each row."""
    batch_size: int = Field(32, ge=1)
    """What one step consumes: rollout groups online, rows (as sft) or pairs (as dpo) offline."""
    gradient_checkpointing: bool = False
    """Compute each layer's inner values again in the backward pass: less memory for a third more time. May
    change during a run."""
    lora: LoraConfig | None = None
    """Train an adapter instead of the whole model; `lora: {}` has the defaults. None: the whole model."""
    reference: ReferenceConfig = StartReference()
    """What algorithms with a reference compare the policy with: start, synchronised, or precomputed (offline
    only), by name or with options. An adapter is compared with the model without it: start, and no second
    model in memory."""
    sharding: Literal["none", "full"] = "none"
    """What each process of several has, as torchrun starts them: none, copies of everything (as DDP); full,
    its part of weights, gradients and optimizer (FSDP2). Results and checkpoints do not depend on it. May
    change during a run."""
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
    """Latest checkpoints kept on disk; at least two, since an explorer may still read the one before. May
    change during a run."""
    max_length: int | None = Field(None, ge=2)
    """Longest imported sequence in tokens, prompt and response together; longer ones lose their end.
    None: the model's context."""
    eval_every: int | None = Field(None, ge=1)
    """Steps between evaluations on held-out rows (offline). None: before the first step and at the end
    only."""
    checkpoints: Path | None = None
    """Folder in which the run has one of its name for its checkpoints. May change during a run, for later
    ones. None: checkpoints in TRINITY_DB_HOME."""

    @model_validator(mode="after")
    def an_adapter_has_no_second_model(self) -> Self:
        if self.lora is not None and self.reference.name == "synchronised":
            raise ValueError(
                "lora compares with the same model without its adapter, and has no second one for "
                "reference: synchronised; leave out one of them"
            )
        return self
