"""OpenAI's chat completions."""

from collections.abc import Iterable, Mapping
from typing import Any

from trinity_db.explorer.recording.dialects.dialect import (
    Answered,
    Asked,
    Body,
    Dialect,
    Refused,
    event,
    openai_error,
    refuse_bias,
    stop_strings,
    take,
    usage,
)


def read(body: Body) -> Asked:
    """The conversation and the options that it is answered by.

    Raises:
        Refused: something is missing, or would change what is trained.
    """
    refuse_bias(body)
    if body.get("logprobs") or body.get("top_logprobs"):
        raise Refused(
            400, "'logprobs' are recorded with the call, and are not part of the answer.", "unsupported_value"
        )
    messages = take(body, "messages", list, "a list of messages")
    if not messages or not all(
        isinstance(one, Mapping) and isinstance(one.get("role"), str) for one in messages
    ):
        raise Refused(400, "'messages' must be a list of messages, each with a role.")
    limit = take(body, "max_completion_tokens", int, "a whole number")
    options = take(body, "stream_options", Mapping, "an object") or {}
    return Asked(
        model=str(body.get("model", "")),
        messages=[{**one, "role": "system"} if one["role"] == "developer" else one for one in messages],
        tools=tools(body),
        max_new_tokens=take(body, "max_tokens", int, "a whole number") if limit is None else limit,
        temperature=take(body, "temperature", (int, float), "a number"),
        stop=stop_strings(body.get("stop")),
        is_streamed=bool(body.get("stream")),
        options={"include_usage": bool(options.get("include_usage"))},
    )


def tools(body: Body) -> list[Mapping[str, Any]]:
    """The JSON schemas of the tools that the model is shown.

    Raises:
        Refused: a tool is none, or an answer is to be forced.
    """
    found = take(body, "tools", list, "a list of tools") or []
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise Refused(
            400,
            "'tool_choice' must be auto or none: to force a call changes what tokens are sampled from.",
            "unsupported_value",
        )
    for tool in found:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Refused(400, '\'tools\' must be functions: {"type": "function", "function": {"name": …}}.')
    return [] if choice == "none" else found


def write(asked: Asked, answered: Answered) -> dict[str, Any]:
    """One object with one choice."""
    message: dict[str, Any] = {"role": "assistant", "content": answered.text, "refusal": None}
    if answered.tool_calls:
        message["tool_calls"] = [call.openai for call in answered.tool_calls]
        message["content"] = answered.text or None
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(answered)}
    return {**_head(asked, answered, "chat.completion"), "choices": [choice], "usage": usage(answered)}


def events(asked: Asked, answered: Answered) -> Iterable[str]:
    """The answer in chunks: role, text, tool calls, finish reason and, where it is asked for, usage."""
    head = _head(asked, answered, "chat.completion.chunk")

    def chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return event({**head, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    if answered.text:
        yield chunk({"content": answered.text})
    for index, call in enumerate(answered.tool_calls):
        yield chunk({"tool_calls": [{"index": index, **call.openai}]})
    yield chunk({}, _finish_reason(answered))
    if asked.options["include_usage"]:
        yield event({**head, "choices": [], "usage": usage(answered)})
    yield "data: [DONE]\n\n"


def _head(asked: Asked, answered: Answered, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answered.id}",
        "object": kind,
        "created": answered.created,
        "model": asked.model,
        "system_fingerprint": None,
    }


def _finish_reason(answered: Answered) -> str:
    return "tool_calls" if answered.tool_calls else answered.finish_reason


CHAT = Dialect("/v1/chat/completions", read, write, events, openai_error)
