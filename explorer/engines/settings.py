"""Settings of engines, and the table of built-in engines.

To add an engine, write one file with its settings (a subclass of `EngineSettings`), a function `create` and
the class of the engine, and add an entry to ENGINES. Importing the file must not import torch, because
configurations are read without it.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, field_validator

from trinity_db.config.base import Settings, hint


class EngineSettings(Settings):
    """Settings of one engine, and the properties that other parts need to know before it exists."""

    factory: ClassVar[str]
    """`module:function`. It takes the settings, the prompts (`PromptConfig`) and `record_routing`, and
    returns an `Engine` without weights."""
    loads_adapters: ClassVar[bool | None] = None
    """Whether it can load a version stored as an adapter; None: unknown."""

    name: str
    """Name of the engine in configurations."""

    @property
    def needed_gpus(self) -> int:
        """Number of GPUs that one explorer requests on a cluster that has GPUs."""
        return 1

    @property
    def changes_versions_itself(self) -> bool:
        """Whether another program loads the weights, so that the version may change at any time."""
        return False

    @property
    def routing_problem(self) -> str | None:
        """The reason why it cannot record chosen experts; None: it can."""
        return None

    def check(self) -> None:
        """Check early, without loading a model, that the engine is installed and accepts its options.

        Raises:
            ConfigError: if it is not installed or rejects the options.
        """


class TransformersConfig(EngineSettings):
    """Runs a transformers model in the explorer's process, with continuous batching."""

    factory = "trinity_db.explorer.engines.transformers_engine:create"
    loads_adapters = True

    name: Literal["transformers"] = "transformers"
    max_tokens: int = Field(65_536, ge=1)
    """Capacity of the KV cache in tokens: rows of the batch times the longest of them, prompt plus
    max_new_tokens. Further requests wait. 65536 tokens take 1.6 GB for a model of 0.5 B parameters."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of weights and KV cache. auto: bfloat16 on a GPU that supports it, else float32. 16-bit
    formats halve the memory, but the recorded log-probabilities then differ from the trainer's;
    `sampling/engine_logp_difference` shows by how much."""


class EndpointConfig(EngineSettings):
    """Uses existing vLLM or SGLang servers."""

    factory = "trinity_db.explorer.engines.endpoint:create"
    loads_adapters = False

    name: Literal["endpoint"] = "endpoint"
    urls: list[str] = Field(min_length=1)
    """URLs of the servers, such as http://10.0.0.7:8000. Each request goes to the healthy server with the
    fewest requests in flight among those with the loaded version."""
    dialect: Literal["vllm", "sglang"] = "vllm"
    """Server software."""
    model: str | None = Field(None, min_length=1)
    """Name under which vLLM serves the model. None: its only model."""
    key_env: str | None = None
    """Name of the environment variable that contains the servers' API key. None: no key."""
    load_weights: bool = True
    """Whether the explorer loads each new version into the servers. They must see the checkpoint folder under
    the same path, and no other program may load weights there. False: another program loads the weights, and
    labels them with the version number; a server is used while it has the version that the explorer needs."""
    load_seconds: float = Field(600.0, gt=0, le=1e6)
    """Timeout in seconds for a server to load a version."""
    tolerance: float = Field(0.3, gt=0, le=100)
    """Maximum mean difference, in nats per token, between a server's log-probabilities of a checkpoint's
    canary and the trainer's. A server beyond it does not count as loaded. bfloat16 differs by 0.05; for
    servers that compute in float32, use 0.005."""
    patience_seconds: float = Field(60.0, gt=0, le=1e6)
    """How many seconds requests wait while no server is usable. Then the explorer exits with the reason."""

    @field_validator("key_env")
    @classmethod
    def is_a_name(cls, key_env: str | None) -> str | None:
        if key_env is not None and not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", key_env):
            # The message does not repeat the value: it may be the key.
            raise ValueError("name an environment variable that contains the key, such as FLEET_KEY")
        return key_env

    @field_validator("urls")
    @classmethod
    def are_addresses(cls, urls: list[str]) -> list[str]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
                raise ValueError("an address must have the form http://host:8000")
            if parts.username or parts.password:
                raise ValueError("an address must not contain a password; use key_env")
        addresses = [url.rstrip("/") for url in urls]
        if len(set(addresses)) < len(addresses):
            raise ValueError("an address is listed twice")
        return addresses

    @property
    def routing_problem(self) -> str | None:
        if self.dialect == "vllm":
            return None
        return (
            f"record_routing: {self.dialect} servers do not return the chosen experts; use vLLM servers, the "
            "engine vllm or transformers, or leave it out"
        )

    @property
    def changes_versions_itself(self) -> bool:
        return not self.load_weights

    @property
    def needed_gpus(self) -> int:
        return 0


