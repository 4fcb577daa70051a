"""Engines by name: those that come with the project, and a user's own class in a file."""

from trinity_db import functions, signatures
from trinity_db.explorer.config import OwnEngineConfig, TransformersConfig
from trinity_db.explorer.engines.engine import Engine


def check(config: TransformersConfig | OwnEngineConfig) -> None:
    """Find out early, without a model, that an engine of the user's own is not there or takes other options.

    Raises:
        ConfigError: naming it.
    """
    if isinstance(config, OwnEngineConfig):
        signatures.options(*_own(config), config.options, ())


def create(config: TransformersConfig | OwnEngineConfig) -> Engine:
    """The engine of a configuration, with no weights yet.

    Raises:
        ConfigError: there is no such class, or it takes other options.
    """
    if isinstance(config, OwnEngineConfig):
        engine, name = _own(config)
        made: Engine = engine(**signatures.options(engine, name, config.options, ()))
        return made
    from trinity_db.explorer.engines.transformers_engine import TransformersEngine

    return TransformersEngine(max_tokens=config.max_tokens)


def _own(config: OwnEngineConfig) -> tuple[type, str]:
    name = f"Engine '{config.name}'"
    return functions.find(config.name, "engine", {}), name
