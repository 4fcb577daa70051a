"""Anthropic's messages."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from trinity_db.explorer.http.dialects.common_options import (
    BILLING,
    CACHE,
    FORCED,
    HOSTED,
    NO_VARIABLE,
    SAMPLING,
    TEMPLATE,
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
    arguments_of,
    event,
    stop_strings,
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

WHOLE_CONVERSATION = "the endpoint stores no conversations: send the whole one"


def _thinking_type_is_possible(value: Any, key: str, run: RequestContext) -> bool:
    return value == "adaptive" or (value in ("enabled", "disabled") and run.thinking is not None)


def _texts(path: str) -> Entries:
    """Return the entries of a list of text blocks."""
    return {
        f"{path}[text]": follow(),
        f"{path}[text].type": follow(),
        f"{path}[text].text": follow(),
        f"{path}[text].cache_control": no_effect(CACHE),
        f"{path}[text].citations": no_effect("they are about the text, which is shown"),
        f"{path}[*]": refuse(TEXTS),
    }


def _message(role: str) -> Entries:
    """Return the entries of a message of a role."""
    path = f"messages[{role}]"
    return {
        path: follow(),
        f"{path}.role": follow(),
        f"{path}.content": follow("a text or blocks", untyped="text"),
        **_texts(f"{path}.content"),
    }


USE, RESULT = "messages[assistant].content[tool_use]", "messages[user].content[tool_result]"
BLOCKS: Entries = {
    USE: follow(),
    **{f"{USE}.{key}": follow() for key in ("type", "id", "name", "input")},
    f"{USE}.cache_control": no_effect(CACHE),
    f"{USE}.caller": replace("others", HOSTED, {"type": "direct"}),
    f"{USE}.toolset_name": replace("hosted_tools", HOSTED),
    "messages[assistant].content[thinking]": follow("shown where the chat template shows thoughts"),
    "messages[assistant].content[thinking].type": follow(),
    "messages[assistant].content[thinking].thinking": follow(),
    "messages[assistant].content[thinking].signature": no_effect("the endpoint signs no thoughts"),
    "messages[assistant].content[redacted_thinking]": replace(
        "others", "the policy cannot read an encrypted thought"
    ),
    RESULT: follow(),
    f"{RESULT}.type": follow(),
    f"{RESULT}.tool_use_id": follow(),
    f"{RESULT}.content": follow("a text or text blocks", untyped="text"),
    **_texts(f"{RESULT}.content"),
    f"{RESULT}.cache_control": no_effect(CACHE),
    f"{RESULT}.is_error": follow(TEMPLATE),
    f"{RESULT}.toolset_name": replace("hosted_tools", HOSTED),
}
TOOL = "tools[custom]"
TOOLS: Entries = {
    "tools": follow(untyped="custom"),
    TOOL: follow(),
    **{f"{TOOL}.{key}": follow() for key in ("type", "name", "description")},
    f"{TOOL}.input_schema": follow("a JSON schema"),
    f"{TOOL}.cache_control": no_effect(CACHE),
    f"{TOOL}.eager_input_streaming": no_effect("an answer is complete before it is sent"),
    f"{TOOL}.strict": replace("response_format", UNCONSTRAINED, False),
    f"{TOOL}.defer_loading": replace("others", "each tool is shown from the start", False),
    f"{TOOL}.allowed_callers": replace("others", HOSTED, ["direct"]),
    f"{TOOL}.input_examples": replace("others", "chat templates show a tool's schema only", []),
    "tools[*]": replace("hosted_tools", HOSTED),
    "tool_choice": follow(),
    "tool_choice.type": replace("tool_choice", FORCED, "auto", "none"),
    "tool_choice.name": no_effect("it belongs to a forced call"),
    "tool_choice.disable_parallel_tool_use": replace_unless(
        "others",
        "the model's tool calls have no common end at which sampling could stop",
        "`false`; `true` stops sampling after the first call",
        one_call_is_possible,
    ),
}
OPTIONS = OptionTable(
    SAMPLING,
    VARIABLES,
    TOOLS,
    {
        "model": follow("any name, or one of `explorer.requests.models`; echoed in the answer"),
        "messages": follow("if the last one is the assistant's, the answer continues it", tag="role"),
        **{
            path: option
            for role in ("system", "user", "assistant")
            for path, option in _message(role).items()
        },
        **BLOCKS,
        "messages[system].clear_at": replace("others", "the whole conversation is shown", "never"),
        "messages[system].output_config": replace("others", "options apply to whole requests"),
        "messages[*]": refuse("'messages' must be a list of messages, each with the role user or assistant"),
        "system": follow("a text or text blocks", untyped="text"),
        **_texts("system"),
        "max_tokens": follow(),
        "stop_sequences": follow("the answer ends before it, and the stored tokens include it"),
        "stream": follow(),
        "thinking": follow(),
        "thinking.type": replace_unless(
            "others",
            NO_VARIABLE,
            '`"adaptive"`; `"enabled"` and `"disabled"` set the template\'s variable `enable_thinking` or '
            "`thinking`",
            _thinking_type_is_possible,
        ),
        "thinking.budget_tokens": replace("others", "the policy itself ends its thoughts"),
        "thinking.block_binding": no_effect("the endpoint signs no thoughts"),
        "thinking.display": no_effect("the whole thought is returned"),
        "output_config": follow(),
        "output_config.effort": replace_unless(
            "others", NO_VARIABLE, "sets the template's variable `reasoning_effort`", effort_can_change
        ),
        "output_config.format": replace("response_format", UNCONSTRAINED),
        "output_config.task_budget": replace("others", "the policy is not shown a budget"),
        "output_format": replace("response_format", UNCONSTRAINED),
        "mcp_servers": replace("hosted_tools", HOSTED, []),
        "container": replace("hosted_tools", HOSTED),
        "context_management": replace("others", "the whole conversation is shown"),
        "compaction": refuse("the endpoint compacts no conversations"),
        "thread": refuse(WHOLE_CONVERSATION),
        "fallbacks": no_effect("the policy refuses no requests"),
        "fallback_credit_token": no_effect(BILLING),
        "billing_policy": no_effect(BILLING),
        "metadata": no_effect("names the end user"),
        "service_tier": no_effect(BILLING),
        "inference_geo": no_effect(BILLING),
        "speed": no_effect(BILLING),
        "cache_control": no_effect(CACHE),
        "diagnostics": no_effect("about a provider's cache"),
        "betas": no_effect("each option of a beta has its own entry"),
        "user_profile_id": no_effect(BILLING),
        "workspace_id": no_effect(BILLING),
    },
)

ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


def convert(body: Body, run: RequestContext) -> ParsedRequest:
    """Convert a conversation and its sampling options.

    Raises:
        Refused: if something is missing or has the wrong type.
    """
    messages = take(body, "messages", list, "a list of messages")
    if not messages or not all(isinstance(message, Mapping) for message in messages):
        raise Refused(400, "'messages' must be a list of messages, each with a role.")
    system = take(body, "system", (str, list), "a string or a list of text blocks")
    choice = take(body, "tool_choice", Mapping, "an object") or {}
    config = take(body, "output_config", Mapping, "an object") or {}
    tools = _tools(body, choice)
    return ParsedRequest(
        model=str(body.get("model", "")),
        messages=[
            *([{"role": "system", "content": system}] if system else []),
            *(shown for number, message in enumerate(messages) for shown in _messages(message, number)),
        ],
        begun=messages[-1]["role"] == "assistant",
        tools=tools,
        one_call=bool(tools) and bool(take(choice, "disable_parallel_tool_use", bool, "true or false")),
        variables=_variables(body, run, take(config, "effort", str, "a string")),
        max_new_tokens=take(body, "max_tokens", int, "an integer"),
        temperature=take(body, "temperature", (int, float), "a number"),
        stop=stop_strings(body.get("stop_sequences"), "stop_sequences"),
        is_streamed=bool(body.get("stream")),
    )


def _variables(body: Body, run: RequestContext, effort: str | None) -> dict[str, Any]:
    kind = (take(body, "thinking", Mapping, "an object") or {}).get("type")
    if kind in ("enabled", "disabled"):
        body = {**body, "enable_thinking": kind == "enabled"}
    return template_variables(body, run, effort)


def write(question: ParsedRequest, answered: Answered) -> dict[str, Any]:
    """Encode the answer as one message with text, tool calls, or both."""
    return {
        **_head(question, answered),
        "content": _blocks(answered),
        **_ending(answered),
        "usage": {"input_tokens": len(answered.prompt_ids), "output_tokens": len(answered.token_ids)},
    }


def events(question: ParsedRequest, answered: Answered) -> Iterable[str]:
    """Yield the message block by block."""

    def named(kind: str, **content: Any) -> str:
        return event({"type": kind, **content}, kind)

    usage = {"input_tokens": len(answered.prompt_ids), "output_tokens": 0}
    yield named("message_start", message={**_head(question, answered), "content": [], "usage": usage})
    for index, block in enumerate(_blocks(answered)):
        empty, deltas = _streamed(block)
        yield named("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield named("content_block_delta", index=index, delta=delta)
        yield named("content_block_stop", index=index)
    yield named("message_delta", delta=_ending(answered), usage={"output_tokens": len(answered.token_ids)})
    yield named("message_stop")


def complain(problem: Refused) -> dict[str, Any]:
    """Encode an error in Anthropic's format."""
    kind = ERRORS.get(problem.status, "invalid_request_error" if problem.status < 500 else "api_error")
    message = problem.message
    if problem.code == "context_length_exceeded":  # programs recognise it by these words
        message = f"prompt is too long: {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


