"""Settings of the explorer."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from trinity_db.settings import Change, Kept, Settings, hint


class TransformersConfig(Settings):
    """A transformers model in the explorer's process, with continuous batching."""

    name: Literal["transformers"] = "transformers"
    max_tokens: int = Field(65_536, ge=1)
    """Keys and values in memory, in tokens: rows of the batch times the longest of them, prompt and
    max_new_tokens. Further requests wait. 65536 take 1.6 GB for a model of 0.5 B parameters."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of weights, keys and values. auto: bfloat16 on a GPU that computes in it, else float32.
    16 bits take half the memory, and the recorded log-probabilities then differ from the trainer's:
    `sampling/engine_logp_difference` says how far."""


class EndpointConfig(Settings):
    """vLLM or SGLang servers that other people run."""

    name: Literal["endpoint"] = "endpoint"
    urls: list[str] = Field(min_length=1)
    """Addresses of the servers, as http://10.0.0.7:8000. Each request goes to a healthy server with the
    loaded version, to the one with the fewest requests in flight."""
    dialect: Literal["vllm", "sglang"] = "vllm"
    """What the servers are."""
    model: str | None = Field(None, min_length=1)
    """The name under which vLLM serves the model. None: the only one that it serves."""
    key_env: str | None = None
    """Name of the environment variable that holds the servers' key. None: they want none."""
    load_weights: bool = True
    """Whether the explorer loads each new version into the servers, which see the folder of checkpoints
    under the same path; then no other program loads weights there. False: other people load them, and label
    them with the number of the version. A server is used while it has the version that the explorer wants."""
    load_seconds: float = Field(600.0, gt=0, le=1e6)
    """Longest time in seconds that a server may take to load a version."""
    tolerance: float = Field(0.3, gt=0, le=100)
    """Nats by which a server's log-probabilities of a checkpoint's canary may differ from the trainer's, in
    the mean over tokens. If they differ by more, the server does not count as loaded. In bfloat16 they differ
    by 0.05. For servers that compute in float32, take 0.005."""
    patience_seconds: float = Field(60.0, gt=0, le=1e6)
    """How long in seconds requests wait while no server is usable. Then the explorer ends, and says why."""

    @field_validator("key_env")
    @classmethod
    def is_a_name(cls, key_env: str | None) -> str | None:
        if key_env is not None and not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", key_env):
            # The message does not repeat it: it may be the key.
            raise ValueError("it names an environment variable, as FLEET_KEY; the key itself stands there")
        return key_env

    @field_validator("urls")
    @classmethod
    def are_addresses(cls, urls: list[str]) -> list[str]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
                raise ValueError("an address has the form http://host:8000")
            if parts.username or parts.password:
                raise ValueError("an address holds no password; use key_env")
        addresses = [url.rstrip("/") for url in urls]
        if len(set(addresses)) < len(addresses):
            raise ValueError("an address is there twice")
        return addresses


