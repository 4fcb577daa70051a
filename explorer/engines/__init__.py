"""Engines by name: the built-in ones (`settings.ENGINES`), and custom classes in a file."""

import importlib
from typing import TYPE_CHECKING, Any

from trinity_db.config import signatures, user_functions
from trinity_db.config.shared import DEFAULT_PROMPTS, PromptConfig
from trinity_db.explorer.engines.settings import EngineSettings, OwnEngineConfig

if TYPE_CHECKING:
    from trinity_db.explorer.engines.engine import Engine


def create(
    settings: EngineSettings, prompts: PromptConfig = DEFAULT_PROMPTS, *, record_routing: bool = False
) -> "Engine":
    """Create the configured engine, without weights.

    Args:
        prompts: contains the chat template, which determines the token that ends a response.
        record_routing: whether responses include the chosen experts (`explorer.record_routing`).

    Raises:
        ConfigError: if the class does not exist or rejects the options, an environment variable is missing,
            or vLLM is not installed.
    """
    module, _, function = settings.factory.partition(":")
    engine: Engine = getattr(importlib.import_module(module), function)(settings, prompts, record_routing)
    return engine


def create_own(settings: OwnEngineConfig, prompts: PromptConfig, record_routing: bool) -> "Engine":
    """Create a user's engine. It renders prompts and records experts in its own way."""
    engine, options = own_options(settings)
    made: Engine = engine(**options)
    return made


def own_options(settings: OwnEngineConfig) -> tuple[type, dict[str, Any]]:
    """Return the class of a user's engine, and its options.

    Raises:
        ConfigError: if there is no such class, or it rejects the options.
    """
    name = f"Engine '{settings.name}'"
    engine: type = user_functions.find(settings.name, "engine", {})
    return engine, signatures.options(engine, name, settings.options, ())
