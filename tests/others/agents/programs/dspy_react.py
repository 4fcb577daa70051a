"""The calculator agent with dspy, which asks for fields of a text."""

import json
import os

import dspy


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


lm = dspy.LM("openai/policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
task = json.loads(os.environ["TRINITY_TASK"])
with dspy.context(lm=lm):
    answer = dspy.ReAct("question -> answer: int", tools=[multiply, add])(question=task["prompt"]).answer
print("reward:", float(answer == 56095))
