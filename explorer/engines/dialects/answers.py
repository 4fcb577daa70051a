"""Sending HTTP requests and parsing responses: the common parts of the dialects."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import aiohttp

from trinity_db.explorer.engines.dialects.dialect import (
    CONNECT_SECONDS,
    ServerUnavailable,
    ServerUnusable,
)
from trinity_db.explorer.engines.engine import Completion, Request, RequestFailed, RequestRefused
from trinity_db.models.chat.prompts import PromptTooLong

ANSWER_SECONDS = 30.0  # timeout of fast routes; a server that exceeds it hangs
NO_LOGPROB = -9999.0  # written by vLLM for minus infinity and NaN
ROUNDING = 1e-3  # how much a log-probability may exceed 0
SEEDS = 2**31  # servers store seeds in integers of 32 or 64 bits
MESSAGE = 200  # maximum length of a server's error message

NEVER_A_POLICY = "such a server can be used as a judge or a teacher, but not as a policy"

AT_ONCE = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
_TOO_LONG = re.compile(r"context length|context window|maximum model length|longer than the max")
"""Error messages of servers for a prompt that does not fit."""


def sampling_options(request: Request, end_tokens: Collection[int]) -> dict[str, Any]:
    """Return the options that have the same names on both kinds of servers.

    Every option is set explicitly: servers take missing ones from the model's generation settings.
    """
    return {
        "temperature": request.temperature,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": sorted(end_tokens),
        "stop": [*request.stop],
        "skip_special_tokens": False,  # since a stop string may be one
    }


async def ask(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    route: str,
    hints: Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """Send a request to a route, and return its response parsed as JSON; None if it is empty."""
    try:
        async with session.request(method, url + route, allow_redirects=False, **options) as answer:
            status, body = answer.status, await answer.read()
    except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
        raise ServerUnavailable(f"{url}: {one_line(str(error)) or type(error).__name__}") from error
    if status == 200:
        try:
            return json.loads(body) if body.strip() else None
        except ValueError as error:
            raise ServerUnusable(f"{url}{route}: the response is not JSON") from error
    message = f"{url}{route}: HTTP {status}: {_message(body)}"
    if status >= 500 or status in (408, 425, 429):
        raise ServerUnavailable(message)
    if status in (400, 413, 422):
        raise (PromptTooLong if _TOO_LONG.search(message) else RequestRefused)(message)
    if status in (401, 403, 404, 405) and hints and route in hints:
        message += f" ({hints[route]}, or check the key)"
    raise ServerUnusable(message)


def _message(body: bytes) -> str:
    """Extract a server's error message, in one of the usual formats."""
    text = body.decode(errors="replace")
    try:
        form = json.loads(text)
    except ValueError:
        return one_line(text)
    for key in ("error", "message", "detail"):
        if isinstance(form, dict) and key in form:
            form = form[key]
    return one_line(form if isinstance(form, str) else json.dumps(form))


def one_line(text: str) -> str:
    return " ".join(text.split())[:MESSAGE]


def field(url: str, answer: Any, *path: str | int) -> Any:
    """Return a field of a response, by keys and indices."""
    value = answer
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            names = ".".join(map(str, path))
            raise ServerUnusable(f"{url}: its response has no {names}; is this another server?") from error
    return value


def check_confirmed(url: str, label: str, version: int) -> None:
    if label != str(version):
        raise ServerUnavailable(f"{url}: was asked to load version {version}, but reports {label!r}")


def completion(
    url: str, token_ids: Any, logprobs: Sequence[Any], spans: Any, finish_reason: str | None
) -> Completion:
    """Convert a response to a `Completion`."""
    if not isinstance(token_ids, list) or not all(type(token) is int for token in token_ids):
        raise ServerUnusable(f"{url}: responds without token ids; {NEVER_A_POLICY}")
    if finish_reason in ("abort", "error", None) or not token_ids:
        raise ServerUnavailable(f"{url}: aborted the response ({finish_reason or 'no finish reason'})")
    reason: Literal["stop", "length"]
    if finish_reason == "stop":
        reason = "stop"
    elif finish_reason == "length":
        reason = "length"
    else:
        raise ServerUnusable(f"{url}: returned finish reason {finish_reason!r}, neither stop nor length")
    if len(logprobs) != len(token_ids) or not all(type(logprob) in (int, float) for logprob in logprobs):
        raise ServerUnusable(f"{url}: responds without the log-probability of each token; {NEVER_A_POLICY}")
    check_numbers(url, logprobs)
    return Completion(token_ids, [*logprobs], _versions(url, spans, len(token_ids)), reason)


def check_numbers(url: str, logprobs: Sequence[float]) -> None:
    garbled = [logprob for logprob in logprobs if not NO_LOGPROB < logprob <= ROUNDING]  # also NaN
    if garbled:
        raise RequestFailed(f"{url}: returned the log-probability {garbled[0]}; its weights are garbled")


def scored(url: str, logprobs: list[Any], token_ids: Sequence[int]) -> list[float]:
    """Return the log-probabilities of all tokens except the first, after checking their number and type."""
    if len(logprobs) != len(token_ids) - 1 or not all(type(logprob) in (int, float) for logprob in logprobs):
        raise ServerUnusable(f"{url}: does not return the log-probability of each token of a prompt")
    return logprobs


def _versions(url: str, spans: Any, length: int) -> list[int]:
    """Return the version of each token, from the spans of tokens that each version sampled."""
    if not spans:
        raise ServerUnusable(f"{url}: responds without the version of each token; {NEVER_A_POLICY}")
    versions: list[int] = []
    for span in spans:
        label = str(field(url, span, "version"))
        if not (label.isascii() and label.isdecimal()):
            # A later load may label the weights with a number.
            raise ServerUnavailable(
                f"{url}: sampled with version {label!r}, which is not an integer; {NEVER_A_POLICY}"
            )
        start, end = field(url, span, "start"), field(url, span, "end")
        if start != len(versions) or not isinstance(end, int):
            break
        versions += [int(label)] * (end - start)
    if len(versions) != length:
        raise ServerUnusable(f"{url}: returned versions of {len(versions)} tokens, but {length} tokens")
    return versions
