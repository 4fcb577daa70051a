"""Settings of the trainer, its algorithm and its sampler.

In a configuration file `algorithm` is a name (`algorithm: grpo`), or a mapping with the name and changed
options or parts (`algorithm: {name: grpo, clip_high: 0.28, kl: k3}`). `sampler` is written in the same way.
"""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from trinity_db.config import ForwardConfig
from trinity_db.settings import Change, Kept, Settings
from trinity_db.trainer.optimizer_config import NEEDS_WHOLE, AdamW, OptimizerConfig
from trinity_db.trainer.recipe_parser import composed, composition_of
from trinity_db.trainer.recipes import (
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


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Conditional(Settings):
    """A sampler that may leave out rollout groups."""

    where: str | None = Field(None, min_length=1, max_length=10_000)
    """Only rollout groups that meet this condition, in SQL: over the columns of `drawable`, as in
    "reward_std > 0". Others wait until they meet it or expire by max_staleness. Write %% for a percent
    sign."""


class FifoConfig(Conditional):
    """The oldest rollout groups first."""

    name: Literal["fifo"] = "fifo"


class NewestConfig(Conditional):
    """The newest rollout groups first. Older ones wait, and expire by max_staleness."""

    name: Literal["newest"] = "newest"


class UniformConfig(Conditional):
    """Each rollout group with the same chance."""

    name: Literal["uniform"] = "uniform"


class PrioritizedConfig(Conditional):
    """Each rollout group with a chance that follows its priority.

    Without priorities, which processors.priority or processors.group.priority sets, all groups weigh the
    same.
    """

    name: Literal["prioritized"] = "prioritized"
    alpha: float = Field(0.6, ge=0, le=2)
    """Groups are picked in proportion to priority^alpha. 0 ignores priorities, 1 takes them as they are.
    A group with priority 0 is never picked."""
    beta: float = Field(0.4, ge=0, le=1)
    """How far a row's weight in the loss makes up for its chance to be picked. 0: not at all; 1: fully."""


PlainSamplerConfig = Annotated[
    FifoConfig | NewestConfig | UniformConfig | PrioritizedConfig,
    Field(discriminator="name"),
    _as_mapping("{name: prioritized, alpha: 1}"),
]
"""The settings of a sampler of one part."""


class StratifiedConfig(Conditional):
    """As many rollout groups from each class of groups, by chance within it. The other classes give what one
    lacks."""

    name: Literal["stratified"] = "stratified"
    by: Literal["taskset", "difficulty", "length"]
    """What makes a class: the taskset; the share of the group's attempts that did not solve the task
    (processors.group.solved_reward); or the mean length of its responses in tokens."""
    edges: tuple[float, ...] | None = Field(None, min_length=1, max_length=100)
    """Where the next class begins. None: 0.25, 0.5 and 0.75 of difficulty, and 32, 128, 512, 2048 and 8192
    tokens, as in drop_view."""

    @model_validator(mode="after")
    def edges_divide(self) -> Self:
        if self.edges is not None and self.by == "taskset":
            raise ValueError("tasksets are classes by themselves: leave out edges")
        if self.edges is not None and any(low >= high for low, high in pairwise(self.edges)):
            raise ValueError("edges ascend, as in [0.25, 0.5, 0.75]")
        return self


class PartConfig(Settings):
    """A part of the mix. A group belongs to the first part whose conditions it meets."""

    share: float = Field(1.0, ge=1e-6, le=1e6)
    """The part's share of trainer.batch_size, relative to the shares of the other parts."""
    rows: Literal["live", "replayed"] | None = None
    """live: groups that no committed batch has used; replayed: used ones, which max_uses above 1 leaves to
    be drawn again. None: both."""
    taskset: Annotated[
        tuple[str, ...], BeforeValidator(_as_list, json_schema_input_type=str | tuple[str, ...])
    ] = ()
    """Only groups of these tasksets. Empty: of all."""
    sampler: PlainSamplerConfig = FifoConfig()
    """How groups of the part are picked: fifo, newest, uniform or prioritized. Its where is one more
    condition of the part."""


class MixedConfig(Settings):
    """Parts of the rollout groups, each with a share of every batch and a sampler of its own."""

    name: Literal["mix"] = "mix"
    parts: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,50}$")], PartConfig] = Field(
        min_length=1, max_length=100
    )
    """The parts by name, as in {fresh: {share: 3, rows: live}, again: {rows: replayed, sampler: uniform}}.
    The first part whose conditions a group meets has it."""
    experts: dict[str, Annotated[float, Field(ge=1e-6, le=1e6)]] = Field(default_factory=dict)
    """Shares of data sets among algorithm.expert_rows (algorithms mix and chord), as in {books: 3, web: 1}.
    Each is passed over by itself, and one that is not named is not drawn. Empty: all are passed over
    together."""
    fill: bool = True
    """Whether the other parts give what a part is short of, in proportion to their shares. false: the step
    waits for it; if explorers may not run ahead further, it waits for ever. trinity-db status says so."""


