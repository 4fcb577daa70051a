"""Tools: plain Python functions that a chat model may call, and the calls that it writes.

pydantic reads a function's signature: from it come the JSON schema that the chat template shows the model,
and the check of the arguments that the model gives. What goes wrong in a call is told to the model as the
tool's answer. Importing this needs none of the extras.
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

from trinity_db import signatures
from trinity_db.errors import ConfigError
from trinity_db.functions import describe_error, in_thread

logger = logging.getLogger(__name__)

NAME = 200  # characters of an unknown tool's name that are compared and told

_SECTION = re.compile(r"^(?:Args|Returns|Raises|Yields|Examples?):\s*$", re.M)  # of a docstring
_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.S)
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*)</function>", re.S)
_KEY = re.compile(r"[^<>\n]+")


@dataclass(frozen=True)
class ToolCall:
    """A call that the model wrote."""

    name: str
    arguments: Mapping[str, Any]
    problem: str | None = None
    """Why it cannot be read; its name and arguments are empty then."""
    id: str = ""
    """Unlike that of any other call of the attempt."""

    @property
    def openai(self) -> dict[str, Any]:
        """As an entry of `tool_calls` in a message of the OpenAI protocol."""
        function = {"name": self.name, "arguments": json.dumps(self.arguments, ensure_ascii=False)}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, eq=False)
class Tool:
    """What a model may call: a function of the user's, or an adapter's with a schema of its own."""

    name: str
    function: Callable[..., Any]
    """Takes the arguments by name; may be a coroutine function. Another one is called in a thread."""
    description: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """JSON schema of the arguments, an object."""

    @property
    def schema(self) -> dict[str, Any]:
        """As chat templates and the OpenAI protocol show it."""
        about = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": about}

    async def __call__(self, arguments: Mapping[str, Any]) -> str:
        """What the tool gives, as a text; a value that is no text is written as JSON.

        Raises:
            ValidationError: an argument is missing, unknown, or of another type.
            Exception: what the tool raises.
        """
        given = ArgsKwargs((), dict(arguments))
        if inspect.iscoroutinefunction(self.function):
            result = await self._checked.validate_python(given)
        else:
            result = await asyncio.to_thread(in_thread, lambda: self._checked.validate_python(given))
            if inspect.isawaitable(result):  # as of a callable object
                result = await result
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)

    @cached_property
    def _checked(self) -> TypeAdapter[Any]:
        function: Any = self.function
        return TypeAdapter(function)


def tools_of(given: Sequence[Callable[..., Any] | Tool]) -> dict[str, Tool]:
    """Tools by name, in their order; of a function the docstring says what it does.

    Raises:
        ConfigError: a function is none that a model can call, or two have one name.
    """
    tools: dict[str, Tool] = {}
    for one in given:
        tool = one if isinstance(one, Tool) else _of_function(one)
        if tool.name in tools:
            raise ConfigError(f"Two tools are named '{tool.name}'; a model tells tools apart by their names.")
        tools[tool.name] = tool
    return tools


def schemas_of(given: Sequence[Callable[..., Any] | Tool | Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The JSON schemas of tools; those that are schemas already stay as they are.

    Raises:
        ConfigError: a function is none that a model can call, or two have one name.
    """
    functions = iter(tools_of([one for one in given if not isinstance(one, Mapping)]).values())
    return [one if isinstance(one, Mapping) else next(functions).schema for one in given]


async def answer(call: ToolCall, tools: Mapping[str, Tool]) -> dict[str, Any]:
    """The message that answers a call: what the tool gave, or what went wrong, for the model to read."""
    return {
        "role": "tool",
        "tool_call_id": call.id,
        "name": call.name,
        "content": await _result(call, tools),
    }


