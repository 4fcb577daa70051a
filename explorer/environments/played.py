"""The workflow for an environment's class."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from trinity_db.config import signatures
from trinity_db.errors import ConfigError
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.config import EnvironmentConfig
from trinity_db.explorer.environments import methods, text, tool_use
from trinity_db.explorer.environments.adapters import ADAPTERS, check_package, find
from trinity_db.explorer.environments.instance import Host, InProcess, Instance
from trinity_db.explorer.environments.process import EnvironmentEnded, EnvironmentRaised, InChild, Processes

OWN_KEYS = tuple(EnvironmentConfig.model_fields)


class Environment:
    """A workflow that creates an instance of the class for each attempt.

    Raises:
        ConfigError: if the class does not exist, rejects the options, or is not an environment.
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config
        self._name = f"Environment '{config.name}'"
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        own_process = config.name in ADAPTERS and ADAPTERS[config.name].own_process
        self._python = config.python or (sys.executable if own_process else None)
        self._host: Callable[[], Host]
        offered = self._of_process(self._python) if self._python else self._of_this_process()
        if config.steps and "step" not in offered:
            raise ConfigError(f"{self._name} has no method 'step': only its actions can be rollout steps.")

    async def __call__(self, task: Mapping[str, Any], policy: Policy) -> Any:
        """Run one attempt."""
        if self._python is None:
            return await self._play(task, policy)
        loop = asyncio.get_running_loop()  # an explorer starts a new one after a time without work
        if loop not in self._places:
            self._places[loop] = asyncio.Semaphore(self._config.processes)
        async with self._places[loop]:
            return await self._play(task, policy)

    async def _play(self, task: Mapping[str, Any], policy: Policy) -> Any:
        config = self._config
        instance = Instance(self._host(), self._name, config.call_seconds)
        try:
            await instance.start()
            if "attempt" in instance.methods:
                address = await policy.address()
                return await instance.call("attempt", task=dict(task), url=address.url, key=address.key)
            if "step" in instance.methods:
                return await text.play(instance, task, policy, config.turns, config.steps)
            return await tool_use.play(instance, task, policy, config.turns)
        finally:
            await instance.close()

    def _of_this_process(self) -> list[str]:
        check_package(self._config.name)
        environment = find(self._config.name)
        options = signatures.options(environment, self._name, self._config.options, (), OWN_KEYS)
        self._host = lambda: InProcess(partial(environment, **options))
        return methods.check(environment, self._name)

    def _of_process(self, python: str) -> list[str]:
        processes = Processes(python, self._config.name, self._config.options)
        self._host = lambda: InChild(processes)
        try:
            return processes.check()
        except OSError as error:
            raise ConfigError(f"{self._name}: cannot start {python}: {error}") from error
        except (EnvironmentEnded, EnvironmentRaised) as error:
            raise ConfigError(f"{error} (in {python})") from error
