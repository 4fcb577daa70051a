"""Settings of the trainer, its algorithm and its sampler.

In a configuration file `algorithm` is a name (`algorithm: grpo`), or a mapping with the name and changed
options or parts (`algorithm: {name: grpo, clip_high: 0.28, kl: k3}`). `sampler` has the same form.
"""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from trinity_db.config.base import Change, Kept, Settings
from trinity_db.config.shared import ForwardConfig
from trinity_db.trainer.recipes.optimizers import NEEDS_WHOLE, AdamW, OptimizerConfig
from trinity_db.trainer.recipes.parser import composed, composition_of
from trinity_db.trainer.recipes.recipes import (
    ExternalConfig,
    LabelsConfig,
    MixConfig,
    PolicyGradientConfig,
    PreferenceConfig,
    RewardModelConfig,
    SupervisedConfig,
)
from trinity_db.weights import bucket

AlgorithmConfig = Annotated[
    Annotated[PolicyGradientConfig, Tag("policy_gradient")]
    | Annotated[MixConfig, Tag("mix")]
    | Annotated[PreferenceConfig, Tag("preference")]
    | Annotated[RewardModelConfig, Tag("reward_model")]
    | Annotated[LabelsConfig, Tag("labels")]
    | Annotated[SupervisedConfig, Tag("supervised")]
    | Annotated[ExternalConfig, Tag("external")],
    Discriminator(lambda value: composition_of(value)),
    BeforeValidator(composed),
]
"""An algorithm recipe with its parts. A configuration names it, and may change parts and their options."""


def _as_mapping(example: str) -> BeforeValidator:
    """Read a name as a mapping with that name. A mapping without a name is an error with the example."""

    def as_mapping(value: Any) -> Any:
        if isinstance(value, dict) and "name" not in value:
            raise ValueError(f"it needs a name, such as {example}")
        return {"name": value} if isinstance(value, str) else value

    return BeforeValidator(as_mapping)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Conditional(Settings):
    """A sampler that can exclude rollout groups."""

    where: str | None = Field(None, min_length=1, max_length=10_000)
    """Only draw rollout groups that meet this SQL condition over the columns of `drawable`, such as
    "reward_std > 0". Others wait until they meet it or expire by max_staleness. Write %% for a percent
    sign."""


class FifoConfig(Conditional):
    """Oldest rollout groups first."""

    name: Literal["fifo"] = "fifo"


class NewestConfig(Conditional):
    """Newest rollout groups first. Older ones wait, and expire by max_staleness."""

    name: Literal["newest"] = "newest"


class UniformConfig(Conditional):
    """All rollout groups with equal probability."""

    name: Literal["uniform"] = "uniform"


class PrioritizedConfig(Conditional):
    """Rollout groups with a probability that depends on their priority.

    Priorities are set by processors.priority or processors.group.priority; without them all groups are equal.
    """

    name: Literal["prioritized"] = "prioritized"
    alpha: float = Field(0.6, ge=0, le=2)
    """Exponent: groups are drawn in proportion to priority^alpha. 0 ignores priorities, 1 uses them
    unchanged. A group with priority 0 is never drawn."""
    beta: float = Field(0.4, ge=0, le=1)
    """How far a row's weight in the loss compensates for its probability of being drawn. 0: not at all; 1:
    fully."""


PlainSamplerConfig = Annotated[
    FifoConfig | NewestConfig | UniformConfig | PrioritizedConfig,
    Field(discriminator="name"),
    _as_mapping("{name: prioritized, alpha: 1}"),
]
"""Settings of a sampler for one part of a mix."""


class StratifiedConfig(Conditional):
    """Equally many rollout groups from each class, drawn at random within it. If a class has too few, the
    other classes fill in."""

    name: Literal["stratified"] = "stratified"
    by: Literal["taskset", "difficulty", "length"]
    """Property that defines the classes: the taskset; the share of the group's attempts that did not solve
    the task (processors.group.solved_reward); or the mean length of its responses in tokens."""
    edges: tuple[float, ...] | None = Field(None, min_length=1, max_length=100)
    """Boundaries between classes. None: 0.25, 0.5 and 0.75 for difficulty, and 32, 128, 512, 2048 and 8192
    tokens for length, like the classes in drop_view."""

    @model_validator(mode="after")
    def edges_divide(self) -> Self:
        if self.edges is not None and self.by == "taskset":
            raise ValueError("each taskset is a class: remove edges")
        if self.edges is not None and any(low >= high for low, high in pairwise(self.edges)):
            raise ValueError("edges must ascend, for example [0.25, 0.5, 0.75]")
        return self


