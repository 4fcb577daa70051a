"""Tools: plain Python functions offered to a chat model, and parsing of the calls that it writes.

pydantic derives a function's JSON schema, which the chat template shows to the model, and validates the
model's arguments. Errors of a call are returned to the model as the tool's result. Importing this module
needs none of the extras.
"""

import asyncio
import inspect
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import ArgsKwargs

from trinity_db.config import signatures
from trinity_db.config.user_functions import describe_error, in_thread
from trinity_db.errors import ConfigError
from trinity_db.models.chat.decoding import response_text
from trinity_db.models.chat.thoughts import cut

logger = logging.getLogger(__name__)

NAME = 200  # maximum characters of an unknown tool's name that are compared and shown

CALL_END = "</tool_call>"
"""Text that ends every tool call in the formats that `parse` recognises itself."""

_SECTION = re.compile(r"^(?:Args|Returns|Raises|Yields|Examples?):\s*$", re.M)  # in a docstring
_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.S)
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*)</function>", re.S)
_KEY = re.compile(r"[^<>\n]+")


@dataclass(frozen=True)
class ToolCall:
    """A tool call written by the model."""

    name: str
    arguments: Mapping[str, Any]
    problem: str | None = None
    """Why the call cannot be parsed; name and arguments are then empty."""
    id: str = ""
    """Id, unique within the attempt."""

    @property
    def openai(self) -> dict[str, Any]:
        """The call as an entry of `tool_calls` in an OpenAI message."""
        function = {"name": self.name, "arguments": json.dumps(self.arguments, ensure_ascii=False)}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, eq=False)
class Tool:
    """A tool offered to the model: a user's function, or an adapter's function with an explicit schema."""

    name: str
    function: Callable[..., Any]
    """Takes the arguments by name. Coroutine functions are awaited; other functions run in a thread."""
    description: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """JSON schema of the arguments, of type object."""

    @property
    def schema(self) -> dict[str, Any]:
        """Schema in the form used by chat templates and the OpenAI protocol."""
        about = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": about}

    async def __call__(self, arguments: Mapping[str, Any]) -> str:
        """Run the tool and return its result as text; results other than strings are encoded as JSON.

        Raises:
            ValidationError: if an argument is missing, unknown, or of the wrong type.
            Exception: any error of the tool.
        """
        bound = ArgsKwargs((), dict(arguments))
        if inspect.iscoroutinefunction(self.function):
            result = await self._checked.validate_python(bound)
        else:
            result = await asyncio.to_thread(in_thread, lambda: self._checked.validate_python(bound))
            if inspect.isawaitable(result):  # such as from a callable object
                result = await result
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)

    @cached_property
    def _checked(self) -> TypeAdapter[Any]:
        function: Any = self.function
        return TypeAdapter(function)


def tools_of(offered: Sequence[Callable[..., Any] | Tool]) -> dict[str, Tool]:
    """Return tools by name, in order. A function's docstring becomes its description.

    Raises:
        ConfigError: if a function cannot be offered to a model, or two tools have the same name.
    """
    tools: dict[str, Tool] = {}
    for item in offered:
        tool = item if isinstance(item, Tool) else _of_function(item)
        if tool.name in tools:
            raise ConfigError(f"Two tools are named '{tool.name}'; a model tells tools apart by their names.")
        tools[tool.name] = tool
    return tools