class VLLMConfig(EngineSettings):
    """Starts a vLLM server in the Python environment that has vLLM."""

    factory = "trinity_db.explorer.engines.vllm.engine:create"
    loads_adapters = True

    name: Literal["vllm"] = "vllm"
    python: Path | None = None
    """Python interpreter with vLLM. None: the explorer's own, or the environment created by
    `trinity-db engine install vllm`."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Number format of the weights. auto: bfloat16 on a GPU, else float32. In half precision the recorded
    log-probabilities differ from the trainer's by 0.05 on average."""
    tensor_parallel: int = Field(1, ge=1, le=1024)
    """Number of GPUs that the model is split across."""
    max_sequences: int = Field(256, ge=1, le=1_000_000)
    """Maximum number of responses sampled concurrently. Further requests wait."""
    context: int | None = Field(None, ge=2)
    """Maximum sequence length in tokens, prompt plus response. None: the model's limit. The KV cache of one
    such sequence must fit into memory."""
    cache_gigabytes: float | None = Field(None, gt=0, le=1e6)
    """KV cache memory per GPU. None: 1 without a GPU, otherwise whatever vLLM leaves free on the GPU;
    --gpu-memory-utilization under arguments limits vLLM's share of the GPU."""
    arguments: tuple[str, ...] = ()
    """Additional arguments of vLLM's server, such as [--gpu-memory-utilization=0.5, --quantization=fp8]."""

    @field_validator("arguments")
    @classmethod
    def arguments_are_not_ours(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        for argument in arguments:
            name = argument.partition("=")[0].replace("_", "-")
            if (instead := SET_BY_ENGINE.get(name)) is not None:
                raise ValueError(f"{name} is set by the engine: {instead}")
        return arguments

    @property
    def needed_gpus(self) -> int:
        return self.tensor_parallel

    def check(self) -> None:
        from trinity_db.explorer.engines.vllm import environment

        environment.find(self.python)


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
"""Arguments of vLLM's server that the engine sets itself, with the alternative for the user."""


class OwnEngineConfig(EngineSettings):
    """A custom engine. The other keys are its options."""

    factory = "trinity_db.explorer.engines:create_own"

    model_config = ConfigDict(extra="allow")

    name: str
    """path/to/file.py:Class."""

    @property
    def options(self) -> dict[str, Any]:
        """Options passed to the engine."""
        return self.model_extra or {}

    @property
    def routing_problem(self) -> str | None:
        return (
            "record_routing is only for built-in engines; a custom engine returns the experts in the "
            "routing of each Completion: leave record_routing out"
        )

    def check(self) -> None:
        from trinity_db.explorer.engines import own_options

        own_options(self)


ENGINES: dict[str, type[EngineSettings]] = {
    "transformers": TransformersConfig,
    "endpoint": EndpointConfig,
    "vllm": VLLMConfig,
}
"""Built-in engines by name."""


def _spelled_out(value: Any) -> Any:
    value = {"name": value} if isinstance(value, str) else value
    name = value.get("name", "transformers") if isinstance(value, dict) else "transformers"
    if str(name) not in ENGINES and ".py:" not in str(name):
        raise ValueError(
            f"there is no engine '{name}'; {hint(str(name), [*ENGINES, 'your own as path/to/file.py:Class'])}"
        )
    return value


def _kind(value: Any) -> str:
    name = value.get("name", "transformers") if isinstance(value, dict) else getattr(value, "name", "")
    return "own" if ".py:" in str(name) else str(name)


if TYPE_CHECKING:
    EngineConfig = EngineSettings
else:
    _KINDS = {**ENGINES, "own": OwnEngineConfig}
    _TAGGED = tuple(Annotated[settings, Tag(kind)] for kind, settings in _KINDS.items())
    EngineConfig = Annotated[Union[_TAGGED], Discriminator(_kind), BeforeValidator(_spelled_out)]  # noqa: UP007
