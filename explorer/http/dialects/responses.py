"""OpenAI's responses. The endpoint stores no conversations: each request must contain the whole one."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from trinity_db.explorer.http.dialects import chat
from trinity_db.explorer.http.dialects.common_options import (
    BILLING,
    CACHE,
    FORCED,
    HOSTED,
    NO_VARIABLE,
    OPENAI_ACCOUNT,
    RECORDED,
    SAMPLING,
    TEXTS,
    UNCONSTRAINED,
    VARIABLES,
    Entries,
    effort_can_change,
    one_call_is_possible,
)
from trinity_db.explorer.http.dialects.dialect import (
    AgentDialect,
    Answered,
    Body,
    ParsedRequest,
    event,
    openai_error,
    take,
    template_variables,
)
from trinity_db.explorer.http.dialects.options import (
    OptionTable,
    Refused,
    RequestContext,
    follow,
    no_effect,
    refuse,
    replace,
    replace_unless,
)

WHOLE_CONVERSATION = "the endpoint stores no conversations: send the whole conversation as input"
ID = "ids of items have no meaning for the policy"
AT_ONCE = "the result of a call must be in the next request"
BEGUN = ("in_progress", "incomplete")
LOGPROBS = "message.output_text.logprobs"


def _texts(path: str) -> Entries:
    """Return the entries of a list of text parts."""
    return {
        **{f"{path}[{kind}]": follow() for kind in ("input_text", "output_text", "text")},
        **{f"{path}[{kind}].type": follow() for kind in ("input_text", "output_text", "text")},
        **{f"{path}[{kind}].text": follow() for kind in ("input_text", "output_text", "text")},
        f"{path}[input_text].prompt_cache_breakpoint": no_effect(CACHE),
        f"{path}[output_text].annotations": no_effect("they are about the text, which is shown"),
        f"{path}[output_text].logprobs": no_effect("they are about the text, which is shown"),
        f"{path}[*]": refuse(TEXTS),
    }


def _item(kind: str, *keys: str) -> Entries:
    """Return the entries of an item of the input."""
    path = f"input[{kind}]"
    return {
        path: follow(),
        f"{path}.type": follow(),
        f"{path}.id": no_effect(ID),
        f"{path}.status": no_effect("items are complete"),
        **{f"{path}.{key}": follow() for key in keys},
    }


def _call_item(kind: str, *keys: str) -> Entries:
    """Return the entries of a tool call or of its result."""
    return {
        **_item(kind, *keys),
        f"input[{kind}].caller": replace("others", HOSTED, {"type": "direct"}),
        f"input[{kind}].namespace": replace("hosted_tools", HOSTED),
    }


INPUT: Entries = {
    "input": follow("a text or items", untyped="message"),
    **_item("message", "role"),
    "input[message].status": follow(
        "`incomplete` or `in_progress` on the last message: the answer continues it"
    ),
    "input[message].phase": no_effect("commentary and final answers are shown alike"),
    "input[message].content": follow("a text or text parts", untyped="text"),
    **_texts("input[message].content"),
    **_call_item("function_call", "call_id", "name", "arguments"),
    **_call_item("function_call_output", "call_id"),
    "input[function_call_output].output": follow("a text or text parts", untyped="text"),
    "input[function_call_output].name": no_effect("the call has the name"),
    "input[function_call].async": replace("others", AT_ONCE, False),
    **_texts("input[function_call_output].output"),
    **_item("reasoning"),
    "input[reasoning].content": follow("shown where the chat template shows thoughts"),
    "input[reasoning].content[reasoning_text]": follow(),
    "input[reasoning].content[reasoning_text].type": follow(),
    "input[reasoning].content[reasoning_text].text": follow(),
    "input[reasoning].content[*]": refuse(TEXTS),
    "input[reasoning].summary": replace("others", "a summary is not the policy's thought", []),
    "input[reasoning].encrypted_content": replace("others", "the policy cannot read an encrypted thought"),
    "input[*]": refuse("items must be messages, function calls, their outputs, or reasoning"),
}
TOOLS: Entries = {
    "tools": follow(untyped="function"),
    "tools[function]": follow(),
    **{f"tools[function].{key}": follow() for key in ("type", "name", "description")},
    "tools[function].parameters": follow("a JSON schema"),
    "tools[function].strict": replace("response_format", UNCONSTRAINED, False),
    "tools[function].allowed_callers": replace("others", HOSTED, ["direct"]),
    "tools[function].defer_loading": replace("others", "each tool is shown from the start", False),
    "tools[function].async": replace("others", AT_ONCE, False),
    "tools[function].output_schema": replace("others", "chat templates show the schema of arguments only"),
    "tools[*]": replace("hosted_tools", HOSTED),
    "tool_choice": replace("tool_choice", FORCED, "auto", "none"),
    "parallel_tool_calls": replace_unless(
        "others",
        "the model's tool calls have no common end at which sampling could stop",
        "`true`; `false` stops sampling after the first call",
        one_call_is_possible,
    ),
    "max_tool_calls": no_effect("it limits hosted tools, which the endpoint does not have"),
}
OPTIONS = OptionTable(
    SAMPLING,
    OPENAI_ACCOUNT,
    VARIABLES,
    INPUT,
    TOOLS,
    {
        "model": follow("any name, or one of `explorer.requests.models`; echoed in the answer"),
        "instructions": follow("the system message"),
        "max_output_tokens": follow(),
        "stream": follow(),
        "stream_options": follow(),
        "stream_options.include_obfuscation": no_effect("nothing is added to the events"),
        "metadata": follow("echoed in the answer"),
        "reasoning": follow(),
        "reasoning.effort": replace_unless(
            "others",
            NO_VARIABLE,
            'sets the template\'s variable `reasoning_effort`; `"none"` switches thoughts off',
            effort_can_change,
        ),
        "reasoning.summary": no_effect("the whole thought is returned"),
        "reasoning.generate_summary": no_effect("the whole thought is returned"),
        "reasoning.context": replace(
            "others", "the chat template chooses the thoughts that it shows", "auto"
        ),
        "reasoning.mode": replace("others", NO_VARIABLE, "standard"),
        "text": follow(),
        "text.format": replace("response_format", UNCONSTRAINED, {"type": "text"}),
        "text.verbosity": replace("others", NO_VARIABLE, "medium"),
        "include": replace_unless(
            "others",
            RECORDED,
            f"no effect without `{LOGPROBS}`: there is no such data",
            lambda value, key, run: LOGPROBS not in value,
        ),
        "top_logprobs": refuse(RECORDED, 0),
        "truncation": no_effect("a conversation that is too long is refused"),
        "context_management": replace("others", "the whole conversation is shown", []),
        "previous_response_id": refuse(WHOLE_CONVERSATION),
        "conversation": refuse(WHOLE_CONVERSATION),
        "prompt": refuse("the endpoint stores no prompts: send the whole conversation as input"),
        "background": refuse("each request waits for its answer", False),
        "background_options": no_effect("there are no background requests"),
        "image": refuse(TEXTS),
        "access_programs": no_effect(BILLING),
    },
)


def convert(body: Body, run: RequestContext) -> ParsedRequest:
    """Convert a conversation and its sampling options.

    Raises:
        Refused: if something is missing or has the wrong type.
    """
    take(body, "text", Mapping, "an object")
    instructions = take(body, "instructions", str, "a string")
    reasoning = take(body, "reasoning", Mapping, "an object") or {}
    items = take(body, "input", (str, list), "a string or a list of items") or []
    tools = _tools(body)
    return ParsedRequest(
        model=str(body.get("model", "")),
        messages=[
            *([{"role": "system", "content": instructions}] if instructions else []),
            *_messages(items),
        ],
        begun=_is_begun(items),
        tools=tools,
        one_call=bool(tools) and take(body, "parallel_tool_calls", bool, "true or false") is False,
        variables=template_variables(body, run, take(reasoning, "effort", str, "a string")),
        max_new_tokens=take(body, "max_output_tokens", int, "an integer"),
        temperature=take(body, "temperature", (int, float), "a number"),
        is_streamed=bool(body.get("stream")),
        options={
            "instructions": instructions,
            "tools": body.get("tools") or [],
            "metadata": take(body, "metadata", Mapping, "an object") or {},
            "tool_choice": body.get("tool_choice", "auto"),
        },
    )


def _is_begun(items: str | list[Any]) -> bool:
    """Whether the last item is the begun answer.

    Raises:
        Refused: if it is a complete answer. The protocol does not define an answer that follows another.
    """
    last = items[-1] if isinstance(items, list) and items else None
    if not isinstance(last, Mapping) or last.get("role") != "assistant":
        return False
    if last.get("status") not in BEGUN:
        raise Refused(
            400,
            "'input' ends with an answer: add a message, or let the answer continue with its status "
            "incomplete.",
        )
    return True


def write(question: ParsedRequest, answered: Answered) -> dict[str, Any]:
    """Encode the answer as one object whose output is a message, tool calls, or both."""
    is_whole = answered.finish_reason == "stop" or bool(answered.tool_calls)
    return {
        **_head(question, answered, "completed" if is_whole else "incomplete"),
        "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
        "output": _output(answered),
        "usage": {
            "input_tokens": len(answered.prompt_ids),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": len(answered.token_ids),
            "output_tokens_details": {"reasoning_tokens": answered.thought_tokens},
            "total_tokens": len(answered.prompt_ids) + len(answered.token_ids),
        },
    }


def events(question: ParsedRequest, answered: Answered) -> Iterable[str]:
    """Yield the events of the response: its start, the events of each item, and its end."""
    numbers = count()
    begun = {**_head(question, answered, "in_progress"), "output": [], "usage": None}
    whole = write(question, answered)
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
    """Convert items to messages of chat completions. Thoughts and tool calls become part of their answer."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[dict[str, Any]] = []
    thought = ""
    for item in items:
        if not isinstance(item, Mapping):
            raise Refused(400, "'input' must be a string or a list of items.")
        kind = item.get("type", "message")
        if kind == "reasoning":
            parts = item.get("content") or []
            thought += "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
            continue
        if kind == "function_call_output":
            result = {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
            messages.append(result)
        elif kind == "function_call":
            if thought or not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(_call(item))
        else:
            messages.append(_message(item))
        if thought and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = thought
            thought = ""
    if thought:
        messages.append({"role": "assistant", "content": "", "reasoning_content": thought})
    return [*messages]


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    role = item.get("role")
    if role not in ("system", "developer", "user", "assistant"):
        raise Refused(400, f"'input' has a message with the unknown role {role!r:.80}.")
    return {"role": "system" if role == "developer" else role, "content": item.get("content")}


def _call(item: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _tools(body: Body) -> list[Mapping[str, Any]]:
    functions = [
        {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
        for tool in take(body, "tools", list, "a list of tools") or []
        if isinstance(tool, Mapping)
    ]
    return chat.tools({"tools": functions, "tool_choice": body.get("tool_choice")})


def _head(question: ParsedRequest, answered: Answered, status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{answered.id}",
        "object": "response",
        "created_at": answered.created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": question.options["instructions"],
        "metadata": question.options["metadata"],
        "model": question.model,
        "parallel_tool_calls": not question.one_call,
        "temperature": question.temperature,
        "tool_choice": question.options["tool_choice"],
        "tools": question.options["tools"],
        "top_p": 1.0,
    }


def _output(answered: Answered) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if answered.thought:
        thoughts = [{"type": "reasoning_text", "text": answered.thought}]
        thought = {"type": "reasoning", "summary": [], "content": thoughts}
        items.append({"id": f"rs_{answered.id}", "status": "completed", **thought})
    if answered.text or not (answered.tool_calls or answered.thought):
        part = {"type": "output_text", "text": answered.text, "annotations": []}
        message = {"type": "message", "role": "assistant", "content": [part]}
        items.append({"id": f"msg_{answered.id}", "status": "completed", **message})
    for index, call in enumerate(answered.tool_calls):
        written = call.openai["function"]
        function = {"type": "function_call", "call_id": call.id, **written}
        items.append({"id": f"fc_{answered.id}_{index}", "status": "completed", **function})
    return items


def _item_events(index: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    position = {"output_index": index, "item_id": item["id"]}
    is_call = item["type"] == "function_call"
    empty: dict[str, Any] = {"arguments": ""} if is_call else {"content": []}
    begun = {**item, "status": "in_progress", **empty}
    yield "response.output_item.added", {"output_index": index, "item": begun}
    if is_call:
        yield "response.function_call_arguments.delta", {**position, "delta": item["arguments"]}
        yield (
            "response.function_call_arguments.done",
            {**position, "name": item["name"], "arguments": item["arguments"]},
        )
    else:
        part = item["content"][0]
        kind = f"response.{part['type']}"
        extra: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
        position["content_index"] = 0
        yield "response.content_part.added", {**position, "part": {**part, "text": ""}}
        yield f"{kind}.delta", {**position, "delta": part["text"], **extra}
        yield f"{kind}.done", {**position, "text": part["text"], **extra}
        yield "response.content_part.done", {**position, "part": part}
    yield "response.output_item.done", {"output_index": index, "item": item}


RESPONSES = AgentDialect("/v1/responses", OPTIONS, convert, write, events, openai_error)
