"""Workflows: coroutines that make one attempt at a task with the policy.

A workflow depends on neither database nor engine nor other attempts; the policy records what it samples. A
custom workflow is a coroutine in a file named in the configuration, called as described in `Workflow`.
Importing this module needs none of the extras.
"""

import inspect
from collections.abc import Mapping
from typing import Any, Protocol

from trinity_db.config import user_functions
from trinity_db.errors import ConfigError
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.config import CommandConfig, ExplorerConfig
from trinity_db.models.chat.prompts import offered_tools
from trinity_db.store.groups import Reward


class Workflow(Protocol):
    """One attempt at a task."""

    async def __call__(self, task: Mapping[str, Any], policy: Policy) -> Reward:
        """Query the policy, as often as the attempt needs.

        Many attempts run concurrently in one event loop, so await slow operations. An attempt that raises an
        error is a failed rollout with that error; others continue. When the explorer stops, attempts in
        progress are cancelled, and another explorer starts them again.

        Args:
            task: columns of the task as imported.

        Returns:
            The attempt's reward, a number or numbers by name, to which reward functions add theirs; None:
            only reward functions score it.
        """


def of(config: ExplorerConfig) -> Workflow:
    """Return the configured workflow: a coroutine, an environment, or a program.

    Raises:
        ConfigError: if the function, class or program does not exist or is not suitable, or agents that other
            people start make the attempts, or a program of the user's.
    """
    if config.is_served:
        raise ConfigError(
            "explorer.workflow: served: agents that other people start make the attempts; start the explorer "
            "with trinity-db serve."
        )
    if config.is_external:
        raise ConfigError(
            "explorer.workflow: external: a program of yours explores: "
            "trinity_db.connect(read_only=False).explorer(...), see docs/guides/python.md."
        )
    if config.environment is not None:
        from trinity_db.explorer.environments.played import Environment

        return Environment(config.environment)
    if isinstance(config.workflow, CommandConfig):
        from trinity_db.explorer.http.command import Command

        program = config.workflow
        return Command(program.command, program.folder, program.check)
    return load(config.workflow)


def load(name: str) -> Workflow:
    """Return a built-in workflow, or a custom one given as `path/to/file.py:name`.

    Raises:
        ConfigError: if it does not exist, has the wrong parameters, or is not a coroutine function.
    """
    workflow = user_functions.find(name, "workflow", WORKFLOWS)
    user_functions.check_call(workflow, f"Workflow '{name}'", "(task, policy)", ({}, None), {})
    called = workflow if inspect.isroutine(workflow) else type(workflow).__call__
    if not inspect.iscoroutinefunction(called):
        raise ConfigError(f"Workflow '{name}' is not a coroutine function; define it with: async def")
    return workflow


async def single_turn(task: Mapping[str, Any], policy: Policy) -> None:
    """One prompt, one response."""
    await policy.complete(policy.renderer.task(task, offered_tools(task)))


WORKFLOWS: dict[str, Workflow] = {"single_turn": single_turn}
