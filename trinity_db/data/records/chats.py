"""Conversations in rows: prompts and responses of several turns, tools, tool calls and their results.

The form is OpenAI's, which `messages` validates: an assistant turn may have `tool_calls`, a turn with the
role `tool` has the result. Only the trainer loads models and chat templates, so a template without tools is
detected there.
"""

from collections.abc import Sequence
from typing import Any

from trinity_db.data.records import forms as known
from trinity_db.data.records.forms import Conversions
from trinity_db.data.records.messages import SHOWN, conversation, conversation_or_text, parsed
from trinity_db.data.records.records import Message, Response, Unfit, text
from trinity_db.models.chat.parts import OTHER_PARTS
from trinity_db.models.chat.prompts import function_of

Payload = dict[str, Any]
"""The prompt part of a task's payload: `prompt` for text, `messages` for a conversation."""


def tools(value: Any, name: str, forms: Conversions) -> list[Message]:
    """Return the tools: a list of JSON schemas with names, or its JSON text (the form of TRL's tables).

    Raises:
        Unfit: if it is invalid.
    """
    schemas = parsed(value, name, forms) if isinstance(value, str) else value
    if not isinstance(schemas, list):
        raise Unfit(f"'{name}' must be a list of tools, or its JSON text")
    for tool in schemas:
        called = function_of(tool).get("name")
        if not isinstance(called, str) or not called:
            raise Unfit(f"'{name}' holds a tool without a name")
    return schemas


def prompt(value: Any, name: str, forms: Conversions) -> Payload:
    """Return the prompt part of a task's payload."""
    value = conversation_or_text(value, name, forms)
    return _as_prompt(value, name) if isinstance(value, list) else {"prompt": text(value, name)}


def _as_prompt(messages: list[Message], name: str) -> Payload:
    if not any(message["content"].strip() or message.get("tool_calls") for message in messages):
        raise Unfit(f"'{name}' is empty")
    return {"messages": messages}


def user(content: str) -> Message:
    """Return a message of the user."""
    return {"role": "user", "content": content}


def reply(value: Any, name: str, forms: Conversions, before: Sequence[Message] = ()) -> Response:
    """Return a response: text, or messages that begin and end with an assistant turn.

    Args:
        before: the messages of the prompt, which the response may repeat.
    """
    value = conversation_or_text(value, name, forms)
    if not isinstance(value, list):
        return text(value, name)
    if before and len(value) > len(before) and value[: len(before)] == before:
        forms.add(known.REPEATED)
        value = value[len(before) :]
    return replied(value, name)


def replied(messages: Sequence[Message], name: str) -> Response:
    """Return validated messages as a response: the text of a single turn without more, or the messages."""
    if not messages:
        raise Unfit(f"'{name}' is empty")
    if messages[0]["role"] != "assistant":
        raise Unfit(f"'{name}' must be text, or messages that begin with an assistant turn")
    if messages[-1]["role"] != "assistant":
        raise Unfit(f"'{name}' must end with an assistant turn")
    only = messages[-1]
    if not only.get("weight", 1):
        raise Unfit(f"the last turn of '{name}' has a weight of 0")
    if len(messages) == 1 and not any(only.get(key) for key in (*SHOWN, *OTHER_PARTS)):
        return text(only["content"], name)
    if not any(message["content"].strip() or any(message.get(key) for key in SHOWN) for message in messages):
        raise Unfit(f"'{name}' is empty")
    return [
        {key: message[key] for key in message if key != "weight" or not message["weight"]}
        for message in messages
    ]


def split(
    messages: list[Message], name: str, forms: Conversions, teaches_all: bool = False
) -> tuple[Payload, Message | None]:
    """Split a conversation into prompt and response, which is its last turn if that is the assistant's.

    Args:
        teaches_all: whether to learn from every assistant turn without weight 0.
    """
    if teaches_all:
        messages = _taught(messages, name, forms)
    *before, last = messages
    if last["role"] != "assistant":
        return _as_prompt(messages, name), None
    if not before:
        raise Unfit(f"'{name}' holds a response without a prompt")
    return _as_prompt(before, name), last


def _taught(messages: list[Message], name: str, forms: Conversions) -> list[Message]:
    """Return a conversation to learn from, with weight 1 for each assistant turn without weight 0.

    Trailing turns of weight 0 are dropped, since nothing to learn follows them.
    """
    marked = [{"weight": 1, **message} if message["role"] == "assistant" else message for message in messages]
    learned = [
        index for index, message in enumerate(marked) if message["role"] == "assistant" and message["weight"]
    ]
    if marked[-1]["role"] != "assistant":
        return marked
    if not learned:
        raise Unfit(f"every turn of the assistant in '{name}' has a weight of 0")
    if learned[-1] + 1 < len(marked):
        forms.add(known.CUT_OFF)
    return marked[: learned[-1] + 1]


