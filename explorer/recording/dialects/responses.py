"""OpenAI's responses. The endpoint keeps no conversations: a request has all of it."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from trinity_db.explorer.recording.dialects import chat
from trinity_db.explorer.recording.dialects.dialect import (
    Answered,
    Asked,
    Body,
    Dialect,
    Refused,
    event,
    openai_error,
    refuse_bias,
    take,
)


def read(body: Body) -> Asked:
    """The conversation and the options that it is answered by.

    Raises:
        Refused: something is missing, would change what is trained, or needs a conversation that is kept.
    """
    refuse_bias(body)
    for key in ("previous_response_id", "conversation", "prompt", "background"):
        if body.get(key):
            raise Refused(
                400, f"'{key}' is not supported: send the whole conversation as input.", "unsupported_value"
            )
    form = take(take(body, "text", Mapping, "an object") or {}, "format", Mapping, "an object") or {}
    if form.get("type", "text") != "text":
        raise Refused(
            400,
            "'text.format' must be text: answers are not constrained, as training asks.",
            "unsupported_value",
        )
    instructions = take(body, "instructions", str, "a text")
    return Asked(
        model=str(body.get("model", "")),
        messages=[
            *([{"role": "system", "content": instructions}] if instructions else []),
            *_messages(take(body, "input", (str, list), "a text or a list of items") or []),
        ],
        tools=_tools(body),
        max_new_tokens=take(body, "max_output_tokens", int, "a whole number"),
        temperature=take(body, "temperature", (int, float), "a number"),
        is_streamed=bool(body.get("stream")),
        options={"instructions": instructions, "tools": body.get("tools") or []},
    )


def write(asked: Asked, answered: Answered) -> dict[str, Any]:
    """One object whose output is a message, calls of tools, or both."""
    is_whole = answered.finish_reason == "stop" or bool(answered.tool_calls)
    return {
        **_head(asked, answered, "completed" if is_whole else "incomplete"),
        "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
        "output": _output(answered),
        "usage": {
            "input_tokens": len(answered.prompt_ids),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": len(answered.token_ids),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": len(answered.prompt_ids) + len(answered.token_ids),
        },
    }


def events(asked: Asked, answered: Answered) -> Iterable[str]:
    """The answer item by item, each begun, filled and ended, between the response's beginning and its end."""
    numbers = count()
    begun = {**_head(asked, answered, "in_progress"), "output": [], "usage": None}
    whole = write(asked, answered)
    steps: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for index, item in enumerate(whole["output"]):
        steps += _item_events(index, item)
    steps.append((f"response.{whole['status']}", {"response": whole}))
    for kind, content in steps:
        yield event({"type": kind, "sequence_number": next(numbers), **content}, kind)


def _messages(items: str | list[Any]) -> list[Mapping[str, Any]]:
    """Items as messages of chat completions. Calls of tools belong to the answer before them."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[dict[str, Any]] = []
    for item in items:
        kind = item.get("type", "message") if isinstance(item, Mapping) else None
        if kind == "message" and isinstance(item.get("role"), str):
            role = "system" if item["role"] == "developer" else item["role"]
            messages.append({"role": role, "content": item.get("content")})
        elif kind == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            result = {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
            messages.append(result)
        elif kind != "reasoning":
            raise Refused(400, f"'input' has an item of type '{kind!s:.80}', which the policy cannot read.")
    return [*messages]


def _tools(body: Body) -> list[Mapping[str, Any]]:
    found = take(body, "tools", list, "a list of tools") or []
    functions = [
        {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
        for tool in found
        if isinstance(tool, Mapping) and tool.get("type") == "function"
    ]
    if len(functions) < len(found):
        raise Refused(
            400, "'tools' must be functions; the policy has none that are built in.", "unsupported_value"
        )
    return chat.tools({"tools": functions, "tool_choice": body.get("tool_choice")})


def _head(asked: Asked, answered: Answered, status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{answered.id}",
        "object": "response",
        "created_at": answered.created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.options["instructions"],
        "metadata": {},
        "model": asked.model,
        "parallel_tool_calls": True,
        "temperature": asked.temperature,
        "tool_choice": "auto",
        "tools": asked.options["tools"],
        "top_p": 1.0,
    }


def _output(answered: Answered) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if answered.text or not answered.tool_calls:
        part = {"type": "output_text", "text": answered.text, "annotations": []}
        message = {"type": "message", "role": "assistant", "content": [part]}
        items.append({"id": f"msg_{answered.id}", "status": "completed", **message})
    for place, call in enumerate(answered.tool_calls):
        written = call.openai["function"]
        function = {"type": "function_call", "call_id": call.id, **written}
        items.append({"id": f"fc_{answered.id}_{place}", "status": "completed", **function})
    return items


def _item_events(index: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    place = {"output_index": index, "item_id": item["id"]}
    is_message = item["type"] == "message"
    empty: dict[str, Any] = {"content": []} if is_message else {"arguments": ""}
    begun = {**item, "status": "in_progress", **empty}
    yield "response.output_item.added", {"output_index": index, "item": begun}
    if is_message:
        part = item["content"][0]
        place["content_index"] = 0
        yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
        yield "response.output_text.delta", {**place, "delta": part["text"], "logprobs": []}
        yield "response.output_text.done", {**place, "text": part["text"], "logprobs": []}
        yield "response.content_part.done", {**place, "part": part}
    else:
        yield "response.function_call_arguments.delta", {**place, "delta": item["arguments"]}
        yield (
            "response.function_call_arguments.done",
            {**place, "name": item["name"], "arguments": item["arguments"]},
        )
    yield "response.output_item.done", {"output_index": index, "item": item}


RESPONSES = Dialect("/v1/responses", read, write, events, openai_error)