def parse(
    token_ids: Sequence[int], prompt: str, tokenizer: Any, schemas: Sequence[Mapping[str, Any]]
) -> tuple[str, list[ToolCall]]:
    """The content and the tool calls of an answer, in their order.

    A tokenizer with a `response_template`, as transformers reads it from the model's folder, says itself how
    the model writes calls. Else these are read:

    - JSON: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes and Qwen 2.5 and 3 write;
    - tags: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`, as Qwen 3.5.

    A call within `<think>…</think>` is only thought of.

    Args:
        prompt: the text that was answered; a template may begin the answer there.
        schemas: of the tools; they say which values that are written in tags are texts.
    """
    if getattr(tokenizer, "response_template", None) is not None:
        return _by_template(token_ids, prompt, tokenizer, schemas)
    text: str = tokenizer.decode(token_ids, skip_special_tokens=True)
    thought, closed, said = text.rpartition("</think>")
    calls = [_call(block, schemas) for block in _BLOCK.findall(said)]
    return (thought + closed + _BLOCK.sub("", said)).strip() if calls else text, calls


def _of_function(function: Any) -> Tool:
    name = getattr(function, "__name__", type(function).__name__)
    if not (description := _SECTION.split(inspect.getdoc(function) or "")[0].strip()):
        raise ConfigError(f"Tool '{name}' has no docstring; from it the model reads what the tool does.")
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
        nearest = get_close_matches(call.name[:NAME], tools, n=1)  # it takes the square of a name's length
        known = f"did you mean '{nearest[0]}'?" if nearest else f"known: {', '.join(tools)}."
        return f"Error: there is no tool '{call.name[:NAME]}'; {known}"
    try:
        return await tools[call.name](call.arguments)
    except ValidationError as error:
        return "Error: " + "; ".join(_complaint(one["loc"], one["msg"]) for one in error.errors())
    except (Exception, SystemExit) as error:  # a tool is a user's own code
        logger.debug("tool '%s' raised %s", call.name, describe_error(error))
        return f"Error: {describe_error(error.with_traceback(None))}"  # the model sees no path


def _complaint(place: Sequence[int | str], message: str) -> str:
    return f"{'.'.join(map(str, place))}: {message}" if place else message


def _call(block: str, schemas: Sequence[Mapping[str, Any]]) -> ToolCall:
    if written := _FUNCTION.fullmatch(block.strip()):
        name = written[1].strip()
        return ToolCall(name, dict(_values(written[2], _properties(name, schemas))))
    if block.lstrip().startswith("<function="):
        return ToolCall("", {}, "a tool call is written as <function=…>…</function>, closed")
    try:
        value = json.loads(block)
    except (ValueError, RecursionError) as error:
        return ToolCall("", {}, f"the tool call is no JSON: {error}")
    return _of_value(value)


def _of_value(value: Any) -> ToolCall:
    name = value.get("name") if isinstance(value, dict) else None
    arguments = value.get("arguments", {}) if isinstance(value, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return ToolCall("", {}, 'a tool call is written as {"name": "…", "arguments": {…}}')
    return ToolCall(name, arguments)


def _values(text: str, properties: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in _parameters(text):
        if properties.get(key, {}).get("type") == "string":
            yield key, value
            continue
        try:
            yield key, json.loads(value)
        except (ValueError, RecursionError):
            yield key, value


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    """The keys and values of `<parameter=key>value</parameter>`, in one pass over the text."""
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
            properties: Mapping[str, Any] = function.get("parameters", {}).get("properties", {})
            return properties
    return {}


def _by_template(
    token_ids: Sequence[int], prompt: str, tokenizer: Any, schemas: Sequence[Mapping[str, Any]]
) -> tuple[str, list[ToolCall]]:
    spoken = tokenizer.decode(token_ids, skip_special_tokens=False)
    try:
        message = tokenizer.parse_response(spoken, prefix=prompt, tools=[*schemas])
    except Exception as error:  # a template is a model's own code
        return "", [ToolCall("", {}, f"the tool call cannot be read: {error}")]
    if calls := [_of_value(one.get("function", one)) for one in message.get("tool_calls") or []]:
        return message.get("content") or "", calls
    return tokenizer.decode(token_ids, skip_special_tokens=True), []