def _messages(message: Mapping[str, Any], number: int) -> Iterable[dict[str, Any]]:
    """Convert a message to chat completions; a tool result becomes a separate message."""
    content = message.get("content")
    if not isinstance(content, list):
        yield {"role": message["role"], "content": content}
        return
    blocks = [block if isinstance(block, Mapping) else {"type": "text", "text": block} for block in content]
    results = [block for block in blocks if block.get("type") == "tool_result"]
    for block in results:
        yield {
            "role": "tool",
            "tool_call_id": block.get("tool_use_id"),
            "content": block.get("content") or "",
            **({"is_error": block["is_error"]} if "is_error" in block else {}),
        }
    ours = ("tool_result", "tool_use", "thinking")
    texts = [block for block in blocks if block.get("type") not in ours]
    thoughts = "".join(str(block.get("thinking", "")) for block in blocks if block.get("type") == "thinking")
    location = f"messages[{number}].content"
    calls = [
        _call(block, f"{location}[{at}].input")
        for at, block in enumerate(blocks)
        if block.get("type") == "tool_use"
    ]
    if texts or calls or thoughts or not results:
        shown: dict[str, Any] = {"role": message["role"], "content": texts}
        shown |= {"reasoning_content": thoughts} if thoughts else {}
        yield shown | ({"tool_calls": calls} if calls else {})


