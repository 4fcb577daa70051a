"""OpenAI's chat completions."""

from collections.abc import Iterable, Mapping
from typing import Any

from trinity_db.explorer.http.dialects.common_options import (
    CACHE,
    CONSTRAINTS,
    FORCED,
    HOSTED,
    NO_VARIABLE,
    OPENAI_ACCOUNT,
    OPENAI_SAMPLING,
    RECORDED,
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
    event,
    openai_error,
    stop_strings,
    take,
    template_variables,
    usage,
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

ROLES = ("system", "developer", "user", "assistant", "tool")
DEPRECATED = "it is deprecated, and the policy is not shown it: send tools"


def _message(role: str) -> Entries:
    """Return the entries of a message of a role."""
    path = f"messages[{role}]"
    return {
        path: follow("shown as system" if role == "developer" else ""),
        f"{path}.role": follow(),
        f"{path}.content": follow("a text or text parts", untyped="text"),
        f"{path}.content[text]": follow(),
        f"{path}.content[text].type": follow(),
        f"{path}.content[text].text": follow(),
        f"{path}.content[text].cache_control": no_effect(CACHE),
        f"{path}.content[text].prompt_cache_breakpoint": no_effect(CACHE),
        f"{path}.content[*]": refuse(TEXTS),
        f"{path}.*": follow(TEMPLATE),
    }


TOOLS: Entries = {
    "tools": follow(untyped="function"),
    "tools[function]": follow(),
    "tools[function].type": follow(),
    "tools[function].function": follow(),
    "tools[function].function.name": follow(),
    "tools[function].function.description": follow(),
    "tools[function].function.parameters": follow("a JSON schema"),
    "tools[function].function.strict": replace("response_format", UNCONSTRAINED, False),
    "tools[function].function.*": follow(TEMPLATE),
    "tools[*]": replace("hosted_tools", HOSTED),
    "tool_choice": replace("tool_choice", FORCED, "auto", "none"),
    "parallel_tool_calls": replace_unless(
        "others",
        "the model's tool calls have no common end at which sampling could stop",
        "`true`; `false` stops sampling after the first call",
        one_call_is_possible,
    ),
}
OPTIONS = OptionTable(
    OPENAI_SAMPLING,
    OPENAI_ACCOUNT,
    CONSTRAINTS,
    VARIABLES,
    TOOLS,
    {
        "messages": follow(tag="role"),
        **{path: option for role in ROLES for path, option in _message(role).items()},
        "messages[*]": refuse(
            "'messages' must be a list of messages, each with a role: system, developer, user, assistant or "
            "tool (the older function is not shown)"
        ),
        "messages[assistant].prefix": follow("`true` on the last message: the answer continues it"),
        "messages[assistant].audio": refuse(TEXTS),
        "messages[assistant].refusal": refuse("the policy is not shown refusals: send them as content"),
        "messages[assistant].function_call": refuse(DEPRECATED),
        "messages[assistant].tool_calls": follow(untyped="function"),
        "messages[assistant].tool_calls[function]": follow(),
        "messages[assistant].tool_calls[function].function": follow(),
        "messages[assistant].tool_calls[function].function.*": follow(TEMPLATE),
        "messages[assistant].tool_calls[function].*": follow(TEMPLATE),
        "messages[assistant].tool_calls[*]": refuse(HOSTED),
        "max_tokens": follow("the smaller of the two limits counts"),
        "max_completion_tokens": follow("the smaller of the two limits counts"),
        "continue_final_message": follow("the answer continues the last message, which is the assistant's"),
        "add_generation_prompt": follow("`false` only together with a begun answer"),
        "reasoning_effort": replace_unless(
            "others",
            NO_VARIABLE,
            'sets the template\'s variable `reasoning_effort`; `"none"` switches thoughts off',
            effort_can_change,
        ),
        "response_format": replace("response_format", UNCONSTRAINED, {"type": "text"}),
        "functions": refuse(DEPRECATED, []),
        "function_call": refuse(DEPRECATED, "none", "auto"),
        "logprobs": refuse(RECORDED, False),
        "top_logprobs": refuse(RECORDED, 0),
        "audio": refuse(TEXTS),
        "modalities": refuse(TEXTS, ["text"]),
        "prediction": no_effect(CACHE),
        "verbosity": replace("others", NO_VARIABLE, "medium"),
        "web_search_options": replace("hosted_tools", HOSTED),
        "echo": refuse("only sampled text is returned", False),
    },
)


def convert(body: Body, run: RequestContext) -> ParsedRequest:
    """Convert a conversation and its sampling options.

    Raises:
        Refused: if something is missing or has the wrong type.
    """
    messages = take(body, "messages", list, "a list of messages")
    if not messages or not all(isinstance(message, Mapping) for message in messages):
        raise Refused(400, "'messages' must be a list of messages, each with a role.")
    limits = [take(body, key, int, "an integer") for key in ("max_tokens", "max_completion_tokens")]
    options = take(body, "stream_options", Mapping, "an object") or {}
    shown = tools(body)
    return ParsedRequest(
        model=str(body.get("model", "")),
        messages=[_shown(message) for message in messages],
        begun=_is_begun(body, messages),
        tools=shown,
        one_call=bool(shown) and take(body, "parallel_tool_calls", bool, "true or false") is False,
        variables=template_variables(body, run, take(body, "reasoning_effort", str, "a string")),
        max_new_tokens=min((limit for limit in limits if limit is not None), default=None),
        temperature=take(body, "temperature", (int, float), "a number"),
        stop=stop_strings(body.get("stop")),
        is_streamed=bool(body.get("stream")),
        options={"include_usage": bool(options.get("include_usage"))},
    )


def tools(body: Body) -> list[Mapping[str, Any]]:
    """Return the JSON schemas of the tools.

    Raises:
        Refused: if a tool is invalid.
    """
    schemas = take(body, "tools", list, "a list of tools") or []
    for tool in schemas:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Refused(400, '\'tools\' must be functions: {"type": "function", "function": {"name": …}}.')
    return [] if body.get("tool_choice") == "none" else schemas


def _shown(message: Mapping[str, Any]) -> Mapping[str, Any]:
    shown = {key: value for key, value in message.items() if key != "prefix"}
    return {**shown, "role": "system"} if message["role"] == "developer" else shown


def _is_begun(body: Body, messages: list[Mapping[str, Any]]) -> bool:
    """Whether the last message is the begun answer.

    Raises:
        Refused: if the options contradict each other, or the last message is not the assistant's.
    """
    continues = take(body, "continue_final_message", bool, "true or false")
    adds = take(body, "add_generation_prompt", bool, "true or false")
    if any(message.get("prefix") for message in messages[:-1]):
        raise Refused(400, "'prefix' must be on the last message.")
    begun = bool(continues or messages[-1].get("prefix"))
    if begun == bool(adds) and adds is not None:
        raise Refused(400, "'add_generation_prompt' must be false with a begun answer, and true without.")
    if begun and messages[-1]["role"] != "assistant":
        raise Refused(400, "'continue_final_message' needs a last message of the assistant.")
    return begun


def write(question: ParsedRequest, answered: Answered) -> dict[str, Any]:
    """Encode the answer as one object with one choice."""
    message: dict[str, Any] = {"role": "assistant", "content": answered.text, "refusal": None}
    if answered.thought:
        message["reasoning_content"] = answered.thought
    if answered.tool_calls:
        message["tool_calls"] = [call.openai for call in answered.tool_calls]
        message["content"] = answered.text or None
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(answered)}
    return {**_head(question, answered, "chat.completion"), "choices": [choice], "usage": usage(answered)}


def events(question: ParsedRequest, answered: Answered) -> Iterable[str]:
    """Yield the answer in chunks: role, thought, text, tool calls, finish reason and, if requested, usage."""
    head = _head(question, answered, "chat.completion.chunk")

    def chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return event({**head, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    if answered.thought:
        yield chunk({"reasoning_content": answered.thought})
    if answered.text:
        yield chunk({"content": answered.text})
    for index, call in enumerate(answered.tool_calls):
        yield chunk({"tool_calls": [{"index": index, **call.openai}]})
    yield chunk({}, _finish_reason(answered))
    if question.options["include_usage"]:
        yield event({**head, "choices": [], "usage": usage(answered)})
    yield "data: [DONE]\n\n"


def _head(question: ParsedRequest, answered: Answered, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answered.id}",
        "object": kind,
        "created": answered.created,
        "model": question.model,
        "system_fingerprint": None,
    }


def _finish_reason(answered: Answered) -> str:
    return "tool_calls" if answered.tool_calls else answered.finish_reason


CHAT = AgentDialect("/v1/chat/completions", OPTIONS, convert, write, events, openai_error)
