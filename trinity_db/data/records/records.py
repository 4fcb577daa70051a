"""Records: the five kinds of imported rows, validated and identified by their content.

A record's key is a hash of its content, the same in every file, format and run. So importing a row again is a
no-op, and attempts at one task are matched. The key ignores nulls in objects and whether a whole number is a
float, since both differ between JSON, tables and jsonb. The content itself keeps them.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from trinity_db.models.chat.prompts import function_of, offered_tools
from trinity_db.store.rewards import MAX_REWARD

Kind = Literal["tasks", "preferences", "demonstrations", "trajectories", "traces"]

MAX_RECORD_BYTES = 8 * 2**20  # longest record as JSON, and line: far above any context, far below memory
MAX_NUMBER_BITS = 14_000  # largest integer: Python converts at most 4,300 digits

Message = dict[str, Any]  # role, content, and other keys for chat templates
Response = str | list[Message]  # text, or messages for tool calls or several turns


class Unfit(ValueError):
    """A row cannot be converted to a record; the message is the reason."""


@dataclass(frozen=True)
class Record:
    """Base class of all records.

    Raises:
        Unfit: if the database or another reader could not process the content: NaN, NUL characters, lone
            surrogates, more than MAX_RECORD_BYTES.
    """

    key: UUID = field(init=False)
    num_bytes: int = field(init=False, repr=False, compare=False)
    """Length as JSON, including nested records."""

    def __post_init__(self) -> None:
        key, num_bytes = _fingerprint(type(self).__name__, vars(self))
        object.__setattr__(self, "key", key)
        task, sequences = vars(self).get("task"), vars(self).get("sequences", ())
        inner = [*([task] if task else []), *sequences]
        object.__setattr__(self, "num_bytes", num_bytes + sum(record.num_bytes for record in inner))


@dataclass(frozen=True)
class Task(Record):
    """A prompt, with a payload that has it as text (`prompt`) or conversation (`messages`), maybe with
    `answer`.

    When imported as a task, its payload also keeps all other columns, for reward functions.
    """

    payload: dict[str, Any]

    @property
    def messages(self) -> list[Message] | None:
        """Return the conversation; None if the prompt is plain text."""
        messages: list[Message] | None = self.payload.get("messages")
        return messages

    @property
    def prompt(self) -> str:
        """Return the prompt as text, for display and search; for a conversation, the text of its messages."""
        if self.messages is None:
            return str(self.payload["prompt"])
        return text_of(self.messages)

    @property
    def tools(self) -> list[Message] | None:
        """Return the tools of the task; None if it offers none or the column has another meaning."""
        return [dict(tool) for tool in offered_tools(self.payload)] or None


@dataclass(frozen=True)
class Demonstration(Record):
    """A response to imitate; with an empty prompt, a document that is learned from its first token."""

    task: Task
    response: Response
    extra: dict[str, Any]


@dataclass(frozen=True)
class Preference(Record):
    """A better and a worse response to one task, with their `margin` if known."""

    task: Task
    chosen: Response
    rejected: Response
    margin: float | None
    extra: dict[str, Any]


@dataclass(frozen=True)
class Unpaired(Record):
    """One response labelled good or bad."""

    task: Task
    response: Response
    label: bool
    extra: dict[str, Any]


@dataclass(frozen=True)
class Trajectory(Record):
    """One attempt at a task, with its reward if any, and the model that made it."""

    task: Task
    response: Response
    reward: float | None
    model: str | None
    extra: dict[str, Any]


def text_of(response: Response) -> str:
    """Return a response as text for display and search; tool calls are written as `name(arguments)`."""
    if isinstance(response, str):
        return response
    return "\n\n".join(map(_text_of_message, response))


def _text_of_message(message: Message) -> str:
    calls = []
    for call in message.get("tool_calls") or ():
        function = function_of(call)
        arguments = function.get("arguments", "")
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        calls.append(f"{function.get('name', '')}({written})")
    return "\n".join([*([message["content"]] if message["content"] or not calls else []), *calls])


def text(value: Any, name: str) -> str:
    """Return a non-blank text, or raise Unfit."""
    if not isinstance(value, str):
        raise Unfit(f"'{name}' must be text, not {kind_of(value)}")
    if not value.strip():
        raise Unfit(f"'{name}' is empty")
    return value


def number(value: Any, name: str) -> float:
    """Return a finite number (true is 1, false 0), or raise Unfit."""
    if not isinstance(value, bool | int | float):
        raise Unfit(f"'{name}' must be a number, not {kind_of(value)}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise Unfit(f"'{name}' is not finite")
    return result


def reward(value: Any, name: str) -> float:
    """Return a number small enough for a group's statistics, or raise Unfit."""
    result = number(value, name)
    if abs(result) > MAX_REWARD:
        raise Unfit(f"'{name}' is beyond {MAX_REWARD:g}")
    return result


def verdict(value: Any, name: str) -> bool:
    """Return a truth value, also from 1 or 0, or raise Unfit."""
    if not isinstance(value, bool | int | float):
        raise Unfit(f"'{name}' must be true or false, not {kind_of(value)}")
    if value not in (0, 1):
        raise Unfit(f"'{name}' must be true or false, not another number")
    return bool(value)


_CANONICAL = json.JSONEncoder(
    sort_keys=True,
    ensure_ascii=False,
    allow_nan=False,
    separators=(",", ":"),
    default=lambda value: _key_of(value),
)


def _key_of(value: Any) -> str:
    """Replace a nested record by its key."""
    if not isinstance(value, Record):
        raise Unfit(f"holds a {type(value).__name__}, which has no JSON form")
    return str(value.key)


def _fingerprint(kind: str, content: dict[str, Any]) -> tuple[UUID, int]:
    alike = {
        name: _alike(value) if isinstance(value, dict | list) else value for name, value in content.items()
    }
    try:
        canonical = _CANONICAL.encode(alike)
        data = canonical.encode("utf-8")
    except UnicodeEncodeError:
        raise Unfit("holds half of a surrogate pair, which is not a character") from None
    except Unfit:
        raise
    except TypeError:
        raise Unfit("holds an object with names that are not all text") from None
    except ValueError as error:
        flaw = "of more digits than Python writes" if "digits" in str(error) else "that is not finite"
        raise Unfit(f"holds a number {flaw}") from None
    # An escaped backslash before "u0000" looks the same in JSON, so rare hits are checked exactly.
    if "\\u0000" in canonical and _holds_nul(content):
        raise Unfit("holds a NUL character, which PostgreSQL text cannot")
    if len(data) > MAX_RECORD_BYTES:
        raise Unfit(f"is longer than {MAX_RECORD_BYTES // 2**20} MiB")
    return UUID(bytes=hashlib.blake2b(data, digest_size=16, person=kind.encode()).digest()), len(data)


def _alike(value: Any) -> Any:
    """Return a value without what differs between files of the same rows: nulls in objects, whole floats."""
    if isinstance(value, dict):
        return {name: _alike(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_alike(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _holds_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_nul(name) or _holds_nul(inner) for name, inner in value.items())
    if isinstance(value, list | tuple):  # user-defined formats may return tuples
        return any(_holds_nul(inner) for inner in value)
    return isinstance(value, str) and "\x00" in value


def kind_of(value: Any) -> str:
    """Return the kind of a value in words, for reasons."""
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
