"""The calculator agent with agentscope."""

import asyncio
import json
import os

from agentscope.agent import Agent
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.tool import FunctionTool, Toolkit


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main():
    credential = OpenAICredential(
        api_key=os.environ["OPENAI_API_KEY"], base_url=os.environ["OPENAI_BASE_URL"]
    )
    model = OpenAIChatModel(credential, "policy")
    toolkit = Toolkit(tools=[FunctionTool(multiply, is_read_only=True), FunctionTool(add, is_read_only=True)])
    agent = Agent("calculator", "Use the tools.", model, toolkit)
    task = json.loads(os.environ["TRINITY_TASK"])
    return await agent.reply(UserMsg("user", task["prompt"]))


said = asyncio.run(main())
print("reward:", float("56095" in said.get_text_content()))
