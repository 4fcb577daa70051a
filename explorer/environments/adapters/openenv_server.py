"""Environments behind OpenEnv's WebSocket protocol, with a client of this project."""

import json
from collections.abc import Mapping
from typing import Any

from trinity_db.explorer.environments.environment import NotStarted

PROMPT_COLUMNS = ("prompt", "messages", "answer", "seed")


NO_SESSION = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")


class _Unusable(Exception):
    """The policy's action is not valid for the server."""


class OpenEnv:
    """A session on an OpenEnv server, as a text environment. Each attempt has its own session.

    Args:
        url: the server's URL, such as http://localhost:8000.
        action: field of the action that receives the policy's text. None: the policy writes the whole action
            as JSON.
        observation: field of the observation that is shown to the policy. None: all of it, as JSON.
        fields: additional fields of each action.
        penalty: cost of a response that is not a valid JSON action.
    """

    def __init__(
        self,
        *,
        url: str,
        action: str | None = None,
        observation: str | None = None,
        fields: Mapping[str, Any] | None = None,
        penalty: float = 0.0,
    ) -> None:
        self._url = url.rstrip("/")
        self._action = action
        self._shown = observation
        self._fields = dict(fields or {})
        self._penalty = penalty
        self._session: Any = None
        self._socket: Any = None

    async def reset(self, *, seed: int, options: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Start a session. The server gets the seed and the task's columns, and uses the supported ones.

        Raises:
            NotStarted: if no server responds, or it has no free session.
        """
        import aiohttp

        self._session = aiohttp.ClientSession()
        try:
            self._socket = await self._session.ws_connect(f"{self._url}/ws", max_msg_size=0)
        except aiohttp.ClientError as error:
            raise NotStarted(f"{self._url}: {error}") from error
        columns = {key: value for key, value in options.items() if key not in PROMPT_COLUMNS}
        reply = await self._ask("reset", columns | {"seed": seed})
        return self._text(reply), {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, Any]]:
        """Act. Errors of an action that the policy wrote as JSON are shown to it."""
        try:
            reply = await self._ask("step", {**self._fields, **self._fields_of(action)})
        except _Unusable as problem:
            return str(problem), 0.0 - self._penalty, False, False, {}
        return self._text(reply), float(reply.get("reward") or 0.0), bool(reply.get("done")), False, {}

    async def close(self) -> None:
        """Close the session."""
        if self._socket is not None and not self._socket.closed:
            await self._socket.send_json({"type": "close"})
            await self._socket.close()
        if self._session is not None:
            await self._session.close()

    def _fields_of(self, action: str) -> Mapping[str, Any]:
        if self._action is not None:
            return {self._action: action}
        try:
            fields = json.loads(action)
        except ValueError as error:
            raise _Unusable(f"The action is not valid JSON: {error}") from None
        if not isinstance(fields, dict):
            raise _Unusable("The action is not a JSON object.")
        return fields

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request and return the server's response.

        Raises:
            NotStarted: if it has no free session, or cannot start one.
            ConnectionError: if it closed the session.
            RuntimeError: if its environment failed.
        """
        import aiohttp

        await self._socket.send_json({"type": kind, "data": data})
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise ConnectionError(f"{self._url}: the server closed the session")
        answer = json.loads(message.data)
        content: Mapping[str, Any] = answer["data"]
        if answer["type"] != "error":
            return content
        if content.get("code") in NO_SESSION:
            raise NotStarted(f"{self._url}: {content.get('message')}")
        if content.get("code") == "VALIDATION_ERROR" and kind == "step" and self._action is None:
            raise _Unusable(f"The action was rejected: {_reasons(content)}")
        raise RuntimeError(f"{self._url}: {content.get('code')}: {_reasons(content)}")

    def _text(self, reply: Mapping[str, Any]) -> str:
        # Newer servers include `metadata` in each observation, mostly empty.
        observation = {
            name: value for name, value in reply["observation"].items() if value or name != "metadata"
        }
        if self._shown is None:
            return json.dumps(observation, ensure_ascii=False)
        if self._shown not in observation:
            known = ", ".join(observation)
            raise ValueError(f"the observation has no field '{self._shown}'; it has: {known}")
        shown = observation[self._shown]
        return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)


def _reasons(error: Mapping[str, Any]) -> str:
    """Return a server's error message, with the fields that it names."""
    named = [
        f"{'.'.join(map(str, field.get('loc', ())))}: {field.get('msg')}"
        for field in error.get("errors") or ()
    ]
    return "; ".join(named) or str(error.get("message"))
