"""The recording endpoint: an HTTP server in the explorer's event loop. It answers programs by their policies.

The key of a request names the attempt. A request is sampled whole, the call is stored, and then it is
answered, as one object or replayed as a stream.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any

from aiohttp import web

from trinity_db.errors import DatabaseUnavailable, LeaseLost, TrinityError
from trinity_db.explorer.engines.engine import EngineFailed
from trinity_db.explorer.policy import Policy
from trinity_db.explorer.recording.agents import Agent
from trinity_db.explorer.recording.dialects import DIALECTS
from trinity_db.explorer.recording.dialects.dialect import Answered, Asked, Dialect, Refused, openai_error
from trinity_db.explorer.recording.log import CallLog
from trinity_db.prompts import PromptTooLong, UntokenizableText
from trinity_db.store.groups import ClaimedGroup

logger = logging.getLogger(__name__)

MAX_BYTES = 64 * 2**20  # of a request: a conversation of some ten million tokens
KEY_BYTES = 24  # of randomness in a key
RETRY_COUNT = "x-stainless-retry-count"  # how often the OpenAI and Anthropic libraries repeated a request
IDEMPOTENCY_KEY = "Idempotency-Key"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint:
    """Answers the agents of one explorer.

    Args:
        model: the name under which the policy is listed.
    """

    def __init__(self, log: CallLog, model: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self._log = log
        self._model = model
        self._host = host
        self._port = port
        self._agents: dict[str, Agent] = {}
        """By key."""
        self._runner: web.AppRunner | None = None
        self._starting = asyncio.Lock()

    async def open(self, group: ClaimedGroup, member: int, retry: int, policy: Policy) -> Agent:
        """Let a program ask a policy, by a key of its own.

        Raises:
            LeaseLost: another explorer has the group by now.
        """
        await self.start()
        key = f"trinity-{secrets.token_urlsafe(KEY_BYTES)}"
        id = await self._log.begin(group, member, retry, key)
        agent = Agent(id, key, self.url, policy, self._log, lambda: self._forget(key))
        self._agents[key] = agent
        return agent

    @property
    def url(self) -> str:
        """The base URL, without /v1."""
        assert self._runner is not None
        host, port = self._runner.addresses[0][:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        """Listen, unless it does.

        Raises:
            TrinityError: the address is taken.
        """
        async with self._starting:
            if self._runner is not None:
                return
            runner = web.AppRunner(self._application(), access_log=None)
            await runner.setup()
            try:
                await web.TCPSite(runner, self._host, self._port).start()
            except OSError as error:
                await runner.cleanup()
                raise TrinityError(
                    f"The recording endpoint cannot listen on {self._host}:{self._port}: {error.strerror}"
                ) from error
            self._runner = runner

    async def stop(self) -> None:
        """Listen no more, and end all connections."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _forget(self, key: str) -> None:
        self._agents.pop(key, None)

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=MAX_BYTES)
        for dialect in DIALECTS:
            application.router.add_post(dialect.path, _guarded(dialect.complain, self._answers(dialect)))
        application.router.add_get("/v1/models", _guarded(openai_error, self._models))
        return application

    def _answers(self, dialect: Dialect) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            agent = self._agent(request)
            body = await request.read()
            asked = dialect.read(_parsed(body))
            answered = await agent.answer(asked, _digest(request, body), _retry(request))
            if asked.is_streamed:
                return await _stream(request, dialect, asked, answered)
            return web.json_response(dialect.write(asked, answered))

        return answer

    async def _models(self, request: web.Request) -> web.Response:
        self._agent(request)
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "trinity-db"}
        return web.json_response({"object": "list", "data": [model]})

    def _agent(self, request: web.Request) -> Agent:
        """The agent whose key a request has.

        Raises:
            Refused: no attempt that is under way has it.
        """
        kind, _, key = request.headers.get("Authorization", "").partition(" ")
        key = key if kind.lower() == "bearer" else request.headers.get("x-api-key", "")
        agent = self._agents.get(key.strip())
        if agent is None:
            raise Refused(
                401,
                "The API key names no attempt that is under way: it is unknown, or the attempt has ended.",
                "invalid_api_key",
            )
        return agent


def _guarded(complain: Callable[[Refused], dict[str, Any]], handler: Handler) -> Handler:
    """The handler, with what goes wrong told in the dialect of the request."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            problem = Refused(413, f"A request has at most {MAX_BYTES // 2**20} MiB.")
        except web.HTTPException:
            raise
        except Exception as error:
            problem = _problem(error)
        return web.json_response(complain(problem), status=problem.status)

    return guarded


def _problem(error: Exception) -> Refused:
    """What a program is told of an error."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, PromptTooLong):
        return Refused(400, f"The context is too small: {error}", "context_length_exceeded")
    if isinstance(error, UntokenizableText | ValueError | TypeError):
        return Refused(400, str(error), "invalid_value")
    if isinstance(error, LeaseLost):
        return Refused(403, str(error))
    if isinstance(error, EngineFailed | DatabaseUnavailable):
        return Refused(503, str(error))
    logger.error("a call was not answered", exc_info=error)
    return Refused(500, f"{type(error).__name__}: {error}")


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The request is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refused(400, "The request must be a JSON object.")
    return value


def _digest(request: web.Request, body: bytes) -> bytes:
    parts = request.path.encode(), request.headers.get(IDEMPOTENCY_KEY, "").encode(), body
    return blake2b(b"\x00".join(parts), digest_size=16).digest()


def _retry(request: web.Request) -> int | None:
    """Which repetition of a request it is, as `Agent.answer` takes it."""
    if IDEMPOTENCY_KEY in request.headers:
        return None
    count = request.headers.get(RETRY_COUNT, "0")
    return int(count) if count.isdecimal() else 0


async def _stream(
    request: web.Request, dialect: Dialect, asked: Asked, answered: Answered
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for event in dialect.events(asked, answered):
        await response.write(event.encode())
    await response.write_eof()
    return response
