"""The tools of an MCP server that is made with the package itself."""

import json
from pathlib import Path
from typing import Any

from tests.others.environments.conftest import PYTHON, attempted, played

SERVER = {"name": "mcp", "command": [PYTHON, str(Path(__file__).parent / "servers" / "calculator.py")]}
TASK = {"messages": [{"role": "user", "content": "What is 6 / 4?"}]}


def call(tool: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


def test_the_tools_of_a_server_are_called_and_what_is_wrong_is_told_to_the_model() -> None:
    says = [
        call("divide", a=6, b=4),
        call("divide", a=6, b=0),
        call("divide", a="six", b=4),
        call("add", a=1),
        "1.5",
    ]
    made = played(SERVER, *says, task=TASK)
    [step] = made.steps
    assert step.response.count("Error: ") == 3
    assert "1.5" in step.response.partition("<tool>")[2].partition("<")[0]
    assert step.reward is None


def test_a_server_that_does_not_start_is_not_the_tasks_fault() -> None:
    for command, error in (
        ("no-such-program --at all", "NotStarted: no-such-program --at all: [Errno 2]"),
        (f"{PYTHON} -c pass", "the server exited with status 0"),
        (f"{PYTHON} -c print(1)", "the server does not speak MCP; it wrote: 1"),
    ):
        assert error in str(attempted({"name": "mcp", "command": command}, "1.5", task=TASK).error)


def test_a_server_that_ends_is_told_to_the_model() -> None:
    made = played(SERVER, call("add", a=666, b=1), call("add", a=1, b=1), "Oh.", task=TASK)
    assert "Error: ConnectionError: the server exited with status 3" in made.steps[0].response
