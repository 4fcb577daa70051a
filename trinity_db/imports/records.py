"""What a row means: five kinds of record, each checked and known by its content.

A record's key is a hash of its content, the same in every file, format and run. That makes a second import
of a row a no-op, and lets attempts at one task find one another. Values are tidied first, so that a row
reads the same from JSON, from a table and back from the database: nulls in objects are left out, and whole
numbers are integers.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from trinity_db.prompts import function_of, offered_tools
from trinity_db.store.rewards import MAX_REWARD

Kind = Literal["tasks", "preferences", "demonstrations", "trajectories", "traces"]

MAX_RECORD_BYTES = 8 * 2**20  # of a record as JSON, and of a line: far above any context, far below memory
MAX_NUMBER_BITS = 14_000  # of a whole number: Python writes and reads none of more than 4,300 digits

Message = dict[str, Any]  # role, content, and whatever else a chat template may read
Response = str | list[Message]  # a text, or messages where it is more, as with tool calls or of several turns


class Unfit(ValueError):
    """A row cannot become a record; the message is the reason."""


@dataclass(frozen=True)
class Record:
    """The base of all records.

    Raises:
        Unfit: for content that the database or a second reader could not take: NaN, NUL characters, lone
            surrogates, more than MAX_RECORD_BYTES.
    """

    key: UUID = field(init=False)
    num_bytes: int = field(init=False, repr=False, compare=False)
    """Length as JSON, those of the records in it included."""

    def __post_init__(self) -> None:
        key, num_bytes = _fingerprint(type(self).__name__, vars(self))
        object.__setattr__(self, "key", key)
        task, sequences = vars(self).get("task"), vars(self).get("sequences", ())
        inner = [*([task] if task else []), *sequences]
        object.__setattr__(self, "num_bytes", num_bytes + sum(record.num_bytes for record in inner))


@dataclass(frozen=True)
class Task(Record):
    """A prompt, in its payload as text (`prompt`) or as a conversation (`messages`), maybe with its `answer`.

    Imported as such, it keeps every other column in its payload too, for reward functions to read.
    """

    payload: dict[str, Any]

    @property
    def messages(self) -> list[Message] | None:
        """The conversation; None where the prompt is plain text."""
        messages: list[Message] | None = self.payload.get("messages")
        return messages

    @property
    def prompt(self) -> str:
        """The prompt as text, for people and for search; of a conversation, what was said in it."""
        if self.messages is None:
            return str(self.payload["prompt"])
        return said(self.messages)

    @property
    def tools(self) -> list[Message] | None:
        """What the model may call; None where nothing is offered, or where the column is another thing."""
        return [dict(tool) for tool in offered_tools(self.payload)] or None


@dataclass(frozen=True)
class Demonstration(Record):
    """A response to imitate; with an empty prompt a document, learned from its first token."""

    task: Task
    response: Response
    extra: dict[str, Any]


@dataclass(frozen=True)
class Preference(Record):
    """Two responses to one task, one better than the other, by `margin` where that is known."""

    task: Task
    chosen: Response
    rejected: Response
    margin: float | None
    extra: dict[str, Any]


@dataclass(frozen=True)
class Unpaired(Record):
    """One response with a verdict, good or bad."""

    task: Task
    response: Response
    label: bool
    extra: dict[str, Any]


@dataclass(frozen=True)
class Trajectory(Record):
    """One attempt at a task, with its reward where it has one, and who made it."""

    task: Task
    response: Response
    reward: float | None
    model: str | None
    extra: dict[str, Any]


def said(response: Response) -> str:
    """What was said, as a text for people and for search; a tool call is written as `name(arguments)`."""
    if isinstance(response, str):
        return response
    return "\n\n".join(map(_said, response))


def _said(message: Message) -> str:
    calls = []
    for call in message.get("tool_calls") or ():
        function = function_of(call)
        given = function.get("arguments", "")
        written = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        calls.append(f"{function.get('name', '')}({written})")
    return "\n".join([*([message["content"]] if message["content"] or not calls else []), *calls])


def tidy(value: Any) -> Any:
    """The value as JSON and PostgreSQL's jsonb both keep it: no nulls in objects, one kind of number."""
    if isinstance(value, dict):
        return {name: tidy(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [tidy(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def text(value: Any, name: str) -> str:
    """A text that is not blank, or Unfit."""
    if not isinstance(value, str):
        raise Unfit(f"'{name}' must be text, not {_kind_of(value)}")
    if not value.strip():
        raise Unfit(f"'{name}' is empty")
    return value


def number(value: Any, name: str) -> float:
    """A finite number, true and false as 1 and 0, or Unfit."""
    if not isinstance(value, bool | int | float):
        raise Unfit(f"'{name}' must be a number, not {_kind_of(value)}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise Unfit(f"'{name}' is not finite")
    return result


def reward(value: Any, name: str) -> float:
    """A number that a group's statistics can be computed from, or Unfit."""
    result = number(value, name)
    if abs(result) > MAX_REWARD:
        raise Unfit(f"'{name}' is beyond {MAX_REWARD:g}")
    return result


def verdict(value: Any, name: str) -> bool:
    """True or false, also as 1 or 0, or Unfit."""
    if not isinstance(value, bool | int | float):
        raise Unfit(f"'{name}' must be true or false, not {_kind_of(value)}")
    if value not in (0, 1):
        raise Unfit(f"'{name}' must be true or false, not another number")
    return bool(value)


def conversation(value: Any, name: str) -> list[Message]:
    """Messages, each with a role and a text as its content, or Unfit."""
    if not isinstance(value, list):
        raise Unfit(f"'{name}' must be a list of messages, not {_kind_of(value)}")
    if not value:
        raise Unfit(f"'{name}' is empty")
    messages: list[Message] = tidy(value)
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Unfit(f"'{name}' must hold messages with 'role' and 'content'")
        if message.get("tool_calls") and "content" not in message:
            message["content"] = ""
        if not isinstance(message.get("content"), str):
            raise Unfit(f"'{name}' holds a message whose 'content' is not text")
        if message.get("weight", 1) not in (0, 1):
            raise Unfit(f"'{name}' holds a message whose 'weight' is neither 0 nor 1")
    return messages


def taught(messages: list[Message], name: str) -> list[Message]:
    """A conversation to learn from, in which each turn of the assistant has its weight: 1 unless it says 0.

    Turns of weight 0 at its end are left out: nothing that is learned follows from them.
    """
    marked = [{"weight": 1, **one} if one["role"] == "assistant" else one for one in messages]
    learned = [place for place, one in enumerate(marked) if one["role"] == "assistant" and one["weight"]]
    if marked[-1]["role"] != "assistant":
        return marked
    if not learned:
        raise Unfit(f"every turn of the assistant in '{name}' has a weight of 0")
    return marked[: learned[-1] + 1]


def prompt_payload(value: Any, name: str) -> dict[str, Any]:
    """The part of a task's payload that is its prompt: `prompt` for text, `messages` for a conversation."""
    if isinstance(value, list):
        messages = conversation(value, name)
        if not any(message["content"].strip() for message in messages):
            raise Unfit(f"'{name}' is empty")
        return {"messages": messages}
    return {"prompt": text(value, name)}


_CANONICAL = json.JSONEncoder(
    sort_keys=True,
    ensure_ascii=False,
    allow_nan=False,
    separators=(",", ":"),
    default=lambda value: _key_of(value),
)


def _key_of(value: Any) -> str:
    """What stands in a record's content for a record in it."""
    if not isinstance(value, Record):
        raise Unfit(f"holds a {type(value).__name__}, which has no JSON form")
    return str(value.key)


def _fingerprint(kind: str, content: dict[str, Any]) -> tuple[UUID, int]:
    try:
        canonical = _CANONICAL.encode(content)
        data = canonical.encode("utf-8")
    except UnicodeEncodeError:
        raise Unfit("holds half of a surrogate pair, which is no character") from None
    except Unfit:
        raise
    except TypeError:
        raise Unfit("holds an object with names that are not all text") from None
    except ValueError as error:
        what = "of more digits than Python writes" if "digits" in str(error) else "that is not finite"
        raise Unfit(f"holds a number {what}") from None
    # An escaped backslash before "u0000" looks the same in JSON, so the rare hit is looked at again.
    if "\\u0000" in canonical and _holds_nul(content):
        raise Unfit("holds a NUL character, which PostgreSQL text cannot")
    if len(data) > MAX_RECORD_BYTES:
        raise Unfit(f"is longer than {MAX_RECORD_BYTES // 2**20} MiB")
    return UUID(bytes=hashlib.blake2b(data, digest_size=16, person=kind.encode()).digest()), len(data)


def _holds_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_nul(name) or _holds_nul(inner) for name, inner in value.items())
    if isinstance(value, list | tuple):  # tuples come from a user's format
        return any(_holds_nul(inner) for inner in value)
    return isinstance(value, str) and "\x00" in value


def _kind_of(value: Any) -> str:
    return _KINDS_OF_VALUE.get(type(value), f"a {type(value).__name__}")


_KINDS_OF_VALUE: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
