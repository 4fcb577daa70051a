"""A process that hosts environments outside of the explorer, one after another, controlled by JSON lines.

`process.py` starts it as a program, `python child.py FOLDER_OF_TRINITY_DB`, possibly with another
interpreter, which may lack this project and its packages. So it imports only the standard library; only tools
need pydantic. Each line on standard input is a request. The response is one line on standard output:
{"result": …} or {"error": …}. Output of the environment goes to standard error.
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
    """Serve requests until standard input ends."""
    requests, answers = _own_pipes()
    _find_project(sys.argv[1])
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(requests, lines), daemon=True).start()
    asyncio.run(_serve(lines, answers))


class _Handlers:
    """Handlers of requests. A method may return an awaitable."""

    def __init__(self) -> None:
        self._environment: Any = None
        self._tools: Any = None

    def check(self, name: str, options: Mapping[str, Any]) -> list[str]:
        """Return the public methods of a class, after checking that it accepts these options."""
        from trinity_db.config import user_functions
        from trinity_db.explorer.environments import adapters, methods

        adapters.check_package(name)
        environment = adapters.find(name)
        user_functions.check_call(environment, f"Environment '{name}'", "its options", (), options)
        return methods.check(environment, f"Environment '{name}'")

    def make(self, name: str, options: Mapping[str, Any]) -> list[str]:
        """Create an instance, and return its public methods."""
        from trinity_db.explorer.environments.adapters import find
        from trinity_db.explorer.environments.methods import methods_of

        self._environment = find(name)(**options)
        return methods_of(type(self._environment))

    async def tools(self) -> list[Mapping[str, Any]]:
        """Return name, description and JSON schema of each tool of the instance."""
        from trinity_db.explorer.environments.methods import tools_from

        async def run(function: Any) -> Any:
            result = function()
            return await result if inspect.isawaitable(result) else result

        tools = tools_from(self._environment, run)
        self._tools = await tools if inspect.isawaitable(tools) else tools
        return [
            {"name": name, "description": tool.description, "parameters": tool.parameters}
            for name, tool in self._tools.items()
        ]

    async def use(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Return a tool's result, or its error as text for the model."""
        from trinity_db.explorer.attempt.tools import ToolCall, answer

        return (await answer(ToolCall(name, arguments), self._tools))["content"]

    def call(self, method: str, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a method, and return its result."""
        return getattr(self._environment, method)(*args, **kwargs)

    def reward(self) -> Any:
        """Return the attempt's reward."""
        from trinity_db.explorer.environments.methods import reward_of

        return reward_of(self._environment)

    def close(self) -> Any:
        """Free the instance's resources."""
        environment, self._environment, self._tools = self._environment, None, None
        return environment.close() if hasattr(environment, "close") else None


async def _serve(lines: "SimpleQueue[str]", answers: TextIO) -> None:
    from trinity_db.config.user_functions import describe_error
    from trinity_db.errors import TrinityError

    server = _Handlers()
    while True:
        request = json.loads(lines.get())
        try:
            result = getattr(server, request.pop("do"))(**request)
            if inspect.isawaitable(result):
                result = await result
            line = json.dumps({"result": result}, default=_plain)
        except TrinityError as error:
            line = json.dumps({"error": str(error)})
        except (Exception, SystemExit) as error:  # user code
            line = json.dumps({"error": describe_error(error)})
        answers.write(line + "\n")
        answers.flush()


def _own_pipes() -> tuple[TextIO, TextIO]:
    """Move the pipes to the explorer away from the standard streams, which an environment may use."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return requests, answers


def _read(requests: TextIO, lines: "SimpleQueue[str]") -> None:
    for line in requests:
        lines.put(line)
    # The explorer has exited. Kill the environment's child processes too: they are in this process group.
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _find_project(folder: str) -> None:
    """Make this project importable, without the other packages of the interpreter it is installed for."""
    spec = importlib.util.spec_from_file_location(
        "trinity_db", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["trinity_db"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["trinity_db"])


def _plain(value: Any) -> Any:
    """Convert numpy numbers and arrays to JSON values, anything else to a string."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


if __name__ == "__main__":
    main()
