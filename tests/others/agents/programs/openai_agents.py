"""The calculator agent with openai-agents, which asks for responses unless it is told otherwise."""

import asyncio
import json
import os
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main():
    task = json.loads(os.environ["TRINITY_TASK"])
    agent = Agent("calculator", instructions="Use the tools.", tools=[multiply, add], model="policy")
    if "stream" not in sys.argv:
        return (await Runner.run(agent, task["prompt"])).final_output
    result = Runner.run_streamed(agent, task["prompt"])
    async for _ in result.stream_events():
        pass
    return result.final_output


if "chat" in sys.argv:
    set_default_openai_api("chat_completions")
print("reward:", float("56095" in asyncio.run(main())))
