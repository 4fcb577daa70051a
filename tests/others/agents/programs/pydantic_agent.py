"""The calculator agent with pydantic-ai, whose answer is a model: a forced call, or a format."""

import json
import os
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput


class Answer(BaseModel):
    """The answer to the task."""

    value: int


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


protocol, kind = sys.argv[1:]
output = {"tool": Answer, "native": NativeOutput(Answer), "prompted": PromptedOutput(Answer)}[kind]
agent = Agent(f"{protocol}:policy", output_type=output, tools=[multiply, add])
task = json.loads(os.environ["TRINITY_TASK"])
answer = agent.run_sync(task["prompt"]).output
print("reward:", float(answer.value == 56095))
