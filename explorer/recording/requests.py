"""Requests of programs as the endpoint reads them, and what programs are told of errors."""

import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from aiohttp import web

from trinity_db.errors import DatabaseUnavailable, LeaseLost, TrinityError
from trinity_db.explorer.engines.engine import EngineFailed
from trinity_db.explorer.long_texts import CHARACTERS, work_on
from trinity_db.explorer.recording.dialects.dialect import Answered, Asked, Dialect, Refused
from trinity_db.interruptible_json import parse_json
from trinity_db.prompts import PromptTooLong, UntokenizableText
from trinity_db.store.groups import named_rewards

logger = logging.getLogger(__name__)

MAX_BYTES = 16 * 2**20  # of a request, whatever the context
MIN_MAX_BYTES = 2**20  # of a request, also for a small context: tools and what is ignored take some
BYTES_PER_TOKEN = 64  # of the context; a token that JSON escapes takes up to some 30
RETRY_COUNT = "x-stainless-retry-count"  # how often the OpenAI and Anthropic libraries repeated a request
IDEMPOTENCY_KEY = "Idempotency-Key"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def guarded(complain: Callable[[Refused], dict[str, Any]], handler: Handler) -> Handler:
    """The handler, with what goes wrong told in the dialect of the request."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            if "Origin" in request.headers:  # a page in a browser on this machine reaches loopback addresses
                raise Refused(403, "Web pages are not answered.")
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            problem = Refused(413, f"A request has at most {MAX_BYTES // 2**20} MiB.")
        except web.HTTPException:
            raise
        except Exception as error:
            problem = _problem(error)
        headers = {"Retry-After": "1"} if problem.status in (429, 503) else {}
        return web.json_response(complain(problem), status=problem.status, headers=headers)

    return answer


def _problem(error: Exception) -> Refused:
    """What a program is told of an error."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, PromptTooLong):
        return Refused(400, f"The context is too small: {error}", "context_length_exceeded")
    if isinstance(error, UntokenizableText | ValueError | TypeError):
        return Refused(400, str(error), "invalid_value")
    if isinstance(error, web.RequestPayloadError):
        return Refused(400, "The body cannot be read: it is not in its Content-Encoding, or breaks off.")
    if isinstance(error, LeaseLost):
        return Refused(403, str(error))
    if isinstance(error, EngineFailed | DatabaseUnavailable):
        return Refused(503, str(error))
    if isinstance(error, TrinityError):
        return Refused(500, str(error))
    logger.error("a call was not answered", exc_info=error)
    return Refused(500, f"{type(error).__name__}: {error}")


async def body_of(request: web.Request, context: int = 0) -> bytes:
    """The body of a request to a policy with a context of so many tokens, or of one without tokens.

    Parsing stops the event loop for some 40 ms a MiB, so what cannot fit is refused before.

    Raises:
        Refused: it is too long.
    """
    limit = min(MAX_BYTES, max(MIN_MAX_BYTES, BYTES_PER_TOKEN * context))
    body = b"" if (request.content_length or 0) > limit else await request.read()
    size = max(request.content_length or 0, len(body))
    if size <= limit:
        return body
    if not context:
        raise Refused(413, f"A request of {size} bytes is too long: at most {limit} are read.")
    problem = f"{size} bytes do not fit a context of {context} tokens, for which at most {limit} are read."
    raise Refused(400, problem, "context_length_exceeded")


def parsed(body: bytes) -> dict[str, Any]:
    try:
        value = parse_json(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The request is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refused(400, "The request must be a JSON object.")
    return value


def key_of(request: web.Request) -> str:
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    return (key if kind.lower() == "bearer" else request.headers.get("x-api-key", "")).strip()


def rewards_in(body: bytes) -> dict[str, float]:
    """A number, or several by name.

    Raises:
        Refused: they are something else.
    """
    try:
        rewards = named_rewards(parse_json(body))
    except (ValueError, TypeError, RecursionError) as error:
        raise Refused(400, f"A reward is a number, or an object of numbers by name: {error}") from None
    if not rewards:
        raise Refused(400, "A reward is a number, or an object of numbers by name.")
    return rewards


def digest_of(request: web.Request, body: bytes) -> bytes:
    parts = request.path.encode(), request.headers.get(IDEMPOTENCY_KEY, "").encode(), body
    return blake2b(b"\x00".join(parts), digest_size=16).digest()


def retry_of(request: web.Request) -> int | None:
    """Which repetition of a request it is, as `Agent.answer` takes it."""
    if IDEMPOTENCY_KEY in request.headers:
        return None
    count = request.headers.get(RETRY_COUNT, "0")
    return int(count) if count.isdecimal() else 0


async def write(dialect: Dialect, asked: Asked, answered: Answered, size: int) -> web.Response:
    """The answer as one object, to a request of so many bytes: some protocols repeat parts of it."""

    def written() -> str:
        return json.dumps(dialect.write(asked, answered))

    return web.json_response(text=await work_on(_characters(answered, size), written))


async def stream(
    request: web.Request, dialect: Dialect, asked: Asked, answered: Answered, size: int
) -> web.StreamResponse:
    """The answer as a stream, to a request of so many bytes."""
    events = await work_on(_characters(answered, size), lambda: [*dialect.events(asked, answered)])
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    with suppress(ConnectionError):  # the program has left; its repetition gets the same answer
        await response.prepare(request)
        for event in events:
            await response.write(event.encode())
        await response.write_eof()
    return response


def _characters(answered: Answered, size: int) -> int:
    return size + CHARACTERS * (len(answered.prompt_ids) + len(answered.token_ids))
