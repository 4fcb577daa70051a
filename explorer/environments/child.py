"""The process in which environments live apart from the explorer: one after another, asked over JSON lines.

`process.py` starts it as a program, `python child.py FOLDER_OF_TRINITY_DB`, also with another interpreter,
which may lack this project and its packages. So it imports the standard library alone; only tools need
pydantic. Each line on standard input asks for one thing. The answer is one line on standard output:
{"result": …} or {"error": …}. What an environment prints goes to standard error.
"""

import asyncio
import importlib.util
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any, TextIO


def main() -> None:
    """Answer until standard input ends."""
    asked, answers = _own_pipes()
    _find_project(sys.argv[1])
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(asked, lines), daemon=True).start()
    asyncio.run(_serve(lines, answers))


class _Server:
    """What can be asked for. A method may return an awaitable."""

    def __init__(self) -> None:
        self._environment: Any = None
        self._tools: Any = None

    def check(self, name: str, options: Mapping[str, Any]) -> list[str]:
        """The public methods of a class that takes these options."""
        from trinity_db import functions
        from trinity_db.explorer.environments import adapters, methods

        adapters.check_package(name)
        found = adapters.find(name)
        functions.check_call(found, f"Environment '{name}'", "its options", (), options)
        return methods.check(found, f"Environment '{name}'")

    def make(self, name: str, options: Mapping[str, Any]) -> list[str]:
        """Make an instance; its public methods."""
        from trinity_db.explorer.environments.adapters import find
        from trinity_db.explorer.environments.methods import methods_of

        self._environment = find(name)(**options)
        return methods_of(type(self._environment))

    async def tools(self) -> list[Mapping[str, Any]]:
        """Name, description and JSON schema of each tool of the instance."""
        from trinity_db.explorer.environments.methods import tools_from

        async def run(function: Any) -> Any:
            result = function()
            return await result if inspect.isawaitable(result) else result

        found = tools_from(self._environment, run)
        self._tools = await found if inspect.isawaitable(found) else found
        return [
            {"name": name, "description": one.description, "parameters": one.parameters}
            for name, one in self._tools.items()
        ]

    async def use(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """What a tool answers, or what went wrong in it, as the model reads it."""
        from trinity_db.explorer.tools import ToolCall, answer

        return (await answer(ToolCall(name, arguments), self._tools))["content"]

    def call(self, method: str, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a method returns."""
        return getattr(self._environment, method)(*args, **kwargs)

    def reward(self) -> Any:
        """What the attempt earned."""
        from trinity_db.explorer.environments.methods import reward_of

        return reward_of(self._environment)

    def close(self) -> Any:
        """Free what the instance holds."""
        environment, self._environment, self._tools = self._environment, None, None
        return environment.close() if hasattr(environment, "close") else None


async def _serve(lines: "SimpleQueue[str]", answers: TextIO) -> None:
    from trinity_db.errors import TrinityError
    from trinity_db.functions import describe_error

    server = _Server()
    while True:
        asked = json.loads(lines.get())
        try:
            result = getattr(server, asked.pop("do"))(**asked)
            if inspect.isawaitable(result):
                result = await result
            line = json.dumps({"result": result}, default=_plain)
        except TrinityError as error:
            line = json.dumps({"error": str(error)})
        except (Exception, SystemExit) as error:  # a user's own code
            line = json.dumps({"error": describe_error(error)})
        answers.write(line + "\n")
        answers.flush()


def _own_pipes() -> tuple[TextIO, TextIO]:
    """The two pipes to the explorer, moved away from where an environment reads and prints."""
    asked = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return asked, answers


def _read(asked: TextIO, lines: "SimpleQueue[str]") -> None:
    for line in asked:
        lines.put(line)
    # The explorer has ended. What the environment started goes too: it is in this process's group.
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _find_project(folder: str) -> None:
    """Make this project importable, and nothing else of the interpreter that it was installed for."""
    spec = importlib.util.spec_from_file_location(
        "trinity_db", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["trinity_db"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["trinity_db"])


def _plain(value: Any) -> Any:
    """A number or an array of numpy as JSON has it; anything else as its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


if __name__ == "__main__":
    main()
