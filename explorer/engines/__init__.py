"""Engines by name: those that come with the project, and a user's own class in a file."""

import os

from trinity_db import functions, signatures
from trinity_db.config import DEFAULT_PROMPTS, PromptConfig
from trinity_db.errors import ConfigError
from trinity_db.explorer.config import EndpointConfig, OwnEngineConfig, TransformersConfig, VLLMConfig
from trinity_db.explorer.engines.engine import Engine
from trinity_db.explorer.engines.vllm import environment

AnyConfig = TransformersConfig | VLLMConfig | EndpointConfig | OwnEngineConfig


def check(config: AnyConfig) -> None:
    """Find out early, without a model, that an engine is not installed, or a user's own takes other options.

    Raises:
        ConfigError: naming it.
    """
    if isinstance(config, OwnEngineConfig):
        signatures.options(*_own(config), config.options, ())
    elif isinstance(config, VLLMConfig):
        environment.find(config.python)


def create(
    config: AnyConfig, prompts: PromptConfig = DEFAULT_PROMPTS, *, record_routing: bool = False
) -> Engine:
    """The engine of a configuration, with no weights yet.

    Args:
        prompts: with the chat template, which says by which token a response ends.
        record_routing: whether its responses say which experts were chosen (`explorer.record_routing`).

    Raises:
        ConfigError: there is no such class, or it takes other options; an environment variable is missing; or
            vLLM is not installed.
    """
    if isinstance(config, EndpointConfig):
        return _endpoint(config, prompts, record_routing)
    if isinstance(config, VLLMConfig):
        from trinity_db.explorer.engines.vllm.engine import VLLMEngine

        return VLLMEngine(config, prompts, record_routing=record_routing)
    if isinstance(config, OwnEngineConfig):
        engine, name = _own(config)
        made: Engine = engine(**signatures.options(engine, name, config.options, ()))
        return made
    from trinity_db.explorer.engines.transformers_engine import TransformersEngine

    return TransformersEngine(
        max_tokens=config.max_tokens, dtype=config.dtype, prompts=prompts, record_routing=record_routing
    )


def _endpoint(config: EndpointConfig, prompts: PromptConfig, record_routing: bool) -> Engine:
    from trinity_db.explorer.engines.dialects import VLLM, SGLang
    from trinity_db.explorer.engines.endpoint import EndpointEngine

    key = None
    if config.key_env is not None:
        key = os.environ.get(config.key_env)
        if not key:
            raise ConfigError(
                f"explorer.engine.key_env: the environment variable {config.key_env} is not set; it holds "
                "the key of the servers"
            )
    return EndpointEngine(
        config.urls,
        VLLM(config.model, record_routing=record_routing) if config.dialect == "vllm" else SGLang(),
        prompts=prompts,
        key=key,
        load_weights=config.load_weights,
        load_seconds=config.load_seconds,
        tolerance=config.tolerance,
        patience_seconds=config.patience_seconds,
    )


def _own(config: OwnEngineConfig) -> tuple[type, str]:
    name = f"Engine '{config.name}'"
    return functions.find(config.name, "engine", {}), name
