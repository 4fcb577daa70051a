"""An agent with claude-agent-sdk, which starts the command line `claude`."""

import asyncio
import sys

from claude_agent_sdk import ClaudeAgentOptions, query


async def main():
    options = ClaudeAgentOptions(model="policy", allowed_tools=["Bash"])
    async for message in query(prompt=sys.argv[1], options=options):
        print(message)


asyncio.run(main())