def _call(block: Mapping[str, Any], location: str) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": arguments_of(block.get("input", {}), location)}
    return {"id": block.get("id"), "type": "function", "function": function}


def _tools(body: Body, choice: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tools: list[Mapping[str, Any]] = []
    for tool in take(body, "tools", list, "a list of tools") or []:
        if not isinstance(tool, Mapping) or not isinstance(tool.get("input_schema"), Mapping):
            raise Refused(400, "'tools' must each have a name and an input_schema.")
        function = {"name": tool.get("name"), "description": tool.get("description", "")}
        tools.append({"type": "function", "function": {**function, "parameters": tool["input_schema"]}})
    return [] if choice.get("type") == "none" else tools


def _head(question: ParsedRequest, answered: Answered) -> dict[str, Any]:
    return {
        "id": f"msg_{answered.id}",
        "type": "message",
        "role": "assistant",
        "model": question.model,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _blocks(answered: Answered) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answered.thought:
        blocks.append({"type": "thinking", "thinking": answered.thought, "signature": answered.id})
    if answered.text:
        blocks.append({"type": "text", "text": answered.text})
    for call in answered.tool_calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)})
    return blocks


def _streamed(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block without its content, and the events that add the content."""
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        return {**block, "thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    written = json.dumps(block["input"], ensure_ascii=False)
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": written}]


def _ending(answered: Answered) -> dict[str, str | None]:
    reason = STOP_REASONS[answered.finish_reason]
    if answered.stop is not None:
        reason = "stop_sequence"
    if answered.tool_calls:
        reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": answered.stop}


MESSAGES = AgentDialect("/v1/messages", OPTIONS, convert, write, events, complain)