class PartConfig(Settings):
    """A part of the mix. A group belongs to the first part whose conditions it meets."""

    share: float = Field(1.0, ge=1e-6, le=1e6)
    """The part's share of trainer.batch_size, relative to the shares of the other parts."""
    rows: Literal["live", "replayed"] | None = None
    """live: groups that no committed batch has used; replayed: used groups that can be drawn again because
    max_uses is above 1. None: both."""
    taskset: Annotated[
        tuple[str, ...], BeforeValidator(_as_list, json_schema_input_type=str | tuple[str, ...])
    ] = ()
    """Only groups of these tasksets. Empty: all tasksets."""
    sampler: PlainSamplerConfig = FifoConfig()
    """Sampler of the part: fifo, newest, uniform or prioritized. Its where is a further condition of the
    part."""


class MixedConfig(Settings):
    """Parts of the rollout groups, each with a share of every batch and its own sampler."""

    name: Literal["mix"] = "mix"
    parts: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,50}$")], PartConfig] = Field(
        min_length=1, max_length=100
    )
    """Parts by name, such as {fresh: {share: 3, rows: live}, again: {rows: replayed, sampler: uniform}}. A
    group belongs to the first part whose conditions it meets."""
    experts: dict[str, Annotated[float, Field(ge=1e-6, le=1e6)]] = Field(default_factory=dict)
    """Shares of data sets among algorithm.expert_rows (algorithms mix and chord), such as {books: 3, web: 1}.
    Each data set has its own passes, and data sets not named here are not drawn. Empty: common passes over
    all data sets."""
    fill: bool = True
    """Whether other parts fill in for a part with too few groups, in proportion to their shares. false: the
    step waits for groups; it waits forever if explorers have reached their limit, and trinity-db status
    reports this."""


class SqlConfig(Settings):
    """Rollout groups selected by your own SELECT, drawn in proportion to its weights."""

    name: Literal["sql"] = "sql"
    query: str = Field(min_length=1, max_length=100_000)
    """The SELECT, or the path of a .sql file that contains it. It returns id and weight, which is 0 or a
    number from 1e-100 to 1e100, and reads `drawable`, the groups that can be drawn; other groups in its
    result are ignored. It may use %(run_id)s, %(step)s, %(size)s and %(version)s; write %% for a percent
    sign. It runs read-only with the trainer's login."""
    seconds: float = Field(5.0, gt=0, le=600)
    """Time limit of the query in seconds; exceeding it ends the trainer with an error."""
    beta: float = Field(0.0, ge=0, le=1)
    """How far a row's weight in the loss compensates for its probability of being drawn. 0: not at all; 1:
    fully."""


SamplerConfig = Annotated[
    FifoConfig
    | NewestConfig
    | UniformConfig
    | PrioritizedConfig
    | StratifiedConfig
    | MixedConfig
    | SqlConfig,
    Field(discriminator="name"),
    _as_mapping("{name: prioritized, alpha: 1}"),
]
"""Settings of a sampler, selected with `name`."""


class LoraConfig(Settings):
    """Train small matrices added to frozen weights (LoRA). Only they have gradients and optimizer state.
    trainer.publish selects whether a version contains these matrices alone or a whole model."""

    rank: int = Field(16, ge=1, le=65_536)
    """Rank of the two matrices of a layer (r in peft)."""
    alpha: int = Field(32, ge=1)
    """Numerator of the scale alpha / rank of their product (lora_alpha in peft)."""
    targets: Annotated[
        tuple[str, ...], BeforeValidator(_as_list, json_schema_input_type=str | tuple[str, ...])
    ] = Field(("all-linear",), min_length=1)
    """Suffixes of the names of linear layers that get an adapter (target_modules in peft), such as [q_proj,
    v_proj]. all-linear: all except the output embedding, which never gets one, and layers that a kernel reads
    directly (out_proj of Mamba). Mixtures of experts follow peft: experts and router get an adapter if it
    supports their fused form in transformers, such as for Mixtral, Qwen and DeepSeek."""


