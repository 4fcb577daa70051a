"""Anthropic's messages."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from trinity_db.explorer.recording.dialects.dialect import (
    Answered,
    Asked,
    Body,
    Dialect,
    Refused,
    event,
    refuse_bias,
    stop_strings,
    take,
)

ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


def read(body: Body) -> Asked:
    """The conversation and the options that it is answered by.

    Raises:
        Refused: something is missing, or would change what is trained.
    """
    refuse_bias(body)
    messages = take(body, "messages", list, "a list of messages")
    if not messages:
        raise Refused(400, "'messages' must be a list of messages, each with a role.")
    system = take(body, "system", (str, list), "a text or a list of texts")
    return Asked(
        model=str(body.get("model", "")),
        messages=[
            *([{"role": "system", "content": system}] if system else []),
            *(one for message in messages for one in _messages(message)),
        ],
        tools=_tools(body),
        max_new_tokens=take(body, "max_tokens", int, "a whole number"),
        temperature=take(body, "temperature", (int, float), "a number"),
        stop=stop_strings(body.get("stop_sequences"), "stop_sequences"),
        is_streamed=bool(body.get("stream")),
    )


def write(asked: Asked, answered: Answered) -> dict[str, Any]:
    """One message with a text, calls of tools, or both."""
    return {
        **_head(asked, answered),
        "content": _blocks(answered),
        "stop_reason": _stop_reason(answered),
        "usage": {"input_tokens": len(answered.prompt_ids), "output_tokens": len(answered.token_ids)},
    }


def events(asked: Asked, answered: Answered) -> Iterable[str]:
    """The message block by block."""

    def named(kind: str, **content: Any) -> str:
        return event({"type": kind, **content}, kind)

    usage = {"input_tokens": len(answered.prompt_ids), "output_tokens": 0}
    yield named("message_start", message={**_head(asked, answered), "content": [], "usage": usage})
    for index, block in enumerate(_blocks(answered)):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            written = json.dumps(block["input"], ensure_ascii=False)
            empty, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": written}
        yield named("content_block_start", index=index, content_block=empty)
        yield named("content_block_delta", index=index, delta=delta)
        yield named("content_block_stop", index=index)
    ending = {"stop_reason": _stop_reason(answered), "stop_sequence": None}
    yield named("message_delta", delta=ending, usage={"output_tokens": len(answered.token_ids)})
    yield named("message_stop")


def complain(problem: Refused) -> dict[str, Any]:
    """An error as Anthropic writes it."""
    kind = ERRORS.get(problem.status, "invalid_request_error" if problem.status < 500 else "api_error")
    message = problem.message
    if problem.code == "context_length_exceeded":  # by these words programs know it
        message = f"prompt is too long: {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


def _messages(message: Any) -> Iterable[dict[str, Any]]:
    """A message as those of chat completions: a tool's result is one by itself."""
    if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant", "system"):
        raise Refused(400, "'messages' must be a list of messages, each with the role user or assistant.")
    content = message.get("content")
    if not isinstance(content, list):
        yield {"role": message["role"], "content": content}
        return
    blocks = [block if isinstance(block, Mapping) else {"type": "text", "text": block} for block in content]
    for block in blocks:
        if block.get("type") == "tool_result":
            result = block.get("content") or ""
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result}
    ours = ("tool_result", "tool_use", "thinking", "redacted_thinking")
    texts = [block for block in blocks if block.get("type") not in ours]
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    if texts or calls:
        yield {"role": message["role"], "content": texts, **({"tool_calls": calls} if calls else {})}


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
    function = {"name": block.get("name"), "arguments": arguments}
    return {"id": block.get("id"), "type": "function", "function": function}


def _tools(body: Body) -> list[Mapping[str, Any]]:
    found = take(body, "tools", list, "a list of tools") or []
    choice = (take(body, "tool_choice", Mapping, "an object") or {}).get("type", "auto")
    if choice not in ("auto", "none"):
        raise Refused(
            400, "'tool_choice' must be auto or none: to force a call changes what tokens are sampled from."
        )
    tools: list[Mapping[str, Any]] = []
    for tool in found:
        if not isinstance(tool, Mapping) or not isinstance(tool.get("input_schema"), Mapping):
            raise Refused(
                400, "'tools' must have a name and an input_schema; the policy has none that are built in."
            )
        function = {"name": tool.get("name"), "description": tool.get("description", "")}
        tools.append({"type": "function", "function": {**function, "parameters": tool["input_schema"]}})
    return [] if choice == "none" else tools


def _head(asked: Asked, answered: Answered) -> dict[str, Any]:
    return {
        "id": f"msg_{answered.id}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _blocks(answered: Answered) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": answered.text}] if answered.text else []
    for call in answered.tool_calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)})
    return blocks


def _stop_reason(answered: Answered) -> str:
    return "tool_use" if answered.tool_calls else STOP_REASONS[answered.finish_reason]


MESSAGES = Dialect("/v1/messages", read, write, events, complain)
