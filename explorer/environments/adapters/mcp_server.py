"""The tools of an MCP server, which each attempt starts as a program and asks over its standard pipes."""

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
from trinity_db.explorer.environments.environment import NotStarted
from trinity_db.explorer.tools import Tool

PROTOCOL = "2025-06-18"  # the server may answer with another version that it speaks
LINE_BYTES = 2**26  # of an answer
UNKNOWN_METHOD = -32601  # of JSON-RPC


class MCPServer:
    """The tools of a server. It gives no rewards; reward functions judge, or a subclass with `get_reward`.

    Args:
        command: what starts the server: a line as in a shell, or a program and its arguments.
        env: environment variables of the server, beside those of the explorer.
    """

    def __init__(self, *, command: str | Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        self._env = os.environ | (env or {})
        self._process: Process | None = None
        self._asked = 0

    async def reset(self, **task: Any) -> None:
        """Start the server.

        Raises:
            NotStarted: there is no such program, or it does not speak the protocol.
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
        """What the server offers, by name."""
        listed: list[Mapping[str, Any]] = []
        came = await self._ask("tools/list")
        listed += came["tools"]
        while came.get("nextCursor"):
            came = await self._ask("tools/list", cursor=came["nextCursor"])
            listed += came["tools"]
        return {
            one["name"]: Tool(
                one["name"], self._called(one["name"]), one.get("description") or "", one["inputSchema"]
            )
            for one in listed
        }

    async def close(self) -> None:
        """End the server, and what it started."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    def _called(self, name: str) -> Callable[..., Any]:
        async def call(**arguments: Any) -> str:
            try:
                came = await self._ask("tools/call", name=name, arguments=arguments)
            except _Refused as error:  # such as missing arguments: the model reads it
                return f"Error: {error}"
            said = "\n".join(one.get("text") or f"[{one['type']}]" for one in came.get("content") or ())
            return f"Error: {said}" if came.get("isError") else said

        return call

    async def _ask(self, method: str, **given: Any) -> Any:
        """The server's result.

        Raises:
            _Refused: it says that it cannot.
            ConnectionError: it has ended.
        """
        self._asked += 1
        await self._write({"id": self._asked, "method": method, "params": given})
        while True:
            message = await self._read()
            if "method" in message:
                if "id" in message:  # the server asks for what a client may offer, and this one does not
                    refused = {"code": UNKNOWN_METHOD, "message": "not offered"}
                    await self._write({"id": message["id"], "error": refused})
            elif message.get("id") == self._asked:  # not the answer to a call that took too long
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
            raise ConnectionError(f"the server ended with status {await self._process.wait()}")
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
    """The server cannot do what it is asked for."""