class StartReference(Settings):
    """The starting model, frozen."""

    name: Literal["start"] = "start"


class SynchronisedReference(Settings):
    """A model that follows the policy. It starts as the starting model, and its weights are mixed with the
    policy's at a fixed interval (TR-DPO, arXiv 2404.09656). They are part of each checkpoint."""

    name: Literal["synchronised"] = "synchronised"
    sync_every: int = Field(512, ge=1)
    """Steps between two mixes."""
    mix: float = Field(0.6, gt=0, le=1)
    """The policy's share of the mix. 1: the reference becomes equal to the policy."""


class PrecomputedReference(Settings):
    """The starting model, which scores all imported rows once, before the first step. Its log-probabilities
    are stored with the rows, so that training needs no second model in memory and no further forward passes
    of it."""

    name: Literal["precomputed"] = "precomputed"


ReferenceConfig = Annotated[
    StartReference | SynchronisedReference | PrecomputedReference,
    Field(discriminator="name"),
    _as_mapping("{name: synchronised, sync_every: 100}"),
]
"""Settings of a reference, selected with `name`."""


class TrainerConfig(ForwardConfig):
    """Training of the policy, and publication of its versions."""

    steps: Annotated[int | None, Change.DATED] = Field(None, ge=1)
    """Steps after which the run ends. Required for an online run; an offline run ends earlier if no row has
    uses left."""
    epochs: Annotated[float, Change.DATED] = Field(1.0, gt=0, le=1_000_000)
    """Passes of an offline run over its rows, pairs or adopted groups. With 1.5 it ends after half of the
    steps of the second pass, rounded up."""
    batch_size: Annotated[int, Change.DATED] = Field(32, ge=1, le=100_000)
    """Size of a step: rollout groups (grpo), rows (sft) or pairs (dpo)."""
    updates_per_batch: Annotated[int, Change.DATED] = Field(1, ge=1, le=1000)
    """Passes of a step over its batch, with an update of the weights in each (TRL num_iterations, verl
    ppo_epochs, OpenRLHF max_epochs). Advantages and the policy that ratios are clipped around stay those of
    the start of the step. Above 1 a step keeps a copy of weights and optimizer state in main memory."""
    minibatches: Annotated[int, Change.DATED] = Field(1, ge=1, le=100_000)
    """Parts of about equal numbers of rows or pairs into which each pass over the batch is divided, with an
    update for each part (PPO's num_mini_batches). Above 1 the same copy is kept."""
    gradient_checkpointing: Annotated[bool | Literal["auto"], Change.PER_PROCESS] = "auto"
    """Recompute each layer's activations in the backward pass: less memory, about a third more time. auto:
    only for rows whose activations do not fit into half of the memory that is free when the trainer starts.
    May change during a run."""
    compile: Annotated[bool, Change.PER_PROCESS] = False
    """Let torch.compile fuse the operations of each layer outside its attention: after a minute or more at
    the start, less time and memory on a GPU. Results differ by rounding. May change during a run."""
    lora: Annotated[
        LoraConfig | None, Kept("checkpoints hold its matrices and their optimizer", once_trained=True)
    ] = None
    """Train an adapter instead of the whole model. `lora: {}` uses the defaults. None: the whole model."""
    reference: Annotated[
        ReferenceConfig, Kept("earlier steps compared the policy with it", once_trained=True)
    ] = StartReference()
    """Model that algorithms with a reference compare the policy with: start, synchronised, or precomputed
    (offline runs only), as a name or with options. With lora, start is the model without the adapter, and
    needs no second model in memory."""
    ranks: Annotated[int | None, Change.PER_PROCESS] = Field(None, ge=1, le=1024)
    """Processes on this machine that compute each step together, each on its own GPU if there are any. None:
    one per GPU visible to the trainer, and one without a GPU. For several machines, torchrun's options set
    it. Results do not depend on it. May change during a run."""
    sharding: Annotated[Literal["none", "full"], Change.PER_PROCESS] = "none"
    """Distribution of the model over ranks. none: each has a copy (like DDP). full: each has a part of
    weights, gradients and optimizer (FSDP2); a single rank has everything. Results and checkpoints do not
    depend on it. May change during a run."""
    sum_gradients: Annotated[Literal["step", "micro_batch"], Change.PER_PROCESS] = "step"
    """With sharding: full, when ranks sum their gradients. step: once, and until then each rank holds
    gradients of all weights, 4 bytes per parameter. micro_batch: after each micro-batch, which takes more
    time and less memory. Results do not depend on it. May change during a run."""
    offload: Annotated[bool, Change.PER_PROCESS] = False
    """With sharding: full, keep each rank's part of weights, gradients and optimizer in CPU memory, and run
    the optimizer there. Layers are copied to the GPU when they are computed, which needs far less GPU memory
    and more time. May change during a run."""
    learning_rate: Annotated[float, Change.DATED] = Field(1e-5, gt=0, le=100)
    """Peak learning rate."""
    value_learning_rate: Annotated[float | None, Change.DATED] = Field(None, gt=0, le=100)
    """Peak learning rate of the value head (critic.optim.lr in verl), with the same schedule. None:
    learning_rate."""
    optimizer: Annotated[OptimizerConfig, Kept("checkpoints hold its state", once_trained=True)] = AdamW()
    """Optimizer: adamw, adamw_8bit, adafactor, sgd or muon, as a name or with options; or your own as
    path/to/file.py:Class. Its options, such as beta1, can change later, the optimizer cannot."""
    weight_decay: Annotated[float, Change.DATED] = Field(0.0, ge=0)
    """Share of the weights subtracted in each update, times the learning rate. One-dimensional parameters,
    such as norms and biases, are excluded. With sgd it is added to the gradient."""
    router_aux_loss_coef: Annotated[float | None, Change.DATED] = Field(None, ge=0, le=1)
    """Weight of a loss that balances the load of experts in a mixture (moe_aux_loss_coeff in Megatron). 0: no
    such loss. None: the value in the model's config.json if output_router_logits is true there, like in
    transformers, else no such loss. The loss needs one more forward pass without gradient per update."""
    replay_routing: Annotated[bool, Change.DATED] = True
    """Whether rows with recorded choices of experts (explorer.record_routing) train with these experts (R3).
    false: the trainer's routers choose, and `sampling/routing_differs` measures how often their choice
    differs from the engine's."""
    max_grad_norm: Annotated[float, Change.DATED] = Field(1.0, gt=0)
    """Gradients with a larger norm are scaled down to this norm."""
    warmup_steps: Annotated[int, Change.DATED] = Field(0, ge=0)
    """Steps over which the learning rate rises from zero."""
    schedule: Annotated[Literal["constant", "linear", "cosine"], Change.DATED] = "constant"
    """Learning rate after the warm-up; linear and cosine fall to zero at the last step."""
    publish_every: Annotated[int | None, Change.DATED] = Field(None, ge=1)
    """Steps between published policy versions. The last step always publishes. None: every step in an online
    run, every 100 steps in an offline run."""
    checkpoint_every: Annotated[Literal["auto"] | Annotated[int, Field(ge=1)], Change.PER_PROCESS] = "auto"
    """When to write a checkpoint, from which the trainer resumes after a crash. A crash repeats the steps
    after the latest checkpoint and withdraws their versions. auto: often, but with checkpoints taking less
    than 5 % of the wall time, and at most 10 minutes apart unless one takes over 30 s. A number: after this
    many steps, even if the trainer has to wait for the previous checkpoint. The last step and a stop always
    write one. May change during a run."""
    publish_dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], Change.DATED] = "auto"
    """Number format of the weights of a policy version. auto: the 16-bit format that the engines of all
    running explorers compute in, if it is the same, else float32. bfloat16 and float16: half the size; the
    trainer keeps its own weights in float32, and rounds with a fixed threshold per weight, so that every
    update reaches explorers (docs/guides/precision.md)."""
    publish: Annotated[Literal["adapter", "merged"] | None, Change.PER_PROCESS] = None
    """With lora, the content of a policy version: adapter, only the trained matrices, in float32, a few MB;
    or merged, the whole model with the adapter merged, in publish_dtype. None: adapter if explorer.engine is
    transformers or vllm, which load adapters, and no reward model is trained, else merged. May change during
    a run."""
    keep_checkpoints: Annotated[int, Change.PER_PROCESS] = Field(3, ge=2)
    """Number of latest checkpoints kept on disk, with the weights of their versions, and of latest versions.
    At least two, because an explorer may still read the previous one. Older versions in 16 bits are kept as
    deltas (keep_deltas). May change during a run."""
    keep_every: Annotated[int | None, Change.PER_PROCESS] = Field(None, ge=1)
    """Interval of steps whose versions stay on disk with full weights, in addition to the latest and
    regardless of keep_deltas. A multiple of publish_every. None: no further versions. May change during a
    run."""
    keep_best: Annotated[str | None, Change.PER_PROCESS] = Field(None, min_length=1, pattern="^-?[^-]")
    """Metric whose best version stays on disk with full weights: the version with its highest value, such as
    eval/TASKSET/mean@4, or, with a minus, with its lowest, such as -eval/loss. May change during a run."""
    keep_deltas: Annotated[float, Change.PER_PROCESS] = Field(0.25, ge=0, le=1)
    """Share of disk space for deltas: 16-bit versions that no rule above keeps stay as deltas, a few percent
    of a version each, while they take at most this share of the space that is free or taken by them. Beyond
    it the oldest are deleted. 0: no deltas. Versions in float32 are never kept as deltas. May change during a
    run."""
    max_length: Annotated[int | None, Kept("imported rows were tokenised with it")] = Field(None, ge=2)
    """Maximum length of an imported sequence in tokens, prompt and response together. Longer ones are
    truncated at the end. None: the model's context."""
    eval_every: Annotated[int | None, Change.DATED] = Field(None, ge=1)
    """Steps between evaluations on held-out rows (offline runs). None: only before the first step and at the
    end."""
    checkpoints: Annotated[Path | None, Change.PER_PROCESS] = None
    """Folder for checkpoints; each run creates a folder with its name there. May change during a run, and
    then applies to later checkpoints. None: `checkpoints` in TRINITY_DB_HOME."""

    weights: Annotated[str | None, Change.PER_PROCESS] = Field(None, min_length=1, max_length=1000)
    """Object store to which each version is also uploaded, before explorers are notified of it, such as
    s3://bucket/prefix (also gs://, az://, file:///folder). Explorers without access to the folder of
    checkpoints fetch versions from there. Checkpoints are uploaded in the background, one at a time;
    checkpoint_every sets how often. A trainer on another machine resumes from the newest one there.
    Credentials come from the environment. May change during a run. None: all machines share the folder."""

    broadcast: Annotated[str | None, Change.PER_PROCESS] = Field(None, min_length=1, max_length=300)
    """Address of the trainer's machine, such as 10.0.0.1 or 10.0.0.1:29400, from which it broadcasts each
    version to all explorers. An explorer that misses a broadcast reads the version's files. May change during
    a run. None: explorers always read files."""

    @field_validator("weights", mode="before")  # validation errors of other modes repeat the value
    @classmethod
    def the_object_store_has_an_address(cls, weights: Any) -> Any:
        if isinstance(weights, str):
            bucket.check(weights)
        return weights

    @property
    def updates(self) -> int:
        """Maximum number of updates per batch."""
        return self.updates_per_batch * self.minibatches

    @model_validator(mode="after")
    def parts_are_offloaded(self) -> Self:
        if self.offload and self.sharding != "full":
            raise ValueError("offload needs sharded weights: set sharding: full too")
        return self

    @model_validator(mode="after")
    def the_optimizer_has_whole_matrices(self) -> Self:
        if self.sharding == "full" and self.optimizer.name in NEEDS_WHOLE:
            raise ValueError(
                f"optimizer: {self.optimizer.name} needs whole matrices, and sharding: full gives each "
                "process a part of them; use adamw or sgd, or sharding: none"
            )
        return self

    @model_validator(mode="after")
    def only_an_adapter_is_published_as_one(self) -> Self:
        if self.publish is not None and self.lora is None:
            raise ValueError(
                f"publish: {self.publish} applies to an adapter, but the whole model is trained; "
                "remove it, or set lora too"
            )
        return self

    @model_validator(mode="after")
    def an_adapter_has_no_second_model(self) -> Self:
        if self.lora is not None and self.reference.name == "synchronised":
            raise ValueError(
                "lora compares with the same model without its adapter, and has no second model for "
                "reference: synchronised; remove one of them"
            )
        return self
