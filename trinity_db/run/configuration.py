"""The configuration of a run: the sections of all roles in one file, and rules across sections."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, ValidationInfo, model_validator

from trinity_db.config.base import RUN_NAME, STORED, Change, Kept, Settings, hint, home, marked, validate
from trinity_db.config.shared import ModelConfig
from trinity_db.explorer.config import EXTERNAL, SERVED, EvaluationConfig, ExplorerConfig
from trinity_db.insight.sinks.config import MetricsConfig
from trinity_db.processors.config import PeopleConfig, ProcessorsConfig
from trinity_db.ray.config import RayConfig
from trinity_db.trainer.config import AlgorithmConfig, FifoConfig, MixedConfig, SamplerConfig, TrainerConfig
from trinity_db.trainer.recipes.recipes import (
    ExternalConfig,
    LabelsConfig,
    MixConfig,
    PolicyGradientConfig,
    RewardModelConfig,
)


def _checked_weights(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, dict) or not value:
        raise ValueError("name a taskset, or several with weights, for example {gsm8k: 3, math: 1}")
    for name, weight in value.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 1e-6 <= weight <= 1e6:
            raise ValueError(
                f"the weight of {name!s:.100} is {weight!r:.100}; take a number from 0.000001 to 1000000"
            )
    return value


class RunConfig(Settings):
    """One training effort. Every role reads the same file, and the store keeps its content with the run."""

    name: Annotated[str, Kept("with another name it is another run")] = Field(pattern=RUN_NAME)
    """Name of the run, unique in the store; also the name of its checkpoint folder."""
    seed: Annotated[int, Kept("all random numbers of the run follow from it")] = Field(0, ge=0, lt=2**62)
    """Seed of sampling, shuffling and random weights. Below 2^62, because use counts are added to it in a
    bigint column."""
    model: Annotated[ModelConfig, Kept("policy version 0 and every prompt were made with it")]
    """The starting model."""
    taskset: Annotated[
        str | dict[str, float] | None,
        Kept("its rewards are compared over these tasks"),
        BeforeValidator(_checked_weights, json_schema_input_type=str | dict[str, float] | None),
    ] = None
    """Imported tasks to explore (online): the name of a taskset, or several with weights, for example {gsm8k:
    3, math: 1} for three groups of gsm8k in four. The store counts the groups, so a restart does not change
    the shares."""
    data: Annotated[list[str], Kept("the run adopted its rows from these")] = Field(default_factory=list)
    """Names of imported data sets, and of other runs of the store, whose rows are adopted: to train on
    (offline), or to mix with rollout groups (mix). Without a taskset, an algorithm that learns from rollout
    groups adopts whole groups."""
    holdout: Annotated[float, Kept("each imported row records whether it is held out")] = Field(
        0.0, ge=0, lt=1
    )
    """Share of the imported rows held out for evaluation and never trained on. All answers to a prompt stay
    together."""
    max_staleness: Annotated[int | None, Change.DATED] = Field(1, ge=0, le=1_000_000)
    """Greatest number of versions by which a rollout may lag behind the trainer's weights when it is drawn. A
    version that is still being written counts. 0: exploring and training alternate; 1 or more: they overlap;
    null: no limit."""
    requires_reward: Annotated[str | None, Change.DATED] = Field(None, min_length=1)
    """A source of rewards, for example human (online runs). A group is ready only when this source has judged
    each remaining member. Waiting groups count towards the pace, and they age: see max_staleness."""
    people: Annotated[PeopleConfig, Change.DATED] = PeopleConfig()
    """Questions that trinity-db label asks people, and how long groups wait for the answers."""
    algorithm: Annotated[
        AlgorithmConfig,
        Kept("advantages and checkpoints are made by it; model: {run: NAME} starts another run from them"),
    ]
    """A recipe, by name or with options and parts of your choice. Online: grpo, dr_grpo, dapo, rloo,
    reinforce, reinforce_plus_plus, reinforce_plus_plus_baseline, ppo, a2c, gspo, cispo, sapo, opmd, asymre,
    sppo, topr, rec, remax, multi_step_grpo, gigpo, on_policy_distillation, raft, and policy_gradient for your
    own; with imported rows in addition mix and chord; offline: sft, dft, dpo, orpo, simpo, cpo, kto,
    reward_model, and, on groups of other runs, all online ones except mix and chord. external: a program of
    yours trains (docs/guides/python.md)."""
    sampler: Annotated[SamplerConfig, Change.DATED] = FifoConfig()
    """Which ready rollout groups a step takes (online runs): fifo, newest, uniform, prioritized, stratified,
    mix or sql, by name or with options."""
    max_uses: Annotated[int, Kept("each commit decided by it whether rows are used up")] = Field(
        1, ge=1, le=1_000_000
    )
    """Number of steps that may use a rollout group (online runs). With more than 1, used groups can be drawn
    again. A group counts towards the pace until it is used up or expires, so max_staleness limits how many
    are kept."""
    explorer: ExplorerConfig = ExplorerConfig()
    """How rollouts are produced."""
    explorers: Annotated[int, Change.PER_PROCESS] = Field(1, ge=1, le=1000)
    """Number of explorers that `trinity-db run` starts (online runs). Each has its own engine and
    `explorer.concurrency` attempts; explorers on one machine share its cores. With --ray, as many start as
    the cluster has room for. May change during a run. On another machine start more with `trinity-db
    explore`."""
    evaluation: Annotated[EvaluationConfig | None, Change.DATED] = None
    """Tasks that measure how good versions are, never trained on (online runs), for example {taskset:
    gsm8k-test, every: 10}. Explorers attempt them in addition to their work for the trainer."""
    processors: ProcessorsConfig = ProcessorsConfig()
    """Processing of rollouts before training: scores, rewards, filters."""
    trainer: TrainerConfig = TrainerConfig()
    """How the policy is improved."""
    metrics: Annotated[MetricsConfig, Change.PER_PROCESS] = MetricsConfig()
    """Further destinations of metrics; the store always keeps them. May change during a run."""
    ray: Annotated[RayConfig, Change.PER_PROCESS] = RayConfig()
    """Resources that the roles request from a Ray cluster, if `trinity-db run` has --ray. May change during a
    run."""

    @model_validator(mode="before")
    @classmethod
    def attempts_with_rewards_need_no_score(cls, content: Any) -> Any:
        """Leave out the default step of `score` if each attempt brings its reward."""
        if not isinstance(content, dict):
            return content
        explorer, processors = content.get("explorer"), content.get("processors", {})
        workflow = explorer.get("workflow") if isinstance(explorer, dict) else None
        has_check = isinstance(workflow, dict) and workflow.get("check") is not None
        brings_rewards = has_check or workflow in (SERVED, EXTERNAL)
        if brings_rewards and isinstance(processors, dict) and "score" not in processors:
            return {**content, "processors": {**processors, "score": []}}
        return content

    @model_validator(mode="after")
    def one_endpoint_serves_all_agents(self) -> Self:
        if self.explorer.is_served and self.explorers != 1:
            raise ValueError("explorer.workflow: served has one endpoint for all agents: leave out explorers")
        return self

    @model_validator(mode="after")
    def online_or_offline(self) -> Self:
        if self.is_online:
            if self.taskset is None:
                raise ValueError(
                    f"algorithm {self.algorithm.name} explores: name its tasks under taskset, or under data "
                    "a run whose rollouts it learns from"
                    if self._may_adopt_groups
                    else f"algorithm {self.algorithm.name} explores: name its tasks under taskset"
                )
            if self.trainer.steps is None:
                raise ValueError(f"algorithm {self.algorithm.name} trains until trainer.steps: set it")
            if isinstance(self.algorithm, MixConfig) and not self.data:
                raise ValueError(
                    f"algorithm {self.algorithm.name} takes imported rows in addition to rollout groups: "
                    "name them under data"
                )
        elif not self.data:
            raise ValueError(f"algorithm {self.algorithm.name} trains on imported rows: name them under data")
        return self

    @model_validator(mode="after")
    def every_key_is_read(self, info: ValidationInfo) -> Self:
        if info.context == STORED:  # it may have keys that were ignored when it was written
            return self
        dumped = self.model_dump(mode="json")
        trained_on = (
            "rollouts, until trainer.steps" if self.is_online else "imported rows, trainer.epochs times"
        )
        for key in self._unread:
            if _at_defaults(dumped, [key]) != dumped:
                if key in _OF_BUILT_IN_TRAINER:
                    raise ValueError(f"algorithm external trains in a program of yours: leave out {key}")
                if key in _OF_BUILT_IN_EXPLORER and self.is_online:
                    raise ValueError(
                        f"explorer.workflow: external explores in a program of yours: leave out {key}"
                    )
                raise ValueError(f"algorithm {self.algorithm.name} trains on {trained_on}: leave out {key}")
        return self

    @model_validator(mode="after")
    def one_limit_holds_explorers_back(self, info: ValidationInfo) -> Self:
        is_set = self.explorer.backlog != ExplorerConfig().backlog
        if info.context != STORED and is_set and self.max_staleness is not None:
            raise ValueError(
                f"explorer.backlog limits a run without a staleness limit; this one has max_staleness "
                f"{self.max_staleness}: leave out explorer.backlog, or set max_staleness: null"
            )
        return self

    @model_validator(mode="after")
    def only_explored_groups_wait(self) -> Self:
        if self.requires_reward is not None and not self.is_online:
            raise ValueError(
                f"algorithm {self.algorithm.name} trains on imported rows, which do not wait for rewards: "
                "leave out requires_reward"
            )
        if self.people.wait_seconds is not None and self.requires_reward is None:
            raise ValueError(
                "people.wait_seconds limits how long groups wait for requires_reward: set requires_reward "
                "too, or leave out people.wait_seconds"
            )
        return self

    @model_validator(mode="after")
    def only_explored_groups_are_sampled(self) -> Self:
        if self.is_online:
            return self
        passes = f"algorithm {self.algorithm.name} trains on imported rows, in passes over all of them"
        if self.sampler != FifoConfig():
            raise ValueError(f"{passes}: leave out sampler")
        if self.max_uses != 1:
            raise ValueError(f"{passes}: set trainer.epochs in place of max_uses")
        return self

    @model_validator(mode="after")
    def every_part_of_the_sampler_may_have_groups(self) -> Self:
        parts = self.sampler.parts if isinstance(self.sampler, MixedConfig) else {}
        for name, part in parts.items():
            if part.rows == "replayed" and self.max_uses == 1:
                raise ValueError(
                    f"sampler.parts.{name} takes rows that were used before, and max_uses 1 leaves none: "
                    "set max_uses to 2 or more"
                )
            for taskset in part.taskset:
                if taskset not in self.tasksets:
                    known = hint(taskset, self.tasksets, "the run's tasksets")
                    raise ValueError(f"sampler.parts.{name} takes groups of '{taskset}'; {known}")
        return self

    @model_validator(mode="after")
    def data_sets_with_shares_are_drawn(self) -> Self:
        experts = self.sampler.experts if isinstance(self.sampler, MixedConfig) else {}
        if experts and not isinstance(self.algorithm, MixConfig):
            raise ValueError(
                f"sampler.experts has shares of imported rows, and algorithm {self.algorithm.name} takes "
                "none in addition to rollout groups: leave it out, or take mix or chord"
            )
        for name in experts:
            if name not in self.data:
                known = hint(name, self.data, "the run's data sets")
                raise ValueError(f"sampler.experts has a share of '{name}'; {known}")
        return self

    @model_validator(mode="after")
    def rows_can_be_compared(self) -> Self:
        compares_rows = isinstance(self.algorithm, LabelsConfig) and self.algorithm.compares_rows
        if compares_rows and self.trainer.batch_size == 1:
            raise ValueError(
                f"algorithm {self.algorithm.name} compares each row with the others of its step: "
                "set trainer.batch_size to 2 or more"
            )
        return self

    @model_validator(mode="after")
    def groups_are_large_enough(self) -> Self:
        if self.is_online and self.explorer.group_size < self.processors.group.min_size:
            raise ValueError(
                f"explorer.group_size {self.explorer.group_size} is below processors.group.min_size "
                f"{self.processors.group.min_size}: every group would be dropped"
            )
        return self

    @model_validator(mode="after")
    def rows_have_what_is_learned_from(self) -> Self:
        processors, name = self.processors, self.algorithm.name
        distils = isinstance(self.algorithm, PolicyGradientConfig) and self.algorithm.distillation is not None
        if distils and not processors.may_have_teacher:
            raise ValueError(
                f"algorithm {name} learns from a teacher: name one, as in "
                "processors: {score: [{name: teacher, path: models/teacher}]}"
            )
        if processors.has_teacher and not self.is_online:
            raise ValueError(
                f"algorithm {name} trains on imported rows, and no teacher is asked about them: "
                "leave it out of processors.score"
            )
        if self.attempts_need_reward and not self.explorer.has_own_reward:
            raise ValueError(
                f"algorithm {name} learns from rewards, and nothing gives any: name a step under "
                "processors.score, a source under requires_reward, or a workflow or environment of your own"
            )
        return self

    @model_validator(mode="after")
    def recorded_experts_can_be_replayed(self) -> Self:
        if self.explorer.record_routing and self.trainer.compile and self.trainer.replay_routing:
            raise ValueError(
                "explorer.record_routing: torch.compile does not see the choice of experts, so the trainer "
                "could not replay it; leave out trainer.compile, or set trainer.replay_routing: false"
            )
        return self

    @model_validator(mode="after")
    def a_precomputed_reference_has_rows_to_be_asked_about(self) -> Self:
        if self.is_online and self.trainer.reference.name == "precomputed":
            raise ValueError(
                f"trainer.reference: precomputed asks about imported rows, before the first step; algorithm "
                f"{self.algorithm.name} trains on rollouts, which come later: take start"
            )
        return self

    @model_validator(mode="after")
    def the_engine_loads_what_is_published(self) -> Self:
        if self.trainer.publish == "adapter" and self.explorer.engine.loads_adapters is False:
            raise ValueError(
                "trainer.publish: adapter is not loaded into servers that other people run "
                "(explorer.engine: endpoint); take merged"
            )
        if self.trainer.publish == "adapter" and isinstance(self.algorithm, RewardModelConfig):
            raise ValueError("trainer.publish: adapter has no place for a reward model's head; take merged")
        return self

    @property
    def publishes(self) -> str | None:
        """Format of published versions in a run with an adapter: adapter or merged; None without an
        adapter."""
        if self.trainer.lora is None or self.trainer.publish is not None:
            return self.trainer.publish
        if isinstance(self.algorithm, RewardModelConfig):
            return "merged"
        return "adapter" if self.explorer.engine.loads_adapters else "merged"

    @property
    def is_online(self) -> bool:
        """Whether the run explores."""
        return self.algorithm.draws == "groups" and not self.adopts_groups

    @property
    def is_external(self) -> bool:
        """Whether a program outside of trinity-db trains."""
        return isinstance(self.algorithm, ExternalConfig)

    @property
    def waits_for(self) -> str:
        """Work of the run that a program outside of trinity-db does; empty: none."""
        explores = self.is_online and self.explorer.is_external
        return " and ".join(["explores"] * explores + ["trains"] * self.is_external)

    @property
    def attempts_need_reward(self) -> bool:
        """Whether an attempt must bring its reward: the algorithm reads it, and nothing else gives one."""
        algorithm = self.algorithm
        reads = not isinstance(algorithm, PolicyGradientConfig | ExternalConfig) or algorithm.reads_rewards
        return self.is_online and reads and not (self.processors.may_reward or self.requires_reward)

    @property
    def adopts_groups(self) -> bool:
        """Whether the run learns from rollout groups of other runs or of data sets without exploring."""
        return self._may_adopt_groups and self.taskset is None and bool(self.data)

    @property
    def _may_adopt_groups(self) -> bool:
        return self.algorithm.draws == "groups" and not isinstance(self.algorithm, MixConfig)

    @property
    def tasksets(self) -> dict[str, float]:
        """Weights of the tasksets to explore, by name; empty for an offline run."""
        if self.taskset is None or isinstance(self.taskset, dict):
            return self.taskset or {}
        return {self.taskset: 1.0}

    @property
    def checkpoints(self) -> Path:
        """Folder of this run's checkpoints."""
        folder = self.trainer.checkpoints or home() / "checkpoints"
        return folder.expanduser().absolute() / self.name

    @property
    def _unread(self) -> tuple[str, ...]:
        """Keys that this kind of run does not read."""
        of_trainer = _OF_BUILT_IN_TRAINER if self.is_external else ()
        of_explorer = _OF_BUILT_IN_EXPLORER if self.is_online and self.explorer.is_external else ()
        return (*self._unread_rows, *of_trainer, *of_explorer)

    @property
    def _unread_rows(self) -> tuple[str, ...]:
        if self.adopts_groups:
            return ("taskset", "explorers", "evaluation", "holdout", "trainer.eval_every")
        if not self.is_online:
            return ("taskset", "explorers", "evaluation")
        of_passes = ("trainer.epochs", "trainer.eval_every")
        of_rows = ("data", "holdout", "trainer.max_length")
        return of_passes if isinstance(self.algorithm, MixConfig) else (*of_rows, *of_passes)

    def stored(self) -> dict[str, Any]:
        """Return the form of the configuration that the run stores and that joining roles are compared with.

        Keys that each process sets for itself have their defaults in it: location and number of checkpoints,
        memory per step, size and frequency of claims, archiving, and destinations of metrics. So a run can
        continue with other values when a disk or the memory is too small.
        """
        return _at_defaults(self.model_dump(mode="json"), (*PER_PROCESS, *self._unread))

    @classmethod
    def completed(cls, stored: dict[str, Any]) -> dict[str, Any]:
        """Add the defaults of newer keys to a stored configuration; return it unchanged if it is no longer
        valid."""
        try:
            return cls.model_validate(stored, context=STORED).stored()
        except ValidationError:
            return stored

    @classmethod
    def written(cls, stored: dict[str, Any]) -> dict[str, Any]:
        """Return the content of a file for this stored configuration, without keys at their defaults.

        Raises:
            ConfigError: if this version cannot read it.
        """
        content = validate(cls, stored, "The stored configuration", context=STORED).stored()
        content_of_file = {}
        for key, value in content.items():
            default = _default(key)
            if key in ("explorer", "processors", "trainer"):
                value = {name: item for name, item in value.items() if item != default[name]}
                default = {}
            if key == "model":
                value = {name: item for name, item in value.items() if item is not None}
            if value != default:
                content_of_file[key] = value
        return content_of_file


