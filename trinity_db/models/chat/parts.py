"""Finds where each part of a conversation is in the rendered text, and which parts are not in it.

A chat template is code of the model. It trims texts and rewrites JSON, drops roles that it does not know
and thoughts of earlier turns, and texts repeat, so a search for a text proves nothing. Instead each part is
marked at its start and end by letters that occur nowhere else, and the conversation is rendered again. If
the second text equals the first one except for the marks, these are the positions of the parts. One rendering
marks all parts. If the template reacts to a mark, halves of the parts are marked, down to the part that
causes it, which counts as not shown. Loads neither torch nor transformers.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trinity_db.errors import TrinityError

Message = Mapping[str, Any]
Span = tuple[int, int]
"""Start and end (exclusive) of a part of a text, in characters."""
Render = Callable[[Sequence[Message], Sequence[Message]], str]
"""Renders messages and tools."""

THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys of a turn's thought. Templates differ in the one that they read."""
OTHER_PARTS = ("functions", "function_calls", "tools", "refusal", "thought", "thoughts")
"""Keys of a turn with parts that few templates read. Others, such as an id, need not be shown."""

_WRITTEN: tuple[Callable[[str], str], ...] = (
    str,
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text)[1:-1],
    lambda text: repr(text)[1:-1],
)
"""Ways in which templates write a text."""
_OPENED = re.compile(r"\s*<think>")
_OPENING = re.compile(r"(?:<[^<>\s]{1,50}>\s*)+")
_CLOSING = re.compile(r"(?:>[^<>\s]{1,50}<\s*)+")  # in the reversed text
_ENDING = 500  # length of a text's end in which closing tags are looked for


@dataclass(frozen=True)
class Part:
    """A text of a conversation: content, a thought, or a text in a tool call or in a tool's definition."""

    kind: str
    """ "content", "thought", "call", "tool", or "other" for the keys in OTHER_PARTS."""
    message: int
    """Index of its message, or of the tool."""
    text: str
    """The text without the whitespace around it, which templates may trim."""
    marked: Span
    """Positions of the two marks in `text`: behind and before tags such as "<tool_response>", since templates
    look at how a text begins and ends."""
    spans: list[Span] = field(default_factory=list)
    """Its positions in the rendered text; empty if the template leaves it out or changes it."""
    ends: list[int] = field(default_factory=list)
    """Where its end is in the rendered text: templates drop thoughts, which each marks in its own way, from
    the beginning of earlier answers."""


@dataclass(frozen=True)
class Rendering:
    """A rendered conversation and its parts, in order, those of the tools last."""

    text: str
    parts: Sequence[Part]

    def of_message(self, index: int) -> list[Part]:
        """Return the parts of a message."""
        return [part for part in self.parts if part.message == index and part.kind != "tool"]


def located(messages: Sequence[Message], tools: Sequence[Message], render: Render) -> Rendering:
    """Render a conversation and find the positions of its parts.

    Args:
        messages: as `prompts.plain` returns them.

    Raises:
        The errors of `render`.
    """
    text = render(messages, tools)
    mark = "zqx"  # ASCII letters, which JSON and Python's repr leave as they are
    while mark in text:
        mark += "x"
    pattern = re.compile(f"{mark}([0-9]+)([se])")

    first = _Marked(messages, tools, mark)
    parts = first.parts

    def locate(numbers: range, marked: _Marked) -> None:
        try:
            pieces = pattern.split(render(marked.messages, marked.tools))
        except TrinityError:  # the template refuses a marked text
            pieces = [""]
        if "".join(pieces[::3]) == text:
            starts: dict[int, list[int]] = defaultdict(list)
            stops: dict[int, list[int]] = defaultdict(list)
            position = 0
            for before, number, kind in zip(pieces[:-1:3], pieces[1::3], pieces[2::3], strict=True):
                position += len(before)
                (starts if kind == "s" else stops)[int(number)].append(position)
            for number in numbers:
                _find(parts[number], text, starts[number], stops[number])
        elif len(numbers) > 1:
            middle = len(numbers) // 2
            for half in (numbers[:middle], numbers[middle:]):
                locate(half, _Marked(messages, tools, mark, half))

    locate(range(len(parts)), first)
    return Rendering(text, parts)


