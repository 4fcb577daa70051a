"""The calculator agent with crewai: a crew of one."""

import json
import os

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("multiply")
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@tool("add")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


task = json.loads(os.environ["TRINITY_TASK"])
model = LLM(model="openai/policy", base_url=os.environ["OPENAI_BASE_URL"])
agent = Agent(
    role="calculator", goal="Calculate.", backstory="You use tools.", tools=[multiply, add], llm=model
)
work = Task(description=task["prompt"], expected_output="a number", agent=agent)
print("\nreward:", float("56095" in str(Crew(agents=[agent], tasks=[work]).kickoff())))
