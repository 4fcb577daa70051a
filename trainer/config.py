"""Settings of the trainer, its algorithm and its sampler.

In a configuration file `algorithm` is a name (`algorithm: grpo`), or a mapping with the name and changed
options or parts (`algorithm: {name: grpo, clip_high: 0.28, kl: k3}`). `sampler` is written in the same way.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from trinity_db.config import ForwardConfig
from trinity_db.settings import Change, Kept, Settings
from trinity_db.trainer.recipe_parser import composed, composition_of
from trinity_db.trainer.recipes import (
    LabelsConfig,
    MixConfig,
    PolicyGradientConfig,
    PreferenceConfig,
    SupervisedConfig,
)

AlgorithmConfig = Annotated[
    Annotated[PolicyGradientConfig, Tag("policy_gradient")]
    | Annotated[MixConfig, Tag("mix")]
    | Annotated[PreferenceConfig, Tag("preference")]
    | Annotated[LabelsConfig, Tag("labels")]
    | Annotated[SupervisedConfig, Tag("supervised")],
    Discriminator(lambda value: composition_of(value)),
    BeforeValidator(composed),
]
"""A recipe with its parts. A configuration names it, and may change parts and their options."""


def _as_mapping(example: str) -> BeforeValidator:
    """Read a name as a mapping with that name. A mapping without a name is an error with the example."""

    def as_mapping(value: Any) -> Any:
        if isinstance(value, dict) and "name" not in value:
            raise ValueError(f"name it, as in {example}")
        return {"name": value} if isinstance(value, str) else value

    return BeforeValidator(as_mapping)


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
    """Groups are picked in proportion to priority^alpha. 0 ignores priorities, 1 takes them as they are.
    A group with priority 0 is never picked."""
    beta: float = Field(0.4, ge=0, le=1)
    """How far a row's weight in the loss makes up for its chance to be picked. 0: not at all; 1: fully."""


SamplerConfig = Annotated[
    FifoConfig | NewestConfig | UniformConfig | PrioritizedConfig,
    Field(discriminator="name"),
    _as_mapping("{name: prioritized, alpha: 1}"),
]
"""The settings of one sampler. `name` says which one."""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class LoraConfig(Settings):
    """Train small matrices beside the frozen weights (LoRA). Only they have gradients and optimizer state. A
    checkpoint is the whole model with the adapter in it, and the adapter beside it, for peft."""

    rank: int = Field(16, ge=1, le=65_536)
    """Rank of the two matrices of a layer (r in peft)."""
    alpha: int = Field(32, ge=1)
    """The product of the two is multiplied by alpha / rank (lora_alpha in peft)."""
    targets: Annotated[
        tuple[str, ...], BeforeValidator(_as_list, json_schema_input_type=str | tuple[str, ...])
    ] = Field(("all-linear",), min_length=1)
    """The linear layers that get an adapter (target_modules in peft), by the ends of their names, such as
    [q_proj, v_proj]. all-linear: all except the output embedding, which never gets one."""


class StartReference(Settings):
    """The starting model, frozen."""

    name: Literal["start"] = "start"


class SynchronisedReference(Settings):
    """A model that follows the policy. It begins as the starting model, and its weights are mixed with the
    policy's every so many steps (TR-DPO, arXiv 2404.09656). They are part of each checkpoint."""

    name: Literal["synchronised"] = "synchronised"
    sync_every: int = Field(512, ge=1)
    """Steps between two mixtures."""
    mix: float = Field(0.6, gt=0, le=1)
    """The policy's share of the mixture. 1: the reference becomes equal to the policy."""


class PrecomputedReference(Settings):
    """The starting model, which scores all imported rows once, before the first step. Its log-probabilities
    are stored with the rows. During training no second model is in memory, and none is computed."""

    name: Literal["precomputed"] = "precomputed"


