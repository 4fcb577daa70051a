"""The calculator agent with inspect-ai, which ends by its tool `submit`."""

import json
import os

from inspect_ai import Task, eval
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.tool import tool


@tool
def multiply():
    async def execute(a: int, b: int):
        """Multiply two numbers.

        Args:
            a: the first number.
            b: the second number.
        """
        return a * b

    return execute


@tool
def add():
    async def execute(a: int, b: int):
        """Add two numbers.

        Args:
            a: the first number.
            b: the second number.
        """
        return a + b

    return execute


prompt = json.loads(os.environ["TRINITY_TASK"])["prompt"]
solver = react(tools=[multiply(), add()])
[log] = eval(
    Task([Sample(prompt, target="56095")], solver=solver, scorer=match()),
    model="openai/policy",
    display="none",
)
print("reward:", float(log.samples[0].scores["match"].value == "C"))