class SqlConfig(Settings):
    """The rollout groups that a SELECT of your own offers, by chance in proportion to its weights."""

    name: Literal["sql"] = "sql"
    query: str = Field(min_length=1, max_length=100_000)
    """The SELECT, or the path of a file with the ending .sql that holds it. It yields id and weight, which
    is 0 or a number from 1e-100 to 1e100, and reads `drawable`, the groups that may be drawn. Others that it
    yields are left out. It may name %(run_id)s, %(step)s, %(size)s and %(version)s; write %% for a percent
    sign. It runs with the trainer's login and reads only."""
    seconds: float = Field(5.0, gt=0, le=600)
    """How long it may take, in seconds; more ends the trainer with an error."""
    beta: float = Field(0.0, ge=0, le=1)
    """How far a row's weight in the loss makes up for its chance to be picked. 0: not at all; 1: fully."""


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
"""The settings of one sampler. `name` says which one."""


class LoraConfig(Settings):
    """Train small matrices beside the frozen weights (LoRA). Only they have gradients and optimizer state.
    trainer.publish says whether a version is these matrices alone or a whole model."""

    rank: int = Field(16, ge=1, le=65_536)
    """Rank of the two matrices of a layer (r in peft)."""
    alpha: int = Field(32, ge=1)
    """The product of the two is multiplied by alpha / rank (lora_alpha in peft)."""
    targets: Annotated[
        tuple[str, ...], BeforeValidator(_as_list, json_schema_input_type=str | tuple[str, ...])
    ] = Field(("all-linear",), min_length=1)
    """The linear layers that get an adapter (target_modules in peft), by the ends of their names, such as
    [q_proj, v_proj]. all-linear: all except the output embedding, which never gets one, and those that a
    kernel reads itself (out_proj of Mamba). In mixtures of experts as peft has it: experts and router get one
    where it knows how transformers has fused them, as for Mixtral, Qwen and DeepSeek."""


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
    """Steps after which the run ends. An online run needs it; an offline run ends sooner if no row has uses
    left."""
    epochs: Annotated[float, Change.DATED] = Field(1.0, gt=0, le=1_000_000)
    """How often an offline run uses each row, pair or adopted group. With 1.5 it ends after half of the steps
    of its second pass, rounded up."""
    batch_size: Annotated[int, Change.DATED] = Field(32, ge=1, le=100_000)
    """Size of a step: rollout groups (grpo), rows (sft) or pairs (dpo)."""
    updates_per_batch: Annotated[int, Change.DATED] = Field(1, ge=1, le=1000)
    """How often a step goes over its batch, with an update of the weights each time (TRL num_iterations, verl
    ppo_epochs, OpenRLHF max_epochs). Advantages, and the policy that ratios are clipped around, stay those of
    the start of the step. Above 1 a step keeps a copy of weights and optimizer state in main memory."""
    minibatches: Annotated[int, Change.DATED] = Field(1, ge=1, le=100_000)
    """Parts of about the same number of rows or pairs into which each time over the batch is divided, with an
    update for each part (PPO's num_mini_batches). Above 1 the same copy is kept."""
    gradient_checkpointing: Annotated[bool | Literal["auto"], Change.PER_PROCESS] = "auto"
    """Compute each layer's inner values again in the backward pass: less memory, about a third more time.
    auto: only those of rows whose inner values do not fit into half of the memory that is free when the
    trainer starts. May change during a run."""
    compile: Annotated[bool, Change.PER_PROCESS] = False
    """Let torch.compile fuse what each layer computes outside of its attention: after a minute or more at the
    start, less time and memory on a GPU. Results differ by rounding. May change during a run."""
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
    ranks: Annotated[int | None, Change.PER_PROCESS] = Field(None, ge=1, le=1024)
    """Processes of this machine that make each step together, each on a GPU of its own if there are any.
    None: one for each GPU that the trainer sees, and one without a GPU. torchrun, for several machines, says
    it by its own options. Results do not depend on it. May change during a run."""
    sharding: Annotated[Literal["none", "full"], Change.PER_PROCESS] = "none"
    """How several ranks share the model. none: each has a copy (as DDP). full: each has a part of weights,
    gradients and optimizer (FSDP2); a rank that is alone has all. Results and checkpoints do not depend on
    it. May change during a run."""
    sum_gradients: Annotated[Literal["step", "micro_batch"], Change.PER_PROCESS] = "step"
    """With sharding: full, how often ranks sum their gradients. step: once, and until then each rank holds
    gradients of all weights, 4 bytes a parameter. micro_batch: after each, which takes more time and less
    memory. Results do not depend on it. May change during a run."""
    offload: Annotated[bool, Change.PER_PROCESS] = False
    """With sharding: full, keep each rank's part of weights, gradients and optimizer in the memory of the
    CPU, and take the optimizer's step there. Layers are copied to the GPU when they are computed: far less of
    its memory, more time. May change during a run."""
    learning_rate: Annotated[float, Change.DATED] = Field(1e-5, gt=0, le=100)
    """Peak learning rate."""
    value_learning_rate: Annotated[float | None, Change.DATED] = Field(None, gt=0, le=100)
    """Peak learning rate of the value head (critic.optim.lr in verl). It follows the same schedule. None:
    learning_rate."""
    optimizer: Annotated[OptimizerConfig, Kept("checkpoints hold its state", once_trained=True)] = AdamW()
    """How weights follow gradients: adamw, adamw_8bit, adafactor, sgd or muon, by name or with options; or
    path/to/file.py:Class of your own. Options such as beta1 may change in a run, the optimizer may not."""
    weight_decay: Annotated[float, Change.DATED] = Field(0.0, ge=0)
    """Each update takes this share of the weights off, times the learning rate. Norms, biases and other
    parameters of one dimension keep theirs. With sgd it is added to the gradient."""
    router_aux_loss_coef: Annotated[float | None, Change.DATED] = Field(None, ge=0, le=1)
    """Weight of a loss that balances the load of experts in a mixture (moe_aux_loss_coeff in Megatron). 0:
    none. None: what the model's config.json has under this name if output_router_logits is true there, as in
    transformers, else none. With it each update has one more pass, without gradient."""
    replay_routing: Annotated[bool, Change.DATED] = True
    """Whether rows with recorded choices of experts (explorer.record_routing) train with these experts, as R3
    does. false: the trainer's routers choose, and `sampling/routing_differs` says how often they choose other
    experts than the engine."""
    max_grad_norm: Annotated[float, Change.DATED] = Field(1.0, gt=0)
    """A gradient with a larger norm is scaled down to this norm."""
    warmup_steps: Annotated[int, Change.DATED] = Field(0, ge=0)
    """Steps over which the learning rate rises from zero."""
    schedule: Annotated[Literal["constant", "linear", "cosine"], Change.DATED] = "constant"
    """The learning rate after the warm-up; linear and cosine fall to zero at the last step."""
    publish_every: Annotated[int | None, Change.DATED] = Field(None, ge=1)
    """Steps between published policy versions. The last step always publishes. None: every step in an online
    run, every 100 steps in an offline run."""
    checkpoint_every: Annotated[Literal["auto"] | Annotated[int, Field(ge=1)], Change.PER_PROCESS] = "auto"
    """When a version gets a checkpoint, from which the trainer resumes after a crash. A crash repeats the
    steps after the latest checkpoint and withdraws their versions. auto: as often as keeps the time that
    checkpoints take below 5 % of the wall time, and at most every 10 minutes unless one takes over 30 s. A
    number: after so many steps, also if the trainer has to wait for the previous checkpoint. The last step
    and a stop always write one. May change during a run."""
    publish_dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], Change.DATED] = "auto"
    """Number format of the weights of a policy version. auto: what the engines of all living explorers
    compute in if that is the same 16 bits, else float32. bfloat16 and float16: half the size; the trainer
    keeps its own weights in float32, and rounds by a fixed threshold per weight, so that each update reaches
    explorers (docs/guides/precision.md)."""
    publish: Annotated[Literal["adapter", "merged"] | None, Change.PER_PROCESS] = None
    """With lora, what a policy version has: adapter, the trained matrices alone, in float32, a few MB; or
    merged, the whole model with the adapter in it, in publish_dtype. None: adapter if explorer.engine is
    transformers or vllm, which load adapters, and no reward model is trained, else merged. May change during
    a run."""
    keep_checkpoints: Annotated[int, Change.PER_PROCESS] = Field(3, ge=2)
    """Number of latest checkpoints kept on disk, with the weights of their versions, and of latest versions.
    At least two, because an explorer may still read the one before. Older versions in 16 bits stay as deltas
    (keep_deltas). May change during a run."""
    keep_every: Annotated[int | None, Change.PER_PROCESS] = Field(None, ge=1)
    """The weights of versions whose step is a multiple of this stay on disk, beside the latest, whole and
    whatever keep_deltas allows. A multiple of publish_every. None: no others. May change during a run."""
    keep_best: Annotated[str | None, Change.PER_PROCESS] = Field(None, min_length=1, pattern="^-?[^-]")
    """A metric; the weights of its best version stay on disk too, whole: that with its highest value, such as
    eval/TASKSET/mean@4, or with its lowest, such as -eval/loss. May change during a run."""
    keep_deltas: Annotated[float, Change.PER_PROCESS] = Field(0.25, ge=0, le=1)
    """Versions in 16 bits that are kept by none of the rules above stay as deltas, a few percent of a version
    each, while they take at most this share of the disk space that is free or theirs. Then the oldest go. 0:
    none stay, the same as versions in float32. May change during a run."""
    max_length: Annotated[int | None, Kept("imported rows have their tokens by it")] = Field(None, ge=2)
    """Longest imported sequence in tokens, prompt and response together. Longer ones are cut at the end.
    None: the model's context."""
    eval_every: Annotated[int | None, Change.DATED] = Field(None, ge=1)
    """Steps between evaluations on held-out rows (offline runs). None: only before the first step and at the
    end."""
    checkpoints: Annotated[Path | None, Change.PER_PROCESS] = None
    """Folder for checkpoints; the run makes a folder of its name there. May change during a run, and then
    holds for later checkpoints. None: `checkpoints` in TRINITY_DB_HOME."""

    weights: Annotated[str | None, Change.PER_PROCESS] = Field(None, min_length=1, max_length=1000)
    """Object store to which each version is uploaded too, before explorers hear of it, such as
    s3://bucket/prefix (also gs://, az://, file:///folder). Explorers that do not see the folder of
    checkpoints fetch it from there. Checkpoints are uploaded beside the next steps, one at a time: see
    checkpoint_every for how often. A trainer on another machine goes on from the newest one there.
    Credentials come from the environment. May change during a run. None: all machines see the folder."""

    broadcast: Annotated[str | None, Change.PER_PROCESS] = Field(None, min_length=1, max_length=300)
    """Address of the trainer's machine, such as 10.0.0.1 or 10.0.0.1:29400, where it sends each version to
    all explorers at once. Those that miss one use its files. May change during a run. None: all do."""

    @field_validator("weights", mode="before")  # other mistakes repeat the value
    @classmethod
    def the_object_store_has_an_address(cls, weights: Any) -> Any:
        if isinstance(weights, str):
            bucket.check(weights)
        return weights

    @property
    def updates(self) -> int:
        """The most updates that one batch leads to."""
        return self.updates_per_batch * self.minibatches

    @model_validator(mode="after")
    def parts_are_offloaded(self) -> Self:
        if self.offload and self.sharding != "full":
            raise ValueError("offload keeps the parts of sharded weights on the CPU: set sharding: full too")
        return self

    @model_validator(mode="after")
    def the_optimizer_has_whole_matrices(self) -> Self:
        if self.sharding == "full" and self.optimizer.name in NEEDS_WHOLE:
            raise ValueError(
                f"optimizer: {self.optimizer.name} needs whole matrices, and sharding: full gives each "
                "process a part of them; take adamw or sgd, or sharding: none"
            )
        return self

    @model_validator(mode="after")
    def only_an_adapter_is_published_as_one(self) -> Self:
        if self.publish is not None and self.lora is None:
            raise ValueError(
                f"publish: {self.publish} says how an adapter is published, and the whole model is trained; "
                "leave it out, or set lora too"
            )
        return self

    @model_validator(mode="after")
    def an_adapter_has_no_second_model(self) -> Self:
        if self.lora is not None and self.reference.name == "synchronised":
            raise ValueError(
                "lora compares with the same model without its adapter, and has no second model for "
                "reference: synchronised; leave out one of them"
            )
        return self
