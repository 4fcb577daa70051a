"""Environments of packages and of servers. Each is a class as a user's own, and imported when it is named.

An adapter imports nothing of this project but what needs no package, so that it also runs in a process of
another interpreter. Its package is imported when an instance is made.
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from trinity_db import functions
from trinity_db.errors import ConfigError


@dataclass(frozen=True)
class Adapter:
    """Where the class of an adapter is, and what it needs."""

    place: str
    """module:Class, the module in this folder."""
    package: str | None = None
    """What it imports beyond what trinity-db needs."""
    own_process: bool = False
    """Whether one process cannot hold several instances."""


ADAPTERS = {
    "gymnasium": Adapter("gymnasium_text:GymnasiumText", "gymnasium"),
    "mcp": Adapter("mcp_server:MCPServer"),
    "openenv": Adapter("openenv_server:OpenEnv", "aiohttp"),
    "reasoning-gym": Adapter("reasoning_task:ReasoningTask", "reasoning_gym"),
    "textarena": Adapter("textarena_game:Game", "textarena", own_process=True),
    "verifiers": Adapter("verifiers_task:VerifiersTask", "verifiers", own_process=True),
}


def find(name: str) -> Any:
    """The class of an adapter, or of the user's own as `path/to/file.py:Class`.

    Raises:
        ConfigError: there is none.
    """
    if name not in ADAPTERS:
        return functions.find(name, "environment", dict.fromkeys(ADAPTERS, object))
    module, _, attribute = ADAPTERS[name].place.partition(":")
    return getattr(import_module(f"{__name__}.{module}"), attribute)


def check_package(name: str) -> None:
    """Find out early that an adapter's package is not here.

    Raises:
        ConfigError: it is not, with what installs it.
    """
    package = ADAPTERS[name].package if name in ADAPTERS else None
    if package is not None and find_spec(package) is None:
        raise ConfigError(
            f"Environment '{name}' needs a package: pip install {package.replace('_', '-')}. Or name an "
            f"interpreter that has it: environment: {{name: {name}, python: path/to/python}}"
        )
