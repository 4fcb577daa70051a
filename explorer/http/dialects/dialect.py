"""Common parts of the dialects: a parsed request, and an answer before it is encoded.

A dialect is one protocol for querying a model, such as OpenAI's chat completions. It parses a request into a
`ParsedRequest`, and encodes an `Answered` as one JSON object or as the events of a stream. It depends on
neither policy nor store.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trinity_db.explorer.attempt.tools import ToolCall
from trinity_db.explorer.config import RequestsConfig
from trinity_db.explorer.http.dialects.options import (
    Option,
    OptionReader,
    OptionTable,
    Refused,
    RequestContext,
)

Body = Mapping[str, Any]


@dataclass(frozen=True)
class ParsedRequest:
    """A request, in the policy's terms."""

    model: str
    """Model name in the request; it is echoed in the answer."""
    messages: Sequence[Mapping[str, Any]] = ()
    """Conversation in the OpenAI format. Empty: continue `prompt`."""
    prompt: str | Sequence[int] = ""
    """Text or tokens."""
    begun: bool = False
    """Whether the last message is the begun answer, which the policy continues."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas in the OpenAI format."""
    one_call: bool = False
    """Whether sampling stops after the first tool call."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the chat template."""
    max_new_tokens: int | None = None
    """None: the run's limit."""
    temperature: float | None = None
    """None: the run's temperature."""
    stop: Sequence[str] = ()
    is_streamed: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options that the dialect needs to encode the answer."""
    replaced: Mapping[str, Any] = field(default_factory=dict)
    """Given values of the options that are replaced, by their place in the request."""
    kinds: Mapping[str, Option] = field(default_factory=dict)
    """Entries of these options, by their paths in the protocol's table."""


@dataclass(frozen=True)
class Answered:
    """The policy's answer to a request."""

    id: str
    """Derived from the call, so that a repeated request gets the same answer."""
    created: int
    """Seconds since 1970."""
    thought: str
    """Thought before the text; empty if there is none."""
    text: str
    """Text without the thought and the tool calls, up to a stop string."""
    tool_calls: Sequence[ToolCall]
    finish_reason: str
    """stop or length."""
    stop: str | None
    """The requested stop string that ended the answer."""
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    thought_tokens: int = 0
    """Number of tokens of the thought's text."""


@dataclass(frozen=True)
class AgentDialect:
    """One protocol."""

    path: str
    """Path below the base URL."""
    options: OptionTable
    """What happens to each option of a request."""
    convert: Callable[[Body, RequestContext], ParsedRequest]
    """Converts a request without the options that are replaced. Raises Refused."""
    write: Callable[[ParsedRequest, Answered], dict[str, Any]]
    events: Callable[[ParsedRequest, Answered], Iterable[str]]
    """Events of a stream, encoded for sending."""
    complain: Callable[[Refused], dict[str, Any]]

    def read(self, body: Body, run: RequestContext) -> ParsedRequest:
        """Parse a request.

        Raises:
            Refused: if an option is refused, or something is missing or has the wrong type.
        """
        options = OptionReader(self.options, run)
        question = self.convert(options.read(body), run)
        if question.begun and question.messages[-1].get("tool_calls"):
            raise Refused(400, "The last message has tool calls without results, and cannot be continued.")
        check_model(question.model, run.rules)
        return replace(question, replaced=options.replaced, kinds=options.kinds)


def check_model(name: str, rules: RequestsConfig) -> None:
    """Check the name of a model in a request.

    Raises:
        Refused: if the run's configuration does not have it.
    """
    if rules.models != "any" and name not in rules.models:
        known = ", ".join(rules.models)
        raise Refused(404, f"'model' is '{name:.80}'; known: {known}.", "model_not_found")


def event(data: Mapping[str, Any], name: str | None = None) -> str:
    """Encode a server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n"


def take(body: Body, key: str, kind: type | tuple[type, ...], expected: str) -> Any:
    """Return a value of a request; None if it is missing.

    Raises:
        Refused: if it has another type than `expected` describes.
    """
    value = body.get(key)
    is_kind = kind is bool if isinstance(value, bool) else isinstance(value, kind)  # a bool is an int too
    if value is None or is_kind:
        return value
    raise Refused(400, f"'{key}' must be {expected}.")


def stop_strings(value: Any, key: str = "stop") -> Sequence[str]:
    """Return the strings at which an answer stops.

    Raises:
        Refused: if the value is anything else.
    """
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise Refused(400, f"'{key}' must be a string or a list of strings.")
    return texts


def template_variables(body: Body, run: RequestContext, effort: str | None = None) -> dict[str, Any]:
    """Return the variables of the chat template that a request sets.

    Args:
        effort: the requested effort of reasoning; with "none" the model is not to think.

    Raises:
        Refused: if it sets one twice, to different values.
    """
    variables = take(body, "chat_template_kwargs", Mapping, "an object") or {}
    named: dict[str, Any] = {}
    thinks = take(body, "enable_thinking", bool, "true or false")
    if effort is not None and run.reads("reasoning_effort"):
        named["reasoning_effort"] = effort
    elif effort is not None:
        named[str(run.thinking)] = effort != "none"
    if thinks is not None:
        named[str(run.thinking)] = thinks
    for name, value in named.items():
        if variables.get(name, value) != value:
            raise Refused(400, f"'chat_template_kwargs' sets {name} to another value than the request.")
    return {**variables, **named}


def arguments_of(value: Any, location: str) -> str:
    """Return the arguments of a tool call as JSON text.

    Raises:
        Refused: if they are not an object.
    """
    if not isinstance(value, Mapping):
        raise Refused(400, f"'{location}' must be an object.")
    return json.dumps(value, ensure_ascii=False)


def usage(answered: Answered) -> dict[str, int]:
    """Return token counts in the format of OpenAI's older protocols."""
    prompt, completion = len(answered.prompt_ids), len(answered.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def openai_error(problem: Refused) -> dict[str, Any]:
    """Encode an error in OpenAI's format."""
    kind = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}.get(
        problem.status, "invalid_request_error" if problem.status < 500 else "server_error"
    )
    return {"error": {"message": problem.message, "type": kind, "param": None, "code": problem.code}}