class _Marked:
    """A copy of a conversation with marks, and its parts.

    Args:
        numbers: of the parts with marks, the others stay as they are; None: all.
    """

    def __init__(
        self, messages: Sequence[Message], tools: Sequence[Message], mark: str, numbers: range | None = None
    ) -> None:
        self.parts: list[Part] = []
        self._mark, self._numbers = mark, numbers
        self.messages = [self._message(index, message) for index, message in enumerate(messages)]
        self.tools = [self._schema(index, tool) for index, tool in enumerate(tools)]

    def _message(self, index: int, message: Message) -> Message:
        copy = {**message}
        thought, closed, content = message["content"].rpartition("</think>")
        if closed and message.get("role") == "assistant":
            opened = _OPENED.match(thought)
            begin = opened.end() if opened else 0
            closed = thought[:begin] + self._text("thought", index, thought[begin:]) + closed
        else:
            closed, content = "", message["content"]
        if message.get(THOUGHTS[0]):
            copy |= dict.fromkeys(THOUGHTS, self._text("thought", index, message[THOUGHTS[0]]))
        copy["content"] = closed + self._text("content", index, content)
        if message.get("tool_calls"):
            copy["tool_calls"] = [self._call(index, call) for call in message["tool_calls"]]
        others = {key: self._values("other", index, message[key]) for key in OTHER_PARTS if message.get(key)}
        return copy | others

    def _call(self, index: int, call: Message) -> Message:
        if "function" in call:
            return {**call, "function": self._call(index, call["function"])}
        marked = {key: self._values("call", index, call[key]) for key in ("name", "arguments") if key in call}
        return {**call, **marked}

    def _values(self, kind: str, index: int, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(kind, index, value)
        if isinstance(value, Mapping):
            pairs = [(self._key(kind, index, key), self._values(kind, index, value[key])) for key in value]
            return dict(pairs)
        return [self._values(kind, index, item) for item in value] if isinstance(value, list) else value

    def _schema(self, index: int, value: Any) -> Any:
        """Mark names and descriptions, of functions and of their parameters at any depth."""
        if isinstance(value, list):
            return [self._schema(index, item) for item in value]
        if not isinstance(value, Mapping):
            return value
        properties = value.get("properties")
        names = {}
        if isinstance(properties, Mapping):
            names = {name: self._key("tool", index, name) for name in properties}
        marked: dict[str, Any] = {}
        for key, inner in value.items():
            if key in ("name", "description") and isinstance(inner, str):
                marked[key] = self._text("tool", index, inner)
            elif key == "properties" and isinstance(inner, Mapping):
                marked[key] = {names[name]: self._schema(index, schema) for name, schema in inner.items()}
            elif key == "required" and isinstance(inner, list):  # templates look names up in it
                marked[key] = [names.get(name, name) if isinstance(name, str) else name for name in inner]
            else:
                marked[key] = self._schema(index, inner)
        return marked

    def _key(self, kind: str, index: int, key: str) -> str:
        """Mark a key at its end alone, so that a template may sort the keys."""
        return self._text(kind, index, key, is_key=True)

    def _text(self, kind: str, index: int, text: str, *, is_key: bool = False) -> str:
        core = text.strip()
        if not core:
            return text
        first, last = (len(core), len(core)) if is_key else _between_tags(core)
        number = len(self.parts)
        self.parts.append(Part(kind, index, core, (first, last)))
        if self._numbers is not None and number not in self._numbers:
            return text
        start, stop = f"{self._mark}{number}s", f"{self._mark}{number}e"
        begin = len(text) - len(text.lstrip())
        first, last = begin + first, begin + last
        return text[:first] + start + text[first:last] + stop + text[last:]


def _between_tags(text: str) -> Span:
    """Return the span of a text without the tags that it begins and ends with, or all if nothing is left."""
    opened, closed = _OPENING.match(text), _CLOSING.match(text[: -_ENDING - 1 : -1])
    start = opened.end() if opened else 0
    stop = len(text) - (closed.end() if closed else 0)
    return (start, stop) if start < stop else (0, len(text))


def _find(part: Part, text: str, starts: Sequence[int], stops: Sequence[int]) -> None:
    """Find where a text shows a part between its marks, as it is, as in JSON or as in Python's repr."""
    first, last = part.marked
    pieces = part.text[:first], part.text[first:last], part.text[last:]
    for write in _WRITTEN:
        if len(part.spans) == len(starts):
            break
        head, inner, tail = map(write, pieces)
        whole = head + inner + tail
        begins = [start - len(head) for start in starts if start >= len(head) and start + len(inner) in stops]
        spans = [(begin, begin + len(whole)) for begin in begins if text.startswith(whole, begin)]
        part.spans.extend(span for span in spans if span not in part.spans)
    part.spans.sort()
    part.ends.extend(stop for stop in stops if text.endswith(part.text[last - 1], 0, stop))