def schemas_of(offered: Sequence[Callable[..., Any] | Tool | Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the JSON schemas of tools; schemas are passed through.

    Raises:
        ConfigError: if a function cannot be offered to a model, or two tools have the same name.
    """
    functions = iter(tools_of([item for item in offered if not isinstance(item, Mapping)]).values())
    return [item if isinstance(item, Mapping) else next(functions).schema for item in offered]


async def answer(call: ToolCall, tools: Mapping[str, Tool]) -> dict[str, Any]:
    """Return the message that answers a call: the tool's result, or its error for the model to read."""
    return {
        "role": "tool",
        "tool_call_id": call.id,
        "name": call.name,
        "content": await _result(call, tools),
    }


def parse(
    token_ids: Sequence[int], prompt: str, tokenizer: Any, schemas: Sequence[Mapping[str, Any]]
) -> tuple[str, list[ToolCall]]:
    """Split an answer into its content and its tool calls, in order.

    If the tokenizer has a `response_template`, which transformers reads from the model's folder, that
    template defines how calls are parsed. Otherwise these formats are recognised:

    - JSON: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as written by Hermes, Qwen 2.5 and Qwen 3;
    - tags: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`, by Qwen 3.5.

    Calls inside thoughts are ignored.

    Args:
        prompt: the prompt text; a template may start the answer there.
        schemas: schemas of the tools; they determine which tag values are strings.
    """
    if getattr(tokenizer, "response_template", None) is not None:
        return _by_template(token_ids, prompt, tokenizer, schemas)
    text = response_text(token_ids, tokenizer)
    thought, rest = cut(text)
    calls = [_call(block, schemas) for block in _BLOCK.findall(rest)]
    return (thought + _BLOCK.sub("", rest)).strip() if calls else text, calls


def has_call_end(tokenizer: Any) -> bool:
    """Whether every tool call ends with `CALL_END`: a response template may define another format."""
    return getattr(tokenizer, "response_template", None) is None


def _of_function(function: Any) -> Tool:
    name = getattr(function, "__name__", type(function).__name__)
    if not (description := _SECTION.split(inspect.getdoc(function) or "")[0].strip()):
        raise ConfigError(f"Tool '{name}' has no docstring; the model needs one to know what the tool does.")
    try:
        parameters = TypeAdapter(function).json_schema()
        parameters.pop("additionalProperties", None)
    except (PydanticUserError, NameError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"Tool '{name}' cannot be shown to a model: {reason}") from error
    texts = signatures.texts(function)
    for key, about in parameters.get("properties", {}).items():
        about.pop("title", None)
        if key in texts:
            about["description"] = texts[key]
    return Tool(name, function, description, parameters)


async def _result(call: ToolCall, tools: Mapping[str, Tool]) -> str:
    if call.problem is not None:
        return f"Error: {call.problem}"
    if call.name not in tools:
        nearest = get_close_matches(call.name[:NAME], tools, n=1)  # quadratic in the length of the name
        known = f"did you mean '{nearest[0]}'?" if nearest else f"known: {', '.join(tools)}."
        return f"Error: there is no tool '{call.name[:NAME]}'; {known}"
    try:
        return await tools[call.name](call.arguments)
    except ValidationError as error:
        return "Error: " + "; ".join(_complaint(problem["loc"], problem["msg"]) for problem in error.errors())
    except (Exception, SystemExit) as error:  # user code
        logger.debug("tool '%s' raised %s", call.name, describe_error(error))
        return f"Error: {describe_error(error.with_traceback(None))}"  # no file paths for the model


def _complaint(location: Sequence[int | str], message: str) -> str:
    return f"{'.'.join(map(str, location))}: {message}" if location else message


def _call(block: str, schemas: Sequence[Mapping[str, Any]]) -> ToolCall:
    if written := _FUNCTION.fullmatch(block.strip()):
        name = written[1].strip()
        return _sendable(name, dict(_values(written[2], _properties(name, schemas))))
    if block.lstrip().startswith("<function="):
        return ToolCall("", {}, "a tool call must have the form <function=…>…</function>, closed")
    try:
        value = json.loads(block)
    except (ValueError, RecursionError) as error:
        return ToolCall("", {}, f"the tool call is not valid JSON: {error}")
    return _of_value(value)


def _of_value(value: Any) -> ToolCall:
    name = value.get("name") if isinstance(value, dict) else None
    arguments = value.get("arguments", {}) if isinstance(value, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return ToolCall("", {}, 'a tool call must have the form {"name": "…", "arguments": {…}}')
    return _sendable(name, arguments)


def _sendable(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    """Return a call, unless no protocol can carry it.

    Python's JSON parser accepts `NaN` and `Infinity`, which are not JSON, and the escape of half a surrogate
    pair, which is not a character.
    """
    try:
        json.dumps([name, arguments], ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        return ToolCall("", {}, f"the tool call cannot be sent as JSON: {error}")
    return ToolCall(name, arguments)


def _values(text: str, properties: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in _parameters(text):
        if _object_of(properties.get(key)).get("type") == "string":
            yield key, value
            continue
        try:
            yield key, json.loads(value)
        except (ValueError, RecursionError):
            yield key, value


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of `<parameter=key>value</parameter>`, in one pass over the text."""
    position = 0
    while (opened := text.find("<parameter=", position)) >= 0:
        key = _KEY.match(text, opened + len("<parameter="))
        position = opened + len("<parameter=") if key is None else key.end()
        if key is None or not text.startswith(">", position):
            continue
        closed = text.find("</parameter>", position)
        if closed < 0:
            return
        value = text[position + 1 : closed]
        yield key[0], value.removeprefix("\n").removesuffix("\n")
        position = closed + len("</parameter>")


def _properties(name: str, schemas: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    for schema in schemas:
        function = schema.get("function", schema)
        if function.get("name") == name:
            return _object_of(_object_of(function.get("parameters")).get("properties"))
    return {}


def _object_of(value: Any) -> Mapping[str, Any]:
    """Return a part of a JSON schema, which a program wrote; {} if it is no object, such as `true`."""
    return value if isinstance(value, Mapping) else {}


def _by_template(
    token_ids: Sequence[int], prompt: str, tokenizer: Any, schemas: Sequence[Mapping[str, Any]]
) -> tuple[str, list[ToolCall]]:
    spoken = tokenizer.decode(token_ids, skip_special_tokens=False)
    try:
        message = tokenizer.parse_response(spoken, prefix=prompt, tools=[*schemas])
    except Exception as error:  # a template is code of the model
        return "", [ToolCall("", {}, f"the tool call cannot be parsed: {error}")]
    if calls := [_of_value(call.get("function", call)) for call in message.get("tool_calls") or []]:
        return message.get("content") or "", calls
    return response_text(token_ids, tokenizer), []