ReferenceConfig = Annotated[
    StartReference | SynchronisedReference | PrecomputedReference,
    Field(discriminator="name"),
    _as_mapping("{name: synchronised, sync_every: 100}"),
]
"""The settings of one reference. `name` says which one."""


class TrainerConfig(ForwardConfig):
    """How the trainer improves the policy, and when it publishes a new version."""

    steps: Annotated[int | None, Change.DATED] = Field(None, ge=1)
    """Optimizer steps after which an online run ends."""
    epochs: Annotated[int, Change.DATED] = Field(1, ge=1, le=1_000_000)
    """How often an offline run uses each row."""
    batch_size: Annotated[int, Change.DATED] = Field(32, ge=1, le=100_000)
    """Size of a step: rollout groups in an online run, rows (sft) or pairs (dpo) in an offline run."""
    gradient_checkpointing: Annotated[bool, Change.PER_PROCESS] = False
    """Compute each layer's inner values again in the backward pass: less memory, about a third more time. May
    change during a run."""
    lora: Annotated[
        LoraConfig | None, Kept("checkpoints hold its matrices and their optimizer", once_trained=True)
    ] = None
    """Train an adapter instead of the whole model. `lora: {}` takes the defaults. None: the whole model."""
    reference: Annotated[
        ReferenceConfig, Kept("the steps so far were compared with it", once_trained=True)
    ] = StartReference()
    """The model that algorithms with a reference compare the policy with: start, synchronised, or precomputed
    (offline runs only), by name or with options. With lora, start is the model without the adapter, and no
    second model is in memory."""
    sharding: Annotated[Literal["none", "full"], Change.PER_PROCESS] = "none"
    """How several processes, started by torchrun, share the model. none: each has a copy (as DDP). full:
    each has a part of weights, gradients and optimizer (FSDP2). Results and checkpoints do not depend on
    it. May change during a run."""
    learning_rate: Annotated[float, Change.DATED] = Field(1e-5, gt=0, le=100)
    """Peak learning rate of AdamW."""
    weight_decay: Annotated[float, Change.DATED] = Field(0.0, ge=0)
    """AdamW's decoupled weight decay."""
    max_grad_norm: Annotated[float, Change.DATED] = Field(1.0, gt=0)
    """A gradient with a larger norm is scaled down to this norm."""
    warmup_steps: Annotated[int, Change.DATED] = Field(0, ge=0)
    """Steps over which the learning rate rises from zero."""
    schedule: Annotated[Literal["constant", "linear", "cosine"], Change.DATED] = "constant"
    """The learning rate after the warm-up; linear and cosine fall to zero at the last step."""
    publish_every: Annotated[int | None, Change.DATED] = Field(None, ge=1)
    """Steps between published policy versions, each with a checkpoint. The last step always publishes. None:
    every step in an online run, every 100 steps in an offline run."""
    keep_checkpoints: Annotated[int, Change.PER_PROCESS] = Field(3, ge=2)
    """Number of latest checkpoints kept on disk. At least two, because an explorer may still read the one
    before. May change during a run."""
    max_length: Annotated[int | None, Kept("imported rows have their tokens by it")] = Field(None, ge=2)
    """Longest imported sequence in tokens, prompt and response together. Longer ones are cut at the end.
    None: the model's context."""
    eval_every: Annotated[int | None, Change.DATED] = Field(None, ge=1)
    """Steps between evaluations on held-out rows (offline runs). None: only before the first step and at the
    end."""
    checkpoints: Annotated[Path | None, Change.PER_PROCESS] = None
    """Folder for checkpoints; the run makes a folder of its name there. May change during a run, and then
    holds for later checkpoints. None: `checkpoints` in TRINITY_DB_HOME."""

    @model_validator(mode="after")
    def an_adapter_has_no_second_model(self) -> Self:
        if self.lora is not None and self.reference.name == "synchronised":
            raise ValueError(
                "lora compares with the same model without its adapter, and has no second model for "
                "reference: synchronised; leave out one of them"
            )
        return self
