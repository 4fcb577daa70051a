"""Finds and checks the public methods of an environment's class, and makes tools of them.

Importing this module needs no package, since it also runs in processes of other interpreters.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from trinity_db.errors import ConfigError

if TYPE_CHECKING:
    from trinity_db.explorer.attempt.tools import Tool

NO_TOOLS = ("reset", "get_reward", "list_tools", "close")

Run = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a function in the environment's thread or process."""


def methods_of(environment: type[Any]) -> list[str]:
    """Return the public methods of a class in order of definition, inherited ones last."""
    names = dict.fromkeys(name for parent in environment.__mro__ for name in vars(parent))
    # Look them up on the class: on an instance, properties would be evaluated.
    return [name for name in names if not name.startswith("_") and callable(getattr(environment, name))]


def check(environment: type[Any], name: str) -> list[str]:
    """Return the public methods of an environment's class.

    Raises:
        ConfigError: if it is not an environment.
    """
    methods = methods_of(environment)
    if "attempt" in methods:
        return methods
    if "reset" not in methods:
        raise ConfigError(f"{name} has no method 'reset', which starts an attempt.")
    if "step" in methods:
        return methods
    tools = [method for method in methods if method not in NO_TOOLS]
    if not tools and "list_tools" not in methods:
        raise ConfigError(f"{name} has neither a method 'step' nor a public method as a tool.")
    if silent := [method for method in tools if not inspect.getdoc(getattr(environment, method))]:
        raise ConfigError(
            f"{name}: its tool '{silent[0]}' has no docstring, which tells the model what the tool does. "
            "Start the name of a method that is not a tool with an underscore."
        )
    return methods


def tools_from(environment: Any, run: Run) -> "dict[str, Tool] | Awaitable[dict[str, Tool]]":
    """Return the tools of an instance by name: its public methods, or the result of its `list_tools`.

    Raises:
        ConfigError: if a method cannot be offered to a model.
    """
    from trinity_db.explorer.attempt.tools import tools_of

    if hasattr(environment, "list_tools"):
        listed: dict[str, Tool] = environment.list_tools()
        return listed

    def called(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        @wraps(method)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await run(partial(method, *args, **kwargs))

        return call

    names = [name for name in methods_of(type(environment)) if name not in NO_TOOLS]
    tools = tools_of([getattr(environment, name) for name in names])
    return {name: replace(tool, function=called(tool.function)) for name, tool in tools.items()}


def reward_of(environment: Any) -> Any:
    """Return the reward that an instance reports for the attempt, or an awaitable of it; None: no reward."""
    if hasattr(environment, "get_reward"):
        return environment.get_reward()
    return getattr(environment, "reward", None)
