"""Environments of packages and servers. Each is a class like a custom one, imported when it is used.

An adapter imports only modules of this project that need no package, so that it also runs in a process of
another interpreter. Its own package is imported when an instance is created.
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from trinity_db.config import user_functions
from trinity_db.errors import ConfigError


@dataclass(frozen=True)
class Adapter:
    """Location and requirements of an adapter's class."""

    class_path: str
    """module:Class, with the module in this folder."""
    package: str | None = None
    """Package that it imports, beyond the dependencies of trinity-db."""
    own_process: bool = False
    """Whether it needs a process per instance."""


ADAPTERS = {
    "gymnasium": Adapter("gymnasium_text:GymnasiumText", "gymnasium"),
    "mcp": Adapter("mcp_server:MCPServer"),
    "openenv": Adapter("openenv_server:OpenEnv", "aiohttp"),
    "reasoning-gym": Adapter("reasoning_task:ReasoningTask", "reasoning_gym"),
    "textarena": Adapter("textarena_game:Game", "textarena", own_process=True),
    "verifiers": Adapter("verifiers_task:VerifiersTask", "verifiers", own_process=True),
}


def find(name: str) -> Any:
    """Return the class of an adapter, or a custom class given as `path/to/file.py:Class`.

    Raises:
        ConfigError: if it does not exist.
    """
    if name not in ADAPTERS:
        return user_functions.find(name, "environment", dict.fromkeys(ADAPTERS, object))
    module, _, attribute = ADAPTERS[name].class_path.partition(":")
    return getattr(import_module(f"{__name__}.{module}"), attribute)


def check_package(name: str) -> None:
    """Check early that an adapter's package is installed.

    Raises:
        ConfigError: if it is not, with the command that installs it.
    """
    package = ADAPTERS[name].package if name in ADAPTERS else None
    if package is not None and find_spec(package) is None:
        raise ConfigError(
            f"Environment '{name}' needs a package: pip install {package.replace('_', '-')}. Or set an "
            f"interpreter that has it: environment: {{name: {name}, python: path/to/python}}"
        )
