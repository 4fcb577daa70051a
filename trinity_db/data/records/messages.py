"""Messages of a row, in OpenAI's form: each with a role, content as text, and perhaps tool calls.

Other forms are converted; nulls in messages are missing keys. What a message has in this form stays
unchanged.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trinity_db.data.records import forms as known
from trinity_db.data.records.forms import Conversions
from trinity_db.data.records.records import Message, Unfit, kind_of
from trinity_db.data.records.strict_json import DECODER
from trinity_db.models.chat.parts import THOUGHTS
from trinity_db.models.chat.prompts import function_of

SHOWN = ("tool_calls", *THOUGHTS)
"""Keys of a turn, other than its text, that a chat template may show."""
CALL_KEYS = {"function", "name", "id", "type", "index"}
"""Keys of a tool call that hold no arguments."""
PLAIN = {"role", "content"}
BEGINNING = re.compile(r"\[\s*+\{\s*+[\"'](?:role|content|from|value)[\"']\s*+:")
"""The beginning of a text, without white space before it, that can only be meant as messages."""


def conversation(value: Any, name: str, forms: Conversions) -> list[Message]:
    """Return messages, each with a role and text content, with results in the order of their calls.

    Args:
        forms: receives the forms that were converted.

    Raises:
        Unfit: if they are invalid.
    """
    if isinstance(value, str):
        value = parsed(value, name, forms)
    if isinstance(value, dict):
        forms.add(known.ONE_MESSAGE)
        value = [value]
    if not isinstance(value, list):
        raise Unfit(f"'{name}' must be a list of messages, not {kind_of(value)}")
    if not value:
        raise Unfit(f"'{name}' is empty")
    messages: list[Message] = []
    was_call = False
    for item in value:
        message = _message(item, name, forms)
        is_call = _role_of(item) in known.CALL_ROLES
        if is_call and was_call:
            last = messages[-1]
            if message.get("weight") != last.get("weight") or any(message.get(key) for key in THOUGHTS):
                raise known.UNEQUAL_CALLS(name)
            last["tool_calls"] += message["tool_calls"]
        else:
            messages.append(message)
        was_call = is_call
    return _ordered(messages, name, forms)


def parsed(written: str, name: str, forms: Conversions) -> Any:
    """Return the list or object that a JSON text has; other text is returned unchanged.

    Raises:
        Unfit: if the text begins like messages and is not JSON.
    """
    if not written.lstrip().startswith(("[", "{")):
        return written
    value = json_of(written)
    if isinstance(value, list | dict):
        forms.add(known.JSON_TEXT)
        return value
    if BEGINNING.match(written.lstrip()):
        raise known.BROKEN_JSON(name)
    return written


def conversation_or_text(value: Any, name: str, forms: Conversions) -> Any:
    """Return messages if the value has some, also as JSON text; otherwise the value unchanged."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        inner_forms: Conversions = set()
        inner = parsed(value, name, inner_forms)
        if not _are_messages(inner):
            return value
        forms |= inner_forms
        value = inner
    return conversation(value, name, forms) if isinstance(value, list) or _are_messages(value) else value


def _are_messages(value: Any) -> bool:
    """Whether a value is a message, or a list of messages."""
    some = value if isinstance(value, list) else [value]
    return bool(some) and all(
        isinstance(item, dict)
        and isinstance(role := _role_of(item), str)
        and role.lower() in (*known.ROLES, *known.OTHER_ROLES, *known.CALL_ROLES)
        and not item.keys().isdisjoint(("content", "value", "tool_calls", "function_call"))
        for item in some
    )


def json_of(written: str) -> Any:
    """Parse a JSON text; None if it is invalid."""
    try:
        return DECODER.decode(written)
    except (ValueError, RecursionError):
        return None


def _role_of(message: Any) -> Any:
    return message.get("role", message.get("from")) if isinstance(message, dict) else None


def _message(item: Any, name: str, forms: Conversions) -> Message:
    if not isinstance(item, dict):
        raise known.NOT_MESSAGES(name)
    role, content = item.get("role"), item.get("content")
    if item.keys() == PLAIN and role in known.ROLES and isinstance(content, str):
        return item
    message = {key: value for key, value in item.items() if value is not None}
    for convert in _STEPS:
        convert(message, name, forms)
    return message


def _sharegpt(message: Message, name: str, forms: Conversions) -> None:
    if "from" in message and "value" in message and message.keys().isdisjoint(PLAIN):
        message |= {"role": message.pop("from"), "content": message.pop("value")}
        forms.add(known.SHAREGPT)
    if not isinstance(message.get("role"), str):
        raise known.NOT_MESSAGES(name)


def _role(message: Message, name: str, forms: Conversions) -> None:
    role = message["role"]
    if role in known.ROLES:
        return
    if role in known.CALL_ROLES:
        written = message.get("content")
        calls = json_of(written) if isinstance(written, str) else written
        if not isinstance(calls, list | dict) or not calls:
            raise known.NO_CALL(name)
        message |= {
            "role": "assistant",
            "content": "",
            "tool_calls": calls if isinstance(calls, list) else [calls],
        }
        forms.add(known.CALL_TURNS)
        return
    lower = role.lower()
    other = known.OTHER_ROLES.get(lower, lower if lower in known.ROLES else role)
    if other != role:
        message["role"] = other
        forms.add(known.ROLE_NAMES)


