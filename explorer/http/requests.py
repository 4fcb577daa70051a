"""Parses requests of programs to the endpoint, and turns errors into responses."""

import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from aiohttp import web

from trinity_db.errors import DatabaseUnavailable, LeaseLost, TrinityError
from trinity_db.explorer.attempt.long_texts import CHARACTERS, work_on
from trinity_db.explorer.engines.engine import EngineFailed, RequestRefused
from trinity_db.explorer.http.dialects.dialect import AgentDialect, Answered, ParsedRequest
from trinity_db.explorer.http.dialects.options import Refused
from trinity_db.io.interruptible_json import parse_json
from trinity_db.models.chat.prompts import PromptTooLong, UntokenizableText
from trinity_db.store.groups import named_rewards

logger = logging.getLogger(__name__)

MAX_BYTES = 16 * 2**20  # per request, for any context size
MIN_MAX_BYTES = 2**20  # lowest limit per request, for small contexts: tools and ignored fields take space too
BYTES_PER_TOKEN = 64  # per token of the context; an escaped token takes up to 30 in JSON
RETRY_COUNT = "x-stainless-retry-count"  # retry number sent by the OpenAI and Anthropic libraries
IDEMPOTENCY_KEY = "Idempotency-Key"

IS_STREAMED = ("stream", "stream_options")  # keys that do not change what is answered

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Complain = Callable[[Refused], dict[str, Any]]
Note = Callable[[web.Request, Refused], None]
"""Takes note of a request that gets an error."""


def guarded(complain: Complain, handler: Handler, note: Note) -> Handler:
    """Wrap a handler so that errors are returned in the format of the request's dialect, and noted."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            if "Origin" in request.headers:  # a web page in a local browser can reach loopback addresses
                raise Refused(403, "Requests from web pages are not allowed.")
            return await handler(request)
        except Exception as error:
            problem = _problem(error)
        note(request, problem)
        headers = {"Retry-After": "1"} if problem.status in (429, 503) else {}
        return web.json_response(complain(problem), status=problem.status, headers=headers)

    return answer


def _problem(error: Exception) -> Refused:
    """Map an error to the response that a program receives."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return Refused(413, f"A request must not exceed {MAX_BYTES // 2**20} MiB.")
    if isinstance(error, PromptTooLong):
        return Refused(400, f"The context is too small: {error}", "context_length_exceeded")
    if isinstance(error, RequestRefused | UntokenizableText | ValueError | TypeError):
        return Refused(400, str(error), "invalid_value")
    if isinstance(error, RecursionError):
        return Refused(400, "The request is nested too deeply.")
    if isinstance(error, web.RequestPayloadError):
        return Refused(400, "The body cannot be read: wrong Content-Encoding, or truncated.")
    if isinstance(error, LeaseLost):
        return Refused(403, str(error))
    if isinstance(error, EngineFailed | DatabaseUnavailable):
        return Refused(503, str(error))
    if isinstance(error, TrinityError):
        return Refused(500, str(error))
    logger.error("a call failed", exc_info=error)
    return Refused(500, f"{type(error).__name__}: {error}")


async def body_of(request: web.Request, context: int = 0) -> bytes:
    """Read the body of a request, limited by the size of the policy's context, if given.

    Parsing blocks the event loop for about 40 ms per MiB, so bodies that cannot fit are rejected first.

    Raises:
        Refused: if it is too long.
    """
    limit = min(MAX_BYTES, max(MIN_MAX_BYTES, BYTES_PER_TOKEN * context))
    body = b"" if (request.content_length or 0) > limit else await request.read()
    size = max(request.content_length or 0, len(body))
    if size <= limit:
        return body
    if not context:
        raise Refused(413, f"A request of {size} bytes is too long: the limit is {limit}.")
    problem = f"{size} bytes do not fit a context of {context} tokens, whose limit is {limit} bytes."
    raise Refused(400, problem, "context_length_exceeded")


def parsed(body: bytes) -> dict[str, Any]:
    try:
        value = parse_json(body, _refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The request is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refused(400, "The request must be a JSON object.")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def key_of(request: web.Request) -> str:
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    return (key if kind.lower() == "bearer" else request.headers.get("x-api-key", "")).strip()


def rewards_in(body: bytes) -> dict[str, float]:
    """Parse a reward: a number, or an object of numbers by name.

    Raises:
        Refused: if it is anything else.
    """
    try:
        rewards = named_rewards(parse_json(body))
    except (ValueError, TypeError, RecursionError) as error:
        raise Refused(400, f"A reward must be a number, or an object of numbers by name: {error}") from None
    if not rewards:
        raise Refused(400, "A reward must be a number, or an object of numbers by name.")
    return rewards


def digest_of(request: web.Request, body: dict[str, Any]) -> bytes:
    """Return a digest that repetitions of a request share. A client that lost a stream may repeat it without
    streaming, and may write the keys of an object in another order, as Codex does."""
    kept = {key: value for key, value in body.items() if key not in IS_STREAMED}
    text = json.dumps(kept, sort_keys=True)
    parts = request.path, request.headers.get(IDEMPOTENCY_KEY, ""), text
    return blake2b("\x00".join(parts).encode(errors="surrogateescape"), digest_size=16).digest()


def retry_of(request: web.Request) -> int | None:
    """Return a request's retry number, as `Agent.answering` takes it."""
    if IDEMPOTENCY_KEY in request.headers:
        return None
    count = request.headers.get(RETRY_COUNT, "0")
    return int(count) if count.isdecimal() else 0


async def write(
    dialect: AgentDialect, question: ParsedRequest, answered: Answered, size: int
) -> web.Response:
    """Return the answer as one object. `size` is the request's size, parts of which some protocols repeat."""

    def written() -> str:
        return json.dumps(dialect.write(question, answered))

    return web.json_response(text=await work_on(_characters(answered, size), written))


async def stream(
    request: web.Request, dialect: AgentDialect, question: ParsedRequest, answered: Answered, size: int
) -> web.StreamResponse:
    """Send the answer as a stream. `size` is the request's size in bytes.

    All events are encoded before the headers are sent, so that an error still has a status of its own.
    """

    def written() -> list[bytes]:
        return [event.encode() for event in dialect.events(question, answered)]

    events = await work_on(_characters(answered, size), written)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    with suppress(ConnectionError):  # the program has disconnected; its retry gets the same answer
        await response.prepare(request)
        for event in events:
            await response.write(event)
        await response.write_eof()
    return response


def _characters(answered: Answered, size: int) -> int:
    return size + CHARACTERS * (len(answered.prompt_ids) + len(answered.token_ids))
