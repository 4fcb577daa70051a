"""What the dialects have in common: a request as the policy reads it, and an answer before it is written.

A dialect is one protocol in which programs ask a model, such as OpenAI's chat completions. It reads a request
into `Asked`, and writes an `Answered` as one JSON object or as the events of a stream. It knows neither the
policy nor the store.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trinity_db.explorer import sampling
from trinity_db.explorer.tools import ToolCall

Body = Mapping[str, Any]


class Refused(Exception):
    """A request that is not answered, with the reason in one line.

    Args:
        status: the HTTP status.
        code: what OpenAI calls the error, such as context_length_exceeded; None where it has no name for it.
    """

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


@dataclass(frozen=True)
class Asked:
    """A request, in the words of the policy."""

    model: str
    """As the request named it; it is written back."""
    messages: Sequence[Mapping[str, Any]] = ()
    """The conversation, as the OpenAI protocol writes it. Empty: continue `prompt`."""
    prompt: str | Sequence[int] = ""
    """A text or tokens."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas, as the OpenAI protocol writes them."""
    max_new_tokens: int | None = None
    """None: as many as the run allows."""
    temperature: float | None = None
    """None: the run's."""
    stop: Sequence[str] = ()
    is_streamed: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the dialect needs to write the answer."""


@dataclass(frozen=True)
class Answered:
    """What the policy sampled for a request."""

    id: str
    """The same for the same call, so that a repeated request gets the same answer."""
    created: int
    """Seconds since 1970."""
    text: str
    """Without the tool calls."""
    tool_calls: Sequence[ToolCall]
    finish_reason: str
    """stop or length."""
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]


@dataclass(frozen=True)
class Dialect:
    """One protocol."""

    path: str
    """Where it is spoken, below the base URL."""
    read: Callable[[Body], Asked]
    """Raises Refused."""
    write: Callable[[Asked, Answered], dict[str, Any]]
    events: Callable[[Asked, Answered], Iterable[str]]
    """Of a stream, each as it goes over the line."""
    complain: Callable[[Refused], dict[str, Any]]


def event(data: Mapping[str, Any], name: str | None = None) -> str:
    """A server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


def take(body: Body, key: str, kind: type | tuple[type, ...], what: str) -> Any:
    """A value of a request; None where it is left out.

    Raises:
        Refused: it is of another kind than `what`.
    """
    value = body.get(key)
    if value is None or (isinstance(value, kind) and not (kind is int and isinstance(value, bool))):
        return value
    raise Refused(400, f"'{key}' must be {what}.")


NEUTRAL: Mapping[str, Sequence[Any]] = {
    **sampling.NEUTRAL,
    "typical_p": (1,),
    "logit_bias": ({},),
    "n": (1,),
    "best_of": (1,),
}
"""Values of options that leave the distribution and the number of answers as they are."""


def refuse_bias(body: Body) -> None:
    """Refuse what would make the stored log-probabilities those of another distribution than the trainer's.

    Raises:
        Refused: naming the option.
    """
    for key, allowed in NEUTRAL.items():
        value = body.get(key)
        if value is None or value in allowed:
            continue
        raise Refused(
            400,
            f"'{key}' is {json.dumps(value)!s:.80}; the policy is trained on what it samples, so only "
            f"{json.dumps(allowed[0])} is possible. Leave it out.",
            "unsupported_value",
        )
    if (wanted := body.get("response_format")) not in (None, {"type": "text"}):
        kind = wanted.get("type") if isinstance(wanted, Mapping) else wanted
        raise Refused(
            400,
            f"'response_format' is {kind!s:.80}; answers are not constrained, since that would change the "
            "distribution that is trained. Ask for the format in the prompt.",
            "unsupported_value",
        )


def stop_strings(value: Any, key: str = "stop") -> Sequence[str]:
    """Texts at which an answer ends.

    Raises:
        Refused: they are something else.
    """
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise Refused(400, f"'{key}' must be a text or a list of texts.")
    return texts


def usage(answered: Answered) -> dict[str, int]:
    """The numbers of tokens, as OpenAI's older protocols write them."""
    prompt, completion = len(answered.prompt_ids), len(answered.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def openai_error(problem: Refused) -> dict[str, Any]:
    """An error as OpenAI writes it."""
    kind = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}.get(
        problem.status, "invalid_request_error" if problem.status < 500 else "server_error"
    )
    return {"error": {"message": problem.message, "type": kind, "param": None, "code": problem.code}}