PER_PROCESS = tuple(marked(RunConfig, Change.PER_PROCESS))
"""Keys that each process of a run sets for itself; documented as "May change during a run"."""

_READ_BY_PROGRAM = ("steps", "epochs", "batch_size", "publish_every", "max_length")
_OF_BUILT_IN_TRAINER = tuple(
    f"trainer.{name}" for name in TrainerConfig.model_fields if name not in _READ_BY_PROGRAM
)
"""Keys that a run without our trainer does not read. Its program and its explorers read the others."""

_READ_BY_EXPLORING_PROGRAM = ("workflow", "group_size", "tasks", "backlog", "temperature", "max_new_tokens")
_OF_BUILT_IN_EXPLORER = (
    *(f"explorer.{name}" for name in ExplorerConfig.model_fields if name not in _READ_BY_EXPLORING_PROGRAM),
    *("explorers", "evaluation"),
)
"""Keys that a run without our explorers does not read."""

_DEFAULTS: dict[str, Any] = {
    "taskset": None,
    "data": [],
    "holdout": 0.0,
    "evaluation": None,
    "metrics": MetricsConfig().model_dump(mode="json"),
    "ray": RayConfig().model_dump(mode="json"),
    "explorer": ExplorerConfig().model_dump(mode="json"),
    "explorers": 1,
    "processors": ProcessorsConfig().model_dump(mode="json"),
    "trainer": TrainerConfig().model_dump(mode="json"),
}
"""Values of keys that a file leaves out."""


def _default(key: str) -> Any:
    """Return the default of a top-level key, as a dump has it; None if it has none."""
    if key in _DEFAULTS:
        return _DEFAULTS[key]
    field = RunConfig.model_fields[key]
    default = None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
    return default.model_dump(mode="json") if isinstance(default, BaseModel) else default


def _at_defaults(content: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return a dumped configuration with these keys at their defaults."""
    for key in keys:
        section, _, name = key.rpartition(".")
        if section:
            content = content | {section: content[section] | {name: _DEFAULTS[section][name]}}
        else:
            content = content | {name: _DEFAULTS[name]}
    return content
