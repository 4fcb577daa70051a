"""The calculator agents of smolagents: one calls tools, the other one writes code that does."""

import json
import os
import sys

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool


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
how = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
if "code" in sys.argv:
    kind, model = CodeAgent, OpenAIModel("policy", **how)
else:
    kind, model = ToolCallingAgent, OpenAIModel("policy", **how, tool_choice="auto")
agent = kind([multiply, add], model, stream_outputs="stream" in sys.argv, verbosity_level=0)
said = str(agent.run(task["prompt"]))
print(f"\nreward: {float('56095' in said)}")  # a stream leaves the last line open
