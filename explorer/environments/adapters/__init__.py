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
    package: str
    """What is imported."""
    install: str
    """What is installed."""
    own_process: bool = False
    """Whether one process cannot hold several instances."""


ADAPTERS = {
    "gymnasium": Adapter("gymnasium_text:GymnasiumText", "gymnasium", "gymnasium"),
    "openenv": Adapter("openenv_server:OpenEnv", "aiohttp", "aiohttp"),
    "textarena": Adapter("textarena_game:Game", "textarena", "textarena", own_process=True),
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
    if name in ADAPTERS and find_spec(ADAPTERS[name].package) is None:
        raise ConfigError(
            f"Environment '{name}' needs the package {ADAPTERS[name].package}; install it with: "
            f"pip install {ADAPTERS[name].install}. Or name an interpreter that has it: "
            f"environment: {{name: {name}, python: path/to/python}}"
        )
