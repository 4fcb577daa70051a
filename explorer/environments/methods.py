"""The public methods of an environment's class: found, checked, and made tools of.

Importing this needs no package, since it is done in processes of other interpreters too.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from trinity_db.errors import ConfigError

if TYPE_CHECKING:
    from trinity_db.explorer.tools import Tool

NO_TOOLS = ("reset", "get_reward", "list_tools", "close")

Run = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a function where the environment lives."""


def methods_of(environment: type[Any]) -> list[str]:
    """The public methods of a class, in the order of their definition, the inherited ones last."""
    names = dict.fromkeys(name for one in environment.__mro__ for name in vars(one))
    # On the class, since the value of a property may be anything.
    return [name for name in names if not name.startswith("_") and callable(getattr(environment, name))]


def check(environment: type[Any], name: str) -> list[str]:
    """The public methods of a class that is an environment.

    Raises:
        ConfigError: it is none.
    """
    methods = methods_of(environment)
    if "attempt" in methods:
        return methods
    if "reset" not in methods:
        raise ConfigError(f"{name} has no method 'reset', by which an attempt begins.")
    if "step" in methods:
        return methods
    tools = [one for one in methods if one not in NO_TOOLS]
    if not tools and "list_tools" not in methods:
        raise ConfigError(f"{name} has neither a method 'step' nor a public method as a tool.")
    if silent := [one for one in tools if not inspect.getdoc(getattr(environment, one))]:
        raise ConfigError(
            f"{name}: its tool '{silent[0]}' has no docstring, from which the model reads what it does. "
            "A method that is no tool has a name that begins with an underscore."
        )
    return methods


def tools_from(environment: Any, run: Run) -> "dict[str, Tool] | Awaitable[dict[str, Tool]]":
    """The tools of an instance, by name: its public methods, or what its `list_tools` gives.

    Raises:
        ConfigError: a method is none that a model can call.
    """
    from trinity_db.explorer.tools import tools_of

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
    """What an instance says that the attempt earned, or an awaitable of it; None: nothing."""
    if hasattr(environment, "get_reward"):
        return environment.get_reward()
    return getattr(environment, "reward", None)
