"""Environments: a class in a file of the user's, played as a workflow."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from trinity_db import functions, signatures
from trinity_db.errors import ConfigError
from trinity_db.explorer.config import EnvironmentConfig
from trinity_db.explorer.environments import text
from trinity_db.explorer.environments.instance import InProcess, Instance
from trinity_db.explorer.policy import Policy

OWN_KEYS = tuple(EnvironmentConfig.model_fields)


class Environment:
    """A workflow that is made from a class: each attempt has an instance of its own.

    Raises:
        ConfigError: there is no such class, it takes other options, or it is no environment.
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config
        self._name = f"Environment '{config.name}'"
        found: type = functions.find(config.name, "environment", {})
        options = signatures.options(found, self._name, config.options, (), OWN_KEYS)
        self._make = partial(found, **options)
        if not hasattr(found, "reset"):
            raise ConfigError(f"{self._name} has no method 'reset'; an attempt begins with it.")

    async def __call__(self, task: Mapping[str, Any], policy: Policy) -> float | None:
        """Play one attempt."""
        config = self._config
        instance = Instance(InProcess(self._make), self._name, config.call_seconds)
        try:
            await instance.start()
            return await text.play(instance, task, policy, config.turns, config.steps)
        finally:
            await instance.close()
