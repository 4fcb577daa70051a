"""Environments behind OpenEnv's WebSocket protocol, asked by a client of our own."""

import json
from collections.abc import Mapping
from typing import Any

from trinity_db.explorer.environments.environment import NotStarted

PROMPT_COLUMNS = ("prompt", "messages", "answer", "seed")


NO_SESSION = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")


class _Unusable(Exception):
    """The policy wrote no action that the server takes."""


class OpenEnv:
    """A session at an OpenEnv server, as a text environment. Each attempt has one.

    Args:
        url: of the server, as http://localhost:8000.
        action: the field of the action that the policy's text goes to. None: the policy writes the whole
            action as JSON.
        observation: the field of the observation that the policy reads. None: all of it, as JSON.
        fields: further fields of each action.
        penalty: what a response costs that should be an action as JSON and is none.
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
        """Begin a session; the server gets the task's columns beside the seed, and takes those that it knows.

        Raises:
            NotStarted: no server answers, or it has no room for a session.
        """
        import aiohttp

        self._session = aiohttp.ClientSession()
        try:
            self._socket = await self._session.ws_connect(f"{self._url}/ws", max_msg_size=0)
        except aiohttp.ClientError as error:
            raise NotStarted(f"{self._url}: {error}") from error
        given = {key: value for key, value in options.items() if key not in PROMPT_COLUMNS}
        came = await self._ask("reset", given | {"seed": seed})
        return self._text(came), {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, Any]]:
        """Act. What is wrong with an action that the policy wrote as JSON is told to it."""
        try:
            came = await self._ask("step", {**self._fields, **self._fields_of(action)})
        except _Unusable as problem:
            return str(problem), 0.0 - self._penalty, False, False, {}
        return self._text(came), float(came.get("reward") or 0.0), bool(came.get("done")), False, {}

    async def close(self) -> None:
        """End the session."""
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
            raise _Unusable(f"The action is no JSON: {error}") from None
        if not isinstance(fields, dict):
            raise _Unusable("The action is no JSON object.")
        return fields

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The server's answer.

        Raises:
            NotStarted: it has no room for a session, or cannot begin one.
            ConnectionError: it has gone.
            RuntimeError: its environment failed.
        """
        import aiohttp

        await self._socket.send_json({"type": kind, "data": data})
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise ConnectionError(f"{self._url}: the server ended the session")
        answer = json.loads(message.data)
        said: Mapping[str, Any] = answer["data"]
        if answer["type"] != "error":
            return said
        if said.get("code") in NO_SESSION:
            raise NotStarted(f"{self._url}: {said.get('message')}")
        if said.get("code") == "VALIDATION_ERROR" and kind == "step" and self._action is None:
            raise _Unusable(f"The action is refused: {_reasons(said)}")
        raise RuntimeError(f"{self._url}: {said.get('code')}: {_reasons(said)}")

    def _text(self, came: Mapping[str, Any]) -> str:
        # Newer servers name `metadata` in each observation, mostly with nothing in it.
        observation = {name: one for name, one in came["observation"].items() if one or name != "metadata"}
        if self._shown is None:
            return json.dumps(observation, ensure_ascii=False)
        if self._shown not in observation:
            known = ", ".join(observation)
            raise ValueError(f"the observation has no field '{self._shown}'; it has: {known}")
        shown = observation[self._shown]
        return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)


def _reasons(said: Mapping[str, Any]) -> str:
    """What a server says is wrong, with the fields that it names."""
    named = [
        f"{'.'.join(map(str, one.get('loc', ())))}: {one.get('msg')}" for one in said.get("errors") or ()
    ]
    return "; ".join(named) or str(said.get("message"))
