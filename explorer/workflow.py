"""Workflows: a coroutine that makes one attempt at a task with the policy.

A workflow knows neither the database nor the engine nor other attempts; the policy records what it sampled.
A run's own is a coroutine in a file that the configuration names, called as `Workflow` says. Importing this
needs none of the extras.
"""

import inspect
from collections.abc import Mapping
from typing import Any, Protocol

from trinity_db import functions
from trinity_db.errors import ConfigError
from trinity_db.explorer.config import CommandConfig, ExplorerConfig
from trinity_db.explorer.policy import Policy
from trinity_db.prompts import offered_tools
from trinity_db.store.groups import Reward


class Workflow(Protocol):
    """One attempt at a task."""

    async def __call__(self, task: Mapping[str, Any], policy: Policy) -> Reward:
        """Ask the policy, as often as the attempt needs.

        Many attempts run at once in one event loop: await what takes long. An attempt that raises is a failed
        rollout with its error; the others go on. When the explorer stops, attempts that are under way are
        cancelled, and another explorer makes them anew.

        Args:
            task: the columns of the task as they were imported.

        Returns:
            what the attempt earned, a number or several by name, to which reward functions add theirs; None:
            they alone say it.
        """


def of(config: ExplorerConfig) -> Workflow:
    """The workflow of a configuration, also one that is made from an environment's class or from a command.

    Raises:
        ConfigError: there is no such function, class or program, or it does not fit.
    """
    if config.environment is not None:
        from trinity_db.explorer.environments.played import Environment

        return Environment(config.environment)
    if isinstance(config.workflow, CommandConfig):
        from trinity_db.explorer.recording.command import Command

        return Command(config.workflow.command)
    return load(config.workflow)


def load(name: str) -> Workflow:
    """The workflow of that name, or the one that `path/to/file.py:name` names.

    Raises:
        ConfigError: there is no such function, it cannot be called as a workflow, or it is no coroutine.
    """
    workflow = functions.find(name, "workflow", WORKFLOWS)
    functions.check_call(workflow, f"Workflow '{name}'", "(task, policy)", ({}, None), {})
    called = workflow if inspect.isroutine(workflow) else type(workflow).__call__
    if not inspect.iscoroutinefunction(called):
        raise ConfigError(f"Workflow '{name}' is no coroutine; define it with: async def")
    return workflow


async def single_turn(task: Mapping[str, Any], policy: Policy) -> None:
    """One prompt, one response."""
    await policy.complete(policy.renderer.task(task, offered_tools(task)))


WORKFLOWS: dict[str, Workflow] = {"single_turn": single_turn}
