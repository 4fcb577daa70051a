"""The calculator agent with smolagents."""

import json
import os
import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: the first number.
        b: the second number.
    """
    return a * b


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first number.
        b: the second number.
    """
    return a + b


task = json.loads(os.environ["TRINITY_TASK"])
model = OpenAIModel(
    "policy",
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    tool_choice="auto",
)
agent = ToolCallingAgent([multiply, add], model, stream_outputs="stream" in sys.argv, verbosity_level=0)
said = str(agent.run(task["prompt"]))
print(f"\n{float('56095' in said)}")  # a stream leaves the last line open
