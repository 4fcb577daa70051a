"""Settings of the explorer."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from trinity_db.config.base import Change, Kept, Settings, hint, mistakes
from trinity_db.explorer.engines.settings import EngineConfig, TransformersConfig

MIN_TEMPERATURE = 0.01
"""Lowest sampling temperature: vLLM raises lower ones to it, and logits divided by tiny ones overflow."""


class EnvironmentConfig(Settings):
    """An environment that the policy acts in, instead of a workflow. The other keys are its options."""

    model_config = ConfigDict(extra="allow")

    name: str
    """path/to/file.py:Class. A class with a method `step` is a text environment in the style of Gymnasium;
    otherwise its public methods are offered to the policy as tools."""
    turns: int = Field(20, ge=1, le=100_000)
    """Maximum number of responses in an attempt. The attempt then ends with the reward it has earned so
    far."""
    steps: bool = False
    """Whether each action in a text environment is a rollout step: a row with its own reward, whose prompt is
    only the latest observation. Otherwise the attempt is one sequence. Needed for gigpo and
    multi_step_grpo."""
    call_seconds: Annotated[float | None, Change.DATED] = Field(300.0, gt=0, le=1e9)
    """Timeout of one call of the environment in seconds, including its start. None: no limit."""
    python: Annotated[str | None, Change.PER_PROCESS] = None
    """Python interpreter (3.11 or newer) to run the environment in separate processes, for packages that
    conflict with ours. A process is killed when its call times out. None: the environment runs in threads of
    the explorer."""
    processes: Annotated[int, Change.PER_PROCESS] = Field(16, ge=1, le=100_000)
    """Maximum number of processes, one for each attempt in progress; further attempts wait."""

    @property
    def options(self) -> dict[str, Any]:
        """Options passed to the environment's class."""
        return self.model_extra or {}


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class ShuffledConfig(Settings):
    """Each task once per pass, reshuffled for every pass."""

    name: Literal["shuffled"] = "shuffled"


class SequentialConfig(Settings):
    """Each task once per pass, in import order."""

    name: Literal["sequential"] = "sequential"


class EasyToHardConfig(Settings):
    """Each task once per pass, in ascending order of its number under `level`.

    `trinity-db import --map level=difficulty` takes the number from another key. Tasks without one come last.
    """

    name: Literal["easy_to_hard"] = "easy_to_hard"


class DifficultyConfig(Settings):
    """Tasks with about the target solve rate, each at most once in a shuffled pass.

    The solve rate of a task is estimated by the Beta posterior in task_stat. A task with an uncertain
    estimate is taken in every pass; a task that is certainly easier or harder is taken less often, down to
    one pass in 20.
    """

    name: Literal["difficulty"] = "difficulty"
    target: float = Field(0.5, ge=0, le=1)
    """Target share of a task's rollouts that solve it, as defined by processors.group.solved_reward. Rewards
    within a group vary most at 0.5."""


class SelectConfig(Settings):
    """Tasks returned by a custom SELECT, in its order: one task id per row, and one group for each row."""

    name: Literal["select"] = "select"
    query: str = Field(min_length=1)
    """The SELECT, or the path of a .sql file that contains it. It may use %(run_id)s, %(taskset_ids)s and
    %(limit)s, the number of groups to start; escape a percent sign as %%. It runs read-only with the
    explorer's login. If it returns no rows, no group starts."""
    seconds: float = Field(5.0, gt=0, le=600)
    """Timeout of the query in seconds; exceeding it ends the explorer with an error. Other explorers of the
    run wait for the query."""


def _as_mapping(value: Any) -> Any:
    if isinstance(value, dict) and "name" not in value:
        raise ValueError("add a name, such as {name: difficulty, target: 0.5}")
    return {"name": value} if isinstance(value, str) else value


TasksConfig = Annotated[
    ShuffledConfig | SequentialConfig | EasyToHardConfig | DifficultyConfig | SelectConfig,
    Field(discriminator="name"),
    BeforeValidator(_as_mapping),
]
"""Order in which tasks are taken, selected by `name`."""


SERVED = "served"
"""The workflow of a run whose attempts are made by agents that other people start."""

EXTERNAL = "external"
"""The workflow of a run whose rollouts a program of the user's samples and writes."""


