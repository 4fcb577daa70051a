"""The calculator agent with langchain, whose agents are graphs of langgraph."""

import json
import os
import sys

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


task = json.loads(os.environ["TRINITY_TASK"])
model = ChatOpenAI(model="policy", streaming="stream" in sys.argv, use_responses_api="responses" in sys.argv)
agent = create_agent(model, tools=[multiply, add], system_prompt="Use the tools.")
result = agent.invoke({"messages": [{"role": "user", "content": task["prompt"]}]})
print("reward:", float("56095" in result["messages"][-1].text))
