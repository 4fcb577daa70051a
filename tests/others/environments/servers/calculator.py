"""An MCP server, made with the package itself."""

import os

from mcp.server.mcpserver import MCPServer

server = MCPServer("calculator")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    if a == 666:
        os._exit(3)
    return a + b


@server.tool()
def divide(a: float, b: float) -> float:
    """Divide a number by another."""
    return a / b


if __name__ == "__main__":
    server.run("stdio")
