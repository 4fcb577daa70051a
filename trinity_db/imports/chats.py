"""Conversations in rows: prompts and responses of several turns, tools, calls of tools and their results.

The form is OpenAI's: a turn of the assistant may have `tool_calls`, each with a `function` that has a `name`
and `arguments`, an object or its JSON text; a turn with the role `tool` has the result. Models and their chat
templates are known to the trainer only, so a template that shows no tools is found there.
"""

import json
from collections.abc import Sequence
from typing import Any

from trinity_db.imports.records import (
    Message,
    Response,
    Unfit,
    conversation,
    prompt_payload,
    taught,
    text,
    tidy,
)
from trinity_db.prompts import function_of

SHOWN = ("tool_calls", "reasoning_content", "reasoning", "thinking")
"""What a chat template may show of a turn beside its text. A turn with none of it is a text."""


def chat(value: Any, name: str) -> list[Message]:
    """Messages whose tool calls have names and arguments.

    Raises:
        Unfit: they are none.
    """
    messages = conversation(value, name)
    for message in messages:
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise Unfit(f"'{name}' holds 'tool_calls' that are no list")
        for call in calls:
            _check_call(call, name)
    return messages


def _check_call(call: Any, name: str) -> None:
    function = function_of(call)
    called, given = function.get("name"), function.get("arguments")
    if not isinstance(called, str) or not called:
        raise Unfit(f"'{name}' holds a tool call without a name")
    if isinstance(given, str):
        given = _parsed(given)
    if not isinstance(given, dict):
        raise Unfit(f"'{name}' holds a tool call whose 'arguments' are no JSON object")


def _parsed(written: str) -> Any:
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        return None


def tools(value: Any, name: str) -> list[Message]:
    """What the model may call: a list of JSON schemas with names, or its JSON text, as TRL has it in tables.

    Raises:
        Unfit: it is none.
    """
    given = _parsed(value) if isinstance(value, str) else value
    if not isinstance(given, list):
        raise Unfit(f"'{name}' must be a list of tools, or its JSON text")
    for tool in given:
        called = function_of(tool).get("name")
        if not isinstance(called, str) or not called:
            raise Unfit(f"'{name}' holds a tool without a name")
    found: list[Message] = tidy(given)
    return found


def prompt(value: Any, name: str) -> dict[str, Any]:
    """The part of a task's payload that is its prompt, as `prompt_payload`, with its tool calls checked."""
    return prompt_payload(chat(value, name) if isinstance(value, list) else value, name)


def reply(value: Any, name: str) -> Response:
    """A response: text, or messages that begin and end with the assistant's."""
    if not isinstance(value, list):
        return text(value, name)
    return _reply(chat(value, name), name)


def _reply(messages: Sequence[Message], name: str) -> Response:
    if not messages:
        raise Unfit(f"'{name}' is empty")
    if messages[0]["role"] != "assistant":
        raise Unfit(f"'{name}' must be text, or messages that begin with the assistant's")
    if messages[-1]["role"] != "assistant":
        raise Unfit(f"'{name}' must end with a turn of the assistant's")
    only = messages[-1]
    if len(messages) == 1 and not any(only.get(key) for key in SHOWN):
        return text(only["content"], name)
    if not any(one["content"].strip() or one.get("tool_calls") for one in messages):
        raise Unfit(f"'{name}' is empty")
    learned = [one for one in messages if one["role"] == "assistant" and one.get("weight", 1)]
    if learned[-1:] != [only]:
        raise Unfit(f"the last turn of '{name}' has a weight of 0")
    return [{key: one[key] for key in one if key != "weight" or not one["weight"]} for one in messages]


def split(value: Any, name: str, teaches_all: bool = False) -> tuple[dict[str, Any], Message | None]:
    """A conversation's last turn, if it is the assistant's, is the response, and the rest the prompt.

    Args:
        teaches_all: every turn of the assistant is learned that has no weight of 0.
    """
    messages = chat(value, name)
    if teaches_all:
        messages = taught(messages, name)
    *before, last = messages
    if last["role"] != "assistant":
        return prompt_payload(messages, name), None
    if not before:
        raise Unfit(f"'{name}' holds a response without a prompt")
    return prompt_payload(before, name), last


def part_messages(
    given: Any, chosen: Any, rejected: Any, labels: tuple[str, str], prompt_label: str
) -> tuple[dict[str, Any], Response, Response]:
    """Two conversations into the messages they share, (the end of) the prompt, and a response each.

    As TRL's `extract_prompt`; but the prompt never takes the turn with which a response begins.
    """
    left, right = chat(chosen, labels[0]), chat(rejected, labels[1])
    if left == right:
        raise Unfit(f"'{labels[0]}' equals '{labels[1]}'")
    num_shared = 0
    while num_shared < min(len(left), len(right)) and left[num_shared] == right[num_shared]:
        num_shared += 1
    # Both responses begin with a turn of the assistant's, so that neither is a beginning of the other.
    begins = [
        place
        for place in range(num_shared + 1)
        if all(side[place:] and side[place]["role"] == "assistant" for side in (left, right))
    ]
    begin = max(begins, default=num_shared)
    shared = left[:begin]
    if isinstance(given, list):
        before = chat(given, prompt_label)
        shared = shared if shared[: len(before)] == before else before + shared
    elif given is not None and not any(message["content"] == given for message in shared):
        shared = [{"role": "user", "content": text(given, prompt_label)}, *shared]
    if not shared:
        raise Unfit(f"'{prompt_label}' is missing, and '{labels[0]}' and '{labels[1]}' begin differently")
    payload = prompt_payload(shared, prompt_label)
    return payload, _reply(left[begin:], labels[0]), _reply(right[begin:], labels[1])


def part_text(chosen: str, rejected: str) -> tuple[str, str, str]:
    """Two texts into the words they share at the start, which are the prompt, and a response each.

    As TRL's `extract_prompt`, but never in the middle of a word; the space before the response belongs to it.
    """
    if chosen == rejected:
        raise Unfit("'chosen' equals 'rejected'")
    length = next((i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), None)
    shared = chosen[:length] if length is not None else min(chosen, rejected, key=len)
    end = max(shared.rfind(" "), shared.rfind("\n"))
    if not shared[: max(end, 0)].strip():
        raise Unfit("'prompt' is missing, and 'chosen' and 'rejected' begin differently")
    return shared[:end], chosen[end:], rejected[end:]
