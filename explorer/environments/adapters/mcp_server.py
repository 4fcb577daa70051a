"""The tools of an MCP server, which each attempt starts as a program and uses over its standard streams."""

import asyncio
import json
import os
import shlex
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import trinity_db
from trinity_db.explorer.attempt.tools import Tool
from trinity_db.explorer.environments.environment import NotStarted

PROTOCOL = "2025-06-18"  # the server may respond with another version that it supports
LINE_BYTES = 2**26  # maximum size of a response
UNKNOWN_METHOD = -32601  # JSON-RPC error code


class MCPServer:
    """The tools of a server. It reports no rewards: use reward functions, or a subclass with `get_reward`.

    Args:
        command: starts the server: a command line, or a program and its arguments.
        env: environment variables of the server, in addition to those of the explorer.
    """

    def __init__(self, *, command: str | Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        self._env = os.environ | (env or {})
        self._process: Process | None = None
        self._asked = 0

    async def reset(self, **task: Any) -> None:
        """Start the server.

        Raises:
            NotStarted: if the program does not exist, or does not speak the protocol.
        """
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                env=self._env,
                limit=LINE_BYTES,
                start_new_session=True,
            )
            await self._ask(
                "initialize",
                protocolVersion=PROTOCOL,
                capabilities={},
                clientInfo={"name": "trinity-db", "version": trinity_db.__version__},
            )
        except (OSError, RuntimeError) as error:
            raise NotStarted(f"{shlex.join(self._command)}: {error}") from error
        await self._write({"method": "notifications/initialized"})

    async def list_tools(self) -> dict[str, Tool]:
        """Return the server's tools, by name."""
        listed: list[Mapping[str, Any]] = []
        page = await self._ask("tools/list")
        listed += page["tools"]
        while page.get("nextCursor"):
            page = await self._ask("tools/list", cursor=page["nextCursor"])
            listed += page["tools"]
        return {
            tool["name"]: Tool(
                tool["name"], self._called(tool["name"]), tool.get("description") or "", tool["inputSchema"]
            )
            for tool in listed
        }

    async def close(self) -> None:
        """Kill the server and its child processes."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    def _called(self, name: str) -> Callable[..., Any]:
        async def call(**arguments: Any) -> str:
            try:
                result = await self._ask("tools/call", name=name, arguments=arguments)
            except _Refused as error:  # such as missing arguments; returned to the model
                return f"Error: {error}"
            text = "\n".join(part.get("text") or f"[{part['type']}]" for part in result.get("content") or ())
            return f"Error: {text}" if result.get("isError") else text

        return call

    async def _ask(self, method: str, **parameters: Any) -> Any:
        """Send a request and return the server's result.

        Raises:
            _Refused: if the server returns an error.
            ConnectionError: if it has exited.
        """
        self._asked += 1
        await self._write({"id": self._asked, "method": method, "params": parameters})
        while True:
            message = await self._read()
            if "method" in message:
                if "id" in message:  # the server requests an optional client feature, which we lack
                    refused = {"code": UNKNOWN_METHOD, "message": "not offered"}
                    await self._write({"id": message["id"], "error": refused})
            elif message.get("id") == self._asked:  # skip late responses to calls that timed out
                if "error" in message:
                    raise _Refused(message["error"].get("message", "unknown error"))
                return message["result"]

    async def _write(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        await self._process.stdin.drain()

    async def _read(self) -> Mapping[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError(f"the server exited with status {await self._process.wait()}")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise RuntimeError(
                f"the server does not speak MCP; it wrote: {line[:80].decode(errors='replace')}"
            )
        return message


class _Refused(RuntimeError):
    """The server returned an error."""