class CommandConfig(Settings):
    """A program that runs once per attempt, and calls the policy as an OpenAI or Anthropic server."""

    command: str
    """The program and its arguments, such as "python my_agent.py" or "claude -p {prompt} --model policy". A
    field {NAME} is a column of the task, and {start} the explorer's working directory. The program gets
    OPENAI_BASE_URL, OPENAI_API_KEY and, unless there is a check, TRINITY_TASK in its environment. A line
    "reward: 0.5" that it prints is the reward."""
    folder: Literal["shared", "fresh"] = "shared"
    """Working directory. shared: the explorer's, with its HOME. fresh: a new folder and a new HOME for each
    attempt, which are removed at its end. The task's files, texts by path, are written into the folder."""
    check: str | None = None
    """Command that judges the attempt in the same folder when the program has ended, such as "python
    {start}/check.py". A line "reward: 0.5" that it prints is the reward; otherwise it is 1 if the check exits
    with 0, and 0 if it exits with 1."""


def _named_or_command(value: Any) -> Any:
    if isinstance(value, dict):
        for key in value:
            if key not in CommandConfig.model_fields:
                known = hint(str(key), CommandConfig.model_fields, "known keys")
                raise ValueError(f"unknown key '{key!s:.100}'; {known}")
        if not isinstance(value.get("command"), str):
            raise ValueError('name the program, such as {command: "python my_agent.py"}')
        try:
            return CommandConfig.model_validate(value)
        except ValidationError as error:
            raise ValueError("; ".join(mistakes(CommandConfig, error))) from None
    elif not isinstance(value, str | CommandConfig):
        raise ValueError(
            "must be single_turn, served, external, path/to/file.py:name, or a program as {command: ...}"
        )
    return value


STRICT = ("temperature", "tool_choice", "response_format", "hosted_tools", "others")
"""Kinds of options that can be refused."""


def _requests_by_name(value: Any) -> Any:
    if value == "strict":
        return dict.fromkeys(STRICT, "strict")
    if isinstance(value, str):
        raise ValueError("must be strict, or the kinds of options as {temperature: strict, ...}")
    return value


class RequestsConfig(Settings):
    """How requests of programs are answered: what happens to options that cannot be followed, by their kind,
    and which calls are trained. strict refuses such an option. Otherwise it is replaced and reported once,
    and its value is stored with the call."""

    temperature: Literal["run", "strict"] = "run"
    """A temperature below 0.01, whose samples cannot be trained on. run: sample at explorer.temperature."""
    tool_choice: Literal["auto", "strict"] = "auto"
    """A choice that forces a tool call, which would change the sampled distribution. auto: the policy
    decides."""
    response_format: Literal["text", "strict"] = "text"
    """A format that constrains the answer, or a tool's arguments. text: the policy is not constrained."""
    hosted_tools: Literal["leave_out", "strict"] = "leave_out"
    """Tools that are not functions with a schema, such as a provider's web search."""
    others: Literal["leave_out", "strict"] = "leave_out"
    """Other options that the endpoint, or the model's chat template, does not have."""
    models: Literal["any"] | list[str] = "any"
    """Model names that a request may have. Others are refused with status 404."""
    train: Literal["all"] | Annotated[list[str], Field(min_length=1)] = "all"
    """Model names whose calls are trained, such as [policy]. Calls with other names, such as an agent's small
    model for titles, are answered by the policy too, but left out of training."""
    repeats: Literal["same", "sample"] = "same"
    """A request that equals an earlier one of the attempt, whose answer nothing continues. same: it is a
    repetition and gets the same answer. sample: it gets a new answer, unless a header says that it is a
    repetition."""


DEFAULT_REQUESTS = RequestsConfig()