def part_messages(
    prompt: Payload | None,
    left: list[Message],
    right: list[Message],
    labels: tuple[str, str, str],
    forms: Conversions,
) -> tuple[Payload, Response, Response]:
    """Split two conversations into their common messages, the end of the prompt, and a response each.

    Like TRL's `extract_prompt`, but the prompt never includes a response's first turn.

    Args:
        prompt: the prompt of the row, which both may repeat.
        labels: the names of prompt, chosen and rejected.
    """
    if left == right:
        raise Unfit(f"'{labels[1]}' equals '{labels[2]}'")
    num_shared = 0
    while num_shared < min(len(left), len(right)) and left[num_shared] == right[num_shared]:
        num_shared += 1
    # Both responses begin with an assistant turn, so that neither is a prefix of the other.
    begins = [
        index
        for index in range(num_shared + 1)
        if all(side[index:] and side[index]["role"] == "assistant" for side in (left, right))
    ]
    begin = max(begins, default=num_shared)
    payload = _with_shared(prompt, left[:begin], labels, forms)
    return payload, replied(left[begin:], labels[1]), replied(right[begin:], labels[2])


def _with_shared(
    prompt: Payload | None, shared: list[Message], labels: tuple[str, str, str], forms: Conversions
) -> Payload:
    """Return the prompt of a row, given apart from the responses, in both of them, or in parts."""
    if prompt is None:
        if not shared:
            raise Unfit(f"'{labels[0]}' is missing, and '{labels[1]}' and '{labels[2]}' begin differently")
        forms.add(known.SHARED)
        return _as_prompt(shared, labels[1])
    before = prompt.get("messages") or [user(prompt["prompt"])]
    if not shared:
        return {"messages": before}
    if shared[: len(before)] == before or before[-len(shared) :] == shared or _repeats(prompt, shared):
        forms.add(known.REPEATED)
        return {"messages": max(shared, before, key=len)}
    if all(message["role"] in ("system", "developer") for message in shared) and "prompt" in prompt:
        return {"messages": shared + before}
    if (
        all(message["role"] in ("system", "developer") for message in before)
        or before[-1]["role"] == "assistant"
    ):
        return {"messages": before + shared}
    raise known.TWO_PROMPTS(labels[0], labels[1])


def _repeats(prompt: Payload, messages: Sequence[Message]) -> bool:
    return "prompt" in prompt and contains(messages, prompt["prompt"])


def contains(messages: Sequence[Message], part: Any, *, at_end: bool = False) -> bool:
    """Whether a conversation contains a prompt or, at its end, a response.

    A text is one of its messages; messages are its beginning or end.
    """
    if isinstance(part, str):
        return any(message["content"].strip() == part.strip() for message in messages)
    if not isinstance(part, list):
        return False
    return list(messages[-len(part) :] if at_end else messages[: len(part)]) == part


def part_text(chosen: str, rejected: str, forms: Conversions) -> tuple[str, str, str]:
    """Split two texts into their common initial words, the prompt, and a response each.

    Like TRL's `extract_prompt`, but never within a word; the space before the response belongs to it.
    """
    if chosen == rejected:
        raise Unfit("'chosen' equals 'rejected'")
    length = next((i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), None)
    shared = chosen[:length] if length is not None else min(chosen, rejected, key=len)
    end = max(shared.rfind(" "), shared.rfind("\n"))
    if not shared[: max(end, 0)].strip():
        raise Unfit("'prompt' is missing, and 'chosen' and 'rejected' begin differently")
    forms.add(known.SHARED)
    return shared[:end], chosen[end:], rejected[end:]


def history(value: Any, name: str, forms: Conversions) -> list[Message]:
    """Return the messages of earlier turns: pairs of a question and its answer, or messages."""
    turns = parsed(value, name, forms) if isinstance(value, str) and value.strip() else value
    if turns in ("", []):
        return []
    forms.add(known.HISTORY)
    if isinstance(turns, list) and all(isinstance(turn, dict) for turn in turns):
        return conversation(turns, name, forms)
    messages: list[Message] = []
    for pair in turns if isinstance(turns, list) else [None]:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(turn, str) for turn in pair):
            raise known.BAD_HISTORY(name)
        messages += [user(pair[0]), {"role": "assistant", "content": pair[1]}]
    return messages