def _calls(message: Message, name: str, forms: Conversions) -> None:
    if (older := message.pop("function_call", None)) is not None:
        if message.get("tool_calls"):
            raise known.TWO_CALLS(name)
        message["tool_calls"] = [{"type": "function", "function": older}]
        forms.add(known.FUNCTION_CALL)
    calls = message.get("tool_calls")
    if isinstance(calls, str):
        calls = parsed(calls, name, forms) if calls.strip() else []
    if calls is None or calls == []:
        message.pop("tool_calls", None)
        return
    if not isinstance(calls, list):
        raise Unfit(f"'{name}' holds 'tool_calls' that are not a list")
    message["tool_calls"] = [_call(call, name, forms) for call in calls]


def _call(call: Any, name: str, forms: Conversions) -> Message:
    function = _without_nulls(function_of(call))
    called, arguments = function.get("name"), function.get("arguments")
    if not isinstance(called, str) or not called:
        raise known.BAD_CALL(name)
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        beside = _without_nulls(call) if "function" in call else {}
        other = (beside.keys() | function.keys() - {"arguments"}) - CALL_KEYS
        if other:
            raise known.OTHER_ARGUMENTS(name, min(other))
        function["arguments"] = "{}"
        forms.add(known.NO_ARGUMENTS)
    elif not isinstance(json_of(arguments) if isinstance(arguments, str) else arguments, dict):
        raise known.BAD_ARGUMENTS(name)
    return _without_nulls(call) | {"function": function} if "function" in call else function


def _without_nulls(fields: Mapping[str, Any]) -> Message:
    return {key: value for key, value in fields.items() if value is not None}


def _content(message: Message, name: str, forms: Conversions) -> None:
    content = message.get("content")
    if isinstance(content, list) and content:
        message["content"] = "".join(_text_of(part, name) for part in content)
        forms.add(known.PARTS)
    elif content in (None, []) and any(message.get(key) for key in SHOWN):
        message["content"] = ""
        forms.add(known.NULL_CONTENT)
    elif not isinstance(content, str):
        raise known.NO_CONTENT(name)


def _text_of(part: Any, name: str) -> str:
    if isinstance(part, str):
        return part
    is_text = isinstance(part, dict) and (part.get("type") or "text") in known.TEXT_PARTS
    if not is_text or not isinstance(part.get("text"), str):
        raise known.NO_CONTENT(name)
    return str(part["text"])


def _thought(message: Message, name: str, forms: Conversions) -> None:
    thoughts = [message[key] for key in THOUGHTS if message.get(key)]
    if any(thought != thoughts[0] for thought in thoughts):
        raise known.TWO_THOUGHTS(name)


def _mask(message: Message, name: str, forms: Conversions) -> None:
    if "train_detail" in message:
        raise known.PART_TRAINED(name)
    if message.keys().isdisjoint(known.MASKS):
        return
    masks = {key: message.pop(key) for key in known.MASKS if key in message}
    for key, value in masks.items():
        if value not in (0, 1) or value != next(iter(masks.values())):
            raise known.BAD_MASK(name, key)
    weight = int(next(iter(masks.values())))
    if message["role"] != "assistant" and weight:
        raise known.OTHER_TRAINED(name)
    if message["role"] == "assistant":
        message["weight"] = weight
    if masks.keys() != {"weight"}:
        forms.add(known.MASK)


_STEPS: tuple[Callable[[Message, str, Conversions], None], ...] = (
    *(_sharegpt, _role, _calls, _content),
    *(_thought, _mask),
)


def _ordered(messages: list[Message], name: str, forms: Conversions) -> list[Message]:
    """Put the results after an assistant's turn into the order of its calls."""
    if not any(message["role"] == "tool" for message in messages):
        return messages
    ordered: list[Message] = []
    calls: Sequence[Message] = ()
    for is_result, run in _runs(messages):
        if is_result:
            results = _results(calls, run, name)
            if results != run:
                forms.add(known.RESULT_ORDER)
            ordered += results
            calls = ()
        else:
            ordered += run
            calls = next((turn["tool_calls"] for turn in reversed(run) if turn.get("tool_calls")), calls)
    return ordered


def _runs(messages: Sequence[Message]) -> Iterator[tuple[bool, list[Message]]]:
    """Yield successive results of tools, and the messages between them."""
    for is_result, run in itertools.groupby(messages, lambda message: message["role"] == "tool"):
        yield is_result, list(run)


def _results(calls: Sequence[Message], results: list[Message], name: str) -> list[Message]:
    """Return the results of calls in their order: by id, by name, or as they are.

    Calls that are written in the text of a turn have no entry in `calls`, and their results no ids.
    """
    ids = [result.get("tool_call_id") for result in results]
    has_ids = any(result_id is not None for result_id in ids)
    if not calls and not has_ids:
        return results
    if len(results) > len(calls):
        raise known.LOST_RESULT(name)
    if len(results) < len(calls):
        raise known.NO_RESULT(name)
    made: list[Any] = [call.get("id") for call in calls]
    if None not in made and None not in ids:
        if any(result_id not in made for result_id in ids):
            raise known.LOST_RESULT(name)
        return _matched(made, ids, results, name)
    names = [result.get("name") for result in results]
    if len(calls) == 1 or (not has_ids and names == [None] * len(names)):
        return results
    return _matched([function_of(call)["name"] for call in calls], names, results, name)


def _matched(made: list[Any], labels: list[Any], results: list[Message], name: str) -> list[Message]:
    """Return the results in the order of the labels of their calls; equal labels keep their order."""
    left = list(zip(labels, results, strict=True))
    ordered = []
    for label in made:
        index = next((index for index, (other, _) in enumerate(left) if other == label), None)
        if index is None:
            raise known.UNCLEAR_RESULT(name)
        ordered.append(left.pop(index)[1])
    return ordered