class ExplorerConfig(Settings):
    """How rollouts are generated."""

    workflow: Annotated[
        str | CommandConfig,
        BeforeValidator(_named_or_command),
        Kept("it defines what a rollout of the run is"),
    ] = "single_turn"
    """How a task is attempted: single_turn (one prompt, one response), a custom coroutine as
    path/to/file.py:name, a program as {command: "python my_agent.py"}, or served: agents that other people
    start make the attempts, over HTTP, and `trinity-db serve` is the explorer. external: a program of yours
    samples and writes the rollouts (docs/guides/python.md)."""
    environment: Annotated[
        EnvironmentConfig | None, BeforeValidator(_named), Kept("it defines what a rollout of the run is")
    ] = None
    """Environment that the policy acts in, instead of a workflow: a custom class as path/to/file.py:Class."""
    engine: Annotated[EngineConfig, Change.PER_PROCESS] = TransformersConfig()
    """Engine that samples responses: transformers, in the explorer's process; vllm, a server that the
    explorer starts; endpoint, existing servers; or a custom class as path/to/file.py:Class. May change during
    a run."""
    group_size: Annotated[int, Change.DATED] = Field(8, ge=1, le=10_000)
    """Rollouts of one task that are compared with each other. remax adds one more, at temperature 0."""
    spare: Annotated[int, Change.DATED] = Field(0, ge=0, le=1000)
    """Extra attempts per task beyond group_size. The first group_size to finish form the group; the others
    are cancelled and stored as refused. Groups then do not wait for their slowest attempt, but short
    responses are favoured."""
    concurrency: Annotated[int, Change.DATED] = Field(256, ge=1, le=1_000_000)
    """Maximum number of attempts in progress per explorer. Higher values use the hardware better, but more
    attempts are sampled by versions that are no longer the newest."""
    tasks: Annotated[TasksConfig, Change.DATED] = ShuffledConfig()
    """Order of tasks: shuffled, sequential, easy_to_hard, difficulty or select, by name or with options. All
    but select iterate over the tasks in passes. Tasks imported during a pass are added at its end; with
    easy_to_hard, at their level or in the next pass."""
    backlog: Annotated[int | None, Change.DATED] = Field(10_000, ge=1, le=2**31 - 1)
    """Maximum number of rollout groups that are waiting for the trainer or being explored, in a run without a
    staleness limit (max_staleness: null). It keeps a slow or stopped trainer from filling the disk: a group
    of 8 responses with 1000 tokens takes about 200 kB. null: no limit."""
    temperature: Annotated[float, Kept("the stored log-probabilities are at this temperature")] = Field(
        1.0, ge=MIN_TEMPERATURE, le=1000
    )
    """Default sampling temperature of a call. The trainer divides logits by it too, so that its
    log-probabilities are comparable with the sampled ones. For a greedy rollout in each group, use remax."""
    max_new_tokens: Annotated[int, Change.DATED] = Field(256, ge=1, le=10_000_000)
    """Maximum length of a response in tokens."""
    attempt_seconds: Annotated[float | None, Change.DATED] = Field(None, gt=0, le=1e9)
    """Timeout of an attempt in seconds. An attempt that exceeds it is a failed rollout. None: no limit."""
    retries: Annotated[int, Change.DATED] = Field(0, ge=0, le=1000)
    """Number of retries of an attempt that raised an error or timed out, before it is a failed rollout."""
    requests: Annotated[RequestsConfig, BeforeValidator(_requests_by_name), Change.DATED] = DEFAULT_REQUESTS
    """How requests of programs are answered, by these keys. strict: each option that cannot be followed is
    refused with status 400."""
    record_routing: Annotated[bool, Change.PER_PROCESS] = False
    """For mixture-of-experts models: store which experts the engine's routers chose for each token, so that
    the trainer can replay them (trainer.replay_routing). It takes one byte per token, layer and chosen
    expert, two bytes with more than 256 experts. Engines: transformers; vllm on a GPU; endpoint with vLLM
    servers started with --enable-return-routed-experts. May change during a run."""

    @model_validator(mode="after")
    def the_engine_records_routing(self) -> Self:
        if self.record_routing and (problem := self.engine.routing_problem) is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def an_environment_is_the_workflow(self) -> Self:
        if self.environment is not None and self.workflow != "single_turn":
            raise ValueError("an environment replaces the workflow: set only one of the two")
        return self

    @property
    def has_own_reward(self) -> bool:
        """Whether a workflow, a program or an environment may return the attempt's reward."""
        if isinstance(self.workflow, CommandConfig) or self.environment is not None:
            return True
        return ".py:" in self.workflow or self.is_served or self.is_external

    @property
    def is_served(self) -> bool:
        """Whether agents that other people start make the attempts."""
        return self.workflow == SERVED

    @property
    def is_external(self) -> bool:
        """Whether a program outside of trinity-db explores."""
        return self.workflow == EXTERNAL


class EvaluationConfig(Settings):
    """Which versions are evaluated, and on which tasks."""

    taskset: list[str] = Field(min_length=1)
    """Imported tasksets to evaluate on. Every task of them is attempted."""
    every: int = Field(10, ge=1)
    """Number of versions between two evaluations. Version 0 and the last version are always evaluated."""
    samples: int = Field(4, ge=1, le=10_000)
    """Attempts per task."""
    temperature: float | None = Field(None, ge=0, le=1000)
    """Sampling temperature; 0 always takes the likeliest token. None: explorer.temperature."""
    max_new_tokens: int | None = Field(None, ge=1, le=10_000_000)
    """Maximum length of a response in tokens. None: explorer.max_new_tokens."""

    @field_validator("taskset", mode="before")
    @classmethod
    def one_taskset_needs_no_list(cls, taskset: Any) -> Any:
        return [taskset] if isinstance(taskset, str) else taskset
