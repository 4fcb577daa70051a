"""Asking a server over HTTP and reading its answer: what both kinds of servers have in common."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import aiohttp

from trinity_db.explorer.engines.dialects.dialect import (
    CONNECT_SECONDS,
    RequestRefused,
    ServerUnavailable,
    ServerUnusable,
)
from trinity_db.explorer.engines.engine import Completion, Request
from trinity_db.prompts import PromptTooLong

ANSWER_SECONDS = 30.0  # for routes that answer at once; a server that is silent for so long hangs
NO_LOGPROB = -9999.0  # what vLLM writes for minus infinity and for "not a number"
ROUNDING = 1e-3  # by which a log-probability may exceed 0
SEEDS = 2**31  # servers keep seeds in integers of 32 or 64 bits
MESSAGE = 200  # characters of what a server says about an error

NEVER_A_POLICY = "such a server can be a judge or a teacher, never a policy"

AT_ONCE = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
_TOO_LONG = re.compile(r"context length|context window|maximum model length|longer than the max")
"""What servers say of a prompt that does not fit."""


def sampling_options(request: Request, end_tokens: Collection[int]) -> dict[str, Any]:
    """The options that both kinds of servers call by the same names.

    Every option is named: a server fills in those that are missing from the model's own settings.
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
    """What a route answers, read as JSON; None if it answers nothing."""
    try:
        async with session.request(method, url + route, allow_redirects=False, **options) as answer:
            status, said = answer.status, await answer.read()
    except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
        raise ServerUnavailable(f"{url}: {one_line(str(error)) or type(error).__name__}") from error
    if status == 200:
        try:
            return json.loads(said) if said.strip() else None
        except ValueError as error:
            raise ServerUnusable(f"{url}{route}: answers with something other than JSON") from error
    message = f"{url}{route}: HTTP {status}: {_message(said)}"
    if status >= 500 or status in (408, 425, 429):
        raise ServerUnavailable(message)
    if status in (400, 413, 422):
        raise (PromptTooLong if _TOO_LONG.search(message) else RequestRefused)(message)
    if status in (401, 403, 404, 405) and hints and route in hints:
        message += f" ({hints[route]}, or check the key)"
    raise ServerUnusable(message)


def _message(said: bytes) -> str:
    """What a server says about an error, in one of the usual forms."""
    text = said.decode(errors="replace")
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
    """A field of an answer, by keys and places."""
    found = answer
    for key in path:
        try:
            found = found[key]
        except (KeyError, IndexError, TypeError) as error:
            names = ".".join(map(str, path))
            raise ServerUnusable(f"{url}: its answer has no {names}; is this another server?") from error
    return found


def check_confirmed(url: str, label: str, version: int) -> None:
    if label != str(version):
        raise ServerUnavailable(f"{url}: was asked to load version {version}, and confirms {label!r}")


def completion(
    url: str, token_ids: Any, logprobs: Sequence[Any], spans: Any, finish_reason: str | None
) -> Completion:
    """An answer in the one form that callers see."""
    if not isinstance(token_ids, list) or not all(type(token) is int for token in token_ids):
        raise ServerUnusable(f"{url}: answers without token ids; {NEVER_A_POLICY}")
    if finish_reason in ("abort", "error", None) or not token_ids:
        raise ServerUnavailable(f"{url}: gave the response up ({finish_reason or 'no finish reason'})")
    reason: Literal["stop", "length"]
    if finish_reason == "stop":
        reason = "stop"
    elif finish_reason == "length":
        reason = "length"
    else:
        raise ServerUnusable(f"{url}: ends a response by {finish_reason!r}, which is neither stop nor length")
    if len(logprobs) != len(token_ids) or not all(type(one) in (int, float) for one in logprobs):
        raise ServerUnusable(f"{url}: answers without the log-probability of each token; {NEVER_A_POLICY}")
    garbled = [one for one in logprobs if not NO_LOGPROB < one <= ROUNDING]  # also what is not a number
    if garbled:
        raise RequestRefused(f"{url}: gave a token the log-probability {garbled[0]}; its weights are garbled")
    return Completion(token_ids, [*logprobs], _versions(url, spans, len(token_ids)), reason)


def scored(url: str, logprobs: list[Any], token_ids: Sequence[int]) -> list[float]:
    """The log-probabilities of all tokens but the first, if they are these."""
    if len(logprobs) != len(token_ids) - 1 or not all(type(one) in (int, float) for one in logprobs):
        raise ServerUnusable(f"{url}: does not say how likely each token of a prompt is")
    return logprobs


def _versions(url: str, spans: Any, length: int) -> list[int]:
    """The version of each token, from spans that say where each version's tokens begin and end."""
    if not spans:
        raise ServerUnusable(f"{url}: answers without the version of each token; {NEVER_A_POLICY}")
    versions: list[int] = []
    for span in spans:
        label = str(field(url, span, "version"))
        if not (label.isascii() and label.isdecimal()):
            # Another load may give the weights a number.
            raise ServerUnavailable(
                f"{url}: sampled with version {label!r}, which is no whole number; {NEVER_A_POLICY}"
            )
        start, end = field(url, span, "start"), field(url, span, "end")
        if start != len(versions) or not isinstance(end, int):
            break
        versions += [int(label)] * (end - start)
    if len(versions) != length:
        raise ServerUnusable(f"{url}: names versions of {len(versions)} tokens, and has sampled {length}")
    return versions