class VLLMConfig(Settings):
    """vLLM's server, which the explorer starts, in the environment that has vLLM."""

    name: Literal["vllm"] = "vllm"
    python: Path | None = None
    """Interpreter that has vLLM. None: the explorer's own, or the one that `trinity-db engine install vllm`
    has made."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Number format of the weights. auto: bfloat16 on a GPU, else float32. In half precision the recorded
    log-probabilities differ from the trainer's, by 0.05 in the mean."""
    tensor_parallel: int = Field(1, ge=1, le=1024)
    """GPUs that hold one model together."""
    max_sequences: int = Field(256, ge=1, le=1_000_000)
    """Responses that are sampled at a time. Further requests wait."""
    context: int | None = Field(None, ge=2)
    """Longest sequence in tokens, prompt and response together. None: what the model takes. The keys and
    values of one such sequence have to fit into memory."""
    cache_gigabytes: float | None = Field(None, gt=0, le=1e6)
    """Memory for keys and values, on each GPU. None: 1 without a GPU, else what vLLM leaves free of the GPU;
    --gpu-memory-utilization under arguments limits how much of the GPU vLLM uses."""
    arguments: tuple[str, ...] = ()
    """Further arguments of vLLM's server, such as [--gpu-memory-utilization=0.5, --quantization=fp8]."""

    @field_validator("arguments")
    @classmethod
    def arguments_are_not_ours(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        for argument in arguments:
            name = argument.partition("=")[0].replace("_", "-")
            if (instead := SET_BY_ENGINE.get(name)) is not None:
                raise ValueError(f"{name} is set by the engine: {instead}")
        return arguments


SET_BY_ENGINE = {
    "--dtype": "use dtype",
    "--tensor-parallel-size": "use tensor_parallel",
    "-tp": "use tensor_parallel",
    "--max-num-seqs": "use max_sequences",
    "--max-model-len": "use context",
    "--kv-cache-memory-bytes": "use cache_gigabytes",
    "--model": "use model.path of the run",
    "--api-key": "leave it out",
    "--enable-scale-out": "leave it out",
    "--enable-return-routed-experts": "use explorer.record_routing",
    "--generation-config": "leave it out",
    "--logprobs-mode": "leave it out",
    "--served-model-name": "leave it out",
    "--tokenizer": "leave it out",
    "--uds": "leave it out",
    "--worker-extension-cls": "leave it out",
}
"""Arguments of vLLM's server that the engine needs to be as they are."""


class OwnEngineConfig(Settings):
    """An engine of your own. The other keys are its options."""

    model_config = ConfigDict(extra="allow")

    name: str
    """path/to/file.py:Class."""

    @property
    def options(self) -> dict[str, Any]:
        """What is given to it."""
        return self.model_extra or {}


def _spelled_out(value: Any) -> Any:
    value = {"name": value} if isinstance(value, str) else value
    name = value.get("name", "transformers") if isinstance(value, dict) else "transformers"
    if name not in ENGINES and ".py:" not in str(name):
        raise ValueError(
            f"there is no engine '{name}'; {hint(str(name), [*ENGINES, 'your own as path/to/file.py:Class'])}"
        )
    return value


def _kind(value: Any) -> str:
    name = value.get("name", "transformers") if isinstance(value, dict) else getattr(value, "name", "")
    return "own" if ".py:" in str(name) else str(name)


ENGINES = ("transformers", "vllm", "endpoint")
"""Those that come with the project."""
LOADS_ADAPTERS = ("transformers", "vllm")
"""Engines that load a version which is an adapter."""

EngineConfig = Annotated[
    Annotated[TransformersConfig, Tag("transformers")]
    | Annotated[EndpointConfig, Tag("endpoint")]
    | Annotated[VLLMConfig, Tag("vllm")]
    | Annotated[OwnEngineConfig, Tag("own")],
    Discriminator(_kind),
    BeforeValidator(_spelled_out),
]
"""The settings of one engine, told apart by their `name`."""


class EnvironmentConfig(Settings):
    """An environment that the policy acts in, in place of a workflow. The other keys are its options."""

    model_config = ConfigDict(extra="allow")

    name: str
    """path/to/file.py:Class. With a method `step` it is a text environment as in Gymnasium; else its public
    methods are tools that the policy may call."""
    turns: int = Field(20, ge=1, le=100_000)
    """Most responses of an attempt. The attempt then ends with what it has earned."""
    steps: bool = False
    """Whether each action in a text environment is a rollout step: a row with its own reward, in which the
    policy reads one observation alone. Else the attempt is one sequence. For gigpo and multi_step_grpo."""
    call_seconds: Annotated[float | None, Change.DATED] = Field(300.0, gt=0, le=1e9)
    """Longest time of one call of the environment in seconds, its start included. None: no limit."""
    python: Annotated[str | None, Change.PER_PROCESS] = None
    """The Python interpreter, 3.11 or newer, in whose processes the environment lives: that of an environment
    with packages which do not agree with ours. A call that takes too long is ended there. None: the
    environment lives in threads of the explorer."""
    processes: Annotated[int, Change.PER_PROCESS] = Field(16, ge=1, le=100_000)
    """Processes at most, one for each attempt under way; further attempts wait."""

    @property
    def options(self) -> dict[str, Any]:
        """What its class is given."""
        return self.model_extra or {}


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class ShuffledConfig(Settings):
    """Each task once in a pass, shuffled anew in each."""

    name: Literal["shuffled"] = "shuffled"


class SequentialConfig(Settings):
    """Each task once in a pass, in the order of import."""

    name: Literal["sequential"] = "sequential"


class EasyToHardConfig(Settings):
    """Each task once in a pass, by the number that it has under `level`, the lowest first.

    `trinity-db import --map level=difficulty` takes the number from another key. Tasks without one come last.
    """

    name: Literal["easy_to_hard"] = "easy_to_hard"


class DifficultyConfig(Settings):
    """Tasks that the policy solves about as often as you say, each at most once in a shuffled pass.

    What the run knows of a task is the Beta posterior in task_stat. A task of which it knows little is taken
    each time that the pass comes to it; one that is surely easier or harder more seldom, down to every
    twentieth time.
    """

    name: Literal["difficulty"] = "difficulty"
    target: float = Field(0.5, ge=0, le=1)
    """Share of a task's rollouts that are to solve it. processors.group.solved_reward says which do. At 0.5
    rewards of a group differ most."""


class SelectConfig(Settings):
    """The tasks that a SELECT of your own yields, in its order: one id a row, and a group for each row."""

    name: Literal["select"] = "select"
    query: str = Field(min_length=1)
    """The SELECT, or the path of a file with the ending .sql that holds it. It may name %(run_id)s,
    %(taskset_ids)s and %(limit)s, how many groups are to start; write %% for a percent sign. It runs with the
    explorer's login and reads only. Where it yields no row, no group starts."""
    seconds: float = Field(5.0, gt=0, le=600)
    """How long it may take, in seconds; more ends the explorer with an error. The run's other explorers wait
    meanwhile."""


def _as_mapping(value: Any) -> Any:
    if isinstance(value, dict) and "name" not in value:
        raise ValueError("name it, as in {name: difficulty, target: 0.5}")
    return {"name": value} if isinstance(value, str) else value


TasksConfig = Annotated[
    ShuffledConfig | SequentialConfig | EasyToHardConfig | DifficultyConfig | SelectConfig,
    Field(discriminator="name"),
    BeforeValidator(_as_mapping),
]
"""Which tasks come next. `name` says by what."""


class CommandConfig(Settings):
    """A program that is run for each attempt, and asks the policy as an OpenAI or Anthropic server."""

    command: str
    """The program and its arguments, as in "python my_agent.py". It finds OPENAI_BASE_URL, OPENAI_API_KEY and
    TRINITY_TASK in its environment; its last line may be the reward."""


def _named_or_command(value: Any) -> Any:
    if isinstance(value, dict):
        for key in value:
            if key != "command":
                raise ValueError(f"unknown key '{key!s:.100}'; {hint(str(key), ['command'], 'known keys')}")
        if not isinstance(value.get("command"), str):
            raise ValueError('name the program, as in {command: "python my_agent.py"}')
    elif not isinstance(value, str | CommandConfig):
        raise ValueError("must be single_turn, path/to/file.py:name, or a program as {command: ...}")
    return value


class ExplorerConfig(Settings):
    """How rollouts are produced."""

    workflow: Annotated[
        str | CommandConfig,
        BeforeValidator(_named_or_command),
        Kept("it says what a rollout of the run is"),
    ] = "single_turn"
    """How a task is attempted: single_turn (one prompt, one response), a coroutine of your own as
    path/to/file.py:name, or a program as {command: "python my_agent.py"}."""
    environment: Annotated[
        EnvironmentConfig | None, BeforeValidator(_named), Kept("it says what a rollout of the run is")
    ] = None
    """What the policy acts in, in place of a workflow: a class of your own as path/to/file.py:Class."""
    engine: Annotated[EngineConfig, Change.PER_PROCESS] = TransformersConfig()
    """What samples responses: transformers, in the explorer's process; vllm, a server that the explorer
    starts; endpoint, servers that other people run; or a class of your own as path/to/file.py:Class. May
    change during a run."""
    group_size: Annotated[int, Change.DATED] = Field(8, ge=1, le=10_000)
    """Rollouts of one task that are compared with one another. remax adds one more, at temperature 0."""
    spare: Annotated[int, Change.DATED] = Field(0, ge=0, le=1000)
    """Attempts of a task beyond group_size. The first group_size that end are the group; the others are
    cancelled, and kept as refused. No group waits for its slowest then, but short responses are preferred."""
    concurrency: Annotated[int, Change.DATED] = Field(256, ge=1, le=1_000_000)
    """Attempts that one explorer has under way at a time. When some end, others begin. More use the hardware
    better, and more are made by versions that are not the newest any more."""
    tasks: Annotated[TasksConfig, Change.DATED] = ShuffledConfig()
    """Which tasks come next: shuffled, sequential, easy_to_hard, difficulty or select, by name or with
    options. All but select walk over the tasks in passes. Tasks that are imported meanwhile come at the end
    of the pass, with easy_to_hard in their place or in the next pass."""
    backlog: Annotated[int | None, Change.DATED] = Field(10_000, ge=1, le=2**31 - 1)
    """Rollout groups that may wait for the trainer, with those that are explored, in a run without a
    staleness limit (max_staleness: null). More would fill the disk while the trainer is slow or stands
    still: a group of 8 responses with 1000 tokens takes about 200 kB. null: no limit."""
    temperature: Annotated[float, Kept("the stored log-probabilities are at this temperature")] = Field(
        1.0, gt=0, le=1000
    )
    """Sampling temperature of calls that name none. The trainer divides logits by it too, so that its
    log-probabilities compare with the sampled ones. For a greedy rollout in each group, use remax."""
    max_new_tokens: Annotated[int, Change.DATED] = Field(256, ge=1, le=10_000_000)
    """Longest response in tokens."""
    attempt_seconds: Annotated[float | None, Change.DATED] = Field(None, gt=0, le=1e9)
    """Longest time of an attempt in seconds. One that takes longer is a failed rollout. None: no limit."""
    retries: Annotated[int, Change.DATED] = Field(0, ge=0, le=1000)
    """How often an attempt that raised an error, or took too long, is made again before it is a failed
    rollout."""
    record_routing: Annotated[bool, Change.PER_PROCESS] = False
    """For mixtures of experts: store with each token which experts the engine's routers chose for it, so that
    the trainer replays them (trainer.replay_routing). It takes a byte for each layer and chosen expert of
    each token, two with more than 256 experts. Engines: transformers; vllm on a GPU; endpoint with servers of
    vLLM that were started with --enable-return-routed-experts. May change during a run."""

    @model_validator(mode="after")
    def the_engine_says_which_experts_it_chose(self) -> Self:
        if self.record_routing and isinstance(self.engine, OwnEngineConfig):
            raise ValueError(
                "record_routing is for engines of this project; an engine of your own says what it chose in "
                "the routing of each Completion: leave record_routing out"
            )
        if self.record_routing and isinstance(self.engine, EndpointConfig) and self.engine.dialect != "vllm":
            raise ValueError(
                f"record_routing: {self.engine.dialect} servers are not asked which experts they chose; take "
                "servers of vLLM, the engine vllm or transformers, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def an_environment_is_the_workflow(self) -> Self:
        if self.environment is not None and self.workflow != "single_turn":
            raise ValueError("an environment takes the place of a workflow: leave out one of the two")
        return self

    @property
    def has_own_reward(self) -> bool:
        """Whether a workflow, a program or an environment may say what an attempt earned."""
        if isinstance(self.workflow, CommandConfig) or self.environment is not None:
            return True
        return ".py:" in self.workflow


class EvaluationConfig(Settings):
    """Which versions are evaluated, and on what."""

    taskset: list[str] = Field(min_length=1)
    """Imported tasks, of one taskset or of several. Each is attempted."""
    every: int = Field(10, ge=1)
    """Versions between two evaluations. Version 0 and the last one are always evaluated."""
    samples: int = Field(4, ge=1, le=10_000)
    """Attempts at each task."""
    temperature: float | None = Field(None, ge=0, le=1000)
    """Sampling temperature; 0 takes the likeliest token each time. None: explorer.temperature."""
    max_new_tokens: int | None = Field(None, ge=1, le=10_000_000)
    """Longest response in tokens. None: explorer.max_new_tokens."""

    @field_validator("taskset", mode="before")
    @classmethod
    def one_taskset_needs_no_list(cls, taskset: Any) -> Any:
        return [taskset] if isinstance(taskset, str) else taskset
