"""Tables of the options of a protocol: which are followed, which are replaced, and which are refused.

A table names each option of a request by its path: `stream_options.include_usage` is a key of an object,
`tools[function].strict` a key of the items of a list that have the type (of messages: the role) `function`.
`*` stands for all keys, types or roles that have no entry of their own. A key without an entry is an unknown
option. The reference of the protocols is generated from the tables.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from trinity_db.explorer.config import DEFAULT_REQUESTS, RequestsConfig

THINKING = ("enable_thinking", "thinking")  # of Qwen and SmolLM; of DeepSeek and Granite
SHOWN = 80  # characters of a value that an error quotes
_NUMBER = re.compile(r"\d+")
_LEFT_OUT: Any = object()


class Refused(Exception):
    """A rejected request, with a one-line reason.

    Args:
        status: HTTP status.
        code: OpenAI's code for the error, such as context_length_exceeded; None if it has no code.
        kind: equal for rejections that are logged once. None: the message without its numbers.
    """

    def __init__(self, status: int, message: str, code: str | None = None, kind: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.kind = _NUMBER.sub("#", message) if kind is None else kind


class Effect(StrEnum):
    """What an option of a request does."""

    FOLLOWED = "followed"
    NO_EFFECT = "no effect"
    """It cannot change the answer, such as a cache's or a bill's."""
    REPLACED = "replaced"
    """Left out, so that the default applies; refused if the run's `explorer.requests` refuses its kind."""
    REFUSED = "refused"


@dataclass(frozen=True)
class RequestContext:
    """The run that a request is read for."""

    rules: RequestsConfig = DEFAULT_REQUESTS
    reads: Callable[[str], bool] = lambda variable: False
    """Whether the model's chat template reads a variable."""
    has_call_end: bool = True
    """Whether every tool call of the model ends with the same text."""

    @property
    def thinking(self) -> str | None:
        """The variable with which the chat template switches thoughts on and off; None if it has none."""
        return next((name for name in THINKING if self.reads(name)), None)


Allows = Callable[[Any, str, RequestContext], bool]


@dataclass(frozen=True)
class Option:
    """An entry of a table."""

    effect: Effect
    text: str
    """What it does, or why it is replaced or refused."""
    kind: str = "others"
    """Key of `explorer.requests` that decides whether it is replaced or refused."""
    allows: Allows = lambda value, key, run: True
    """Whether a value, given with its key, is neither replaced nor refused."""
    values: str = ""
    """These values, for the reference."""
    tag: str = "type"
    """Key that names the type of an item of this list."""
    untyped: str = ""
    """Type of the items of this list that name none."""


def follow(text: str = "", *, tag: str = "type", untyped: str = "") -> Option:
    return Option(Effect.FOLLOWED, text, tag=tag, untyped=untyped)


def no_effect(text: str) -> Option:
    return Option(Effect.NO_EFFECT, text)


def refuse(text: str, *neutral: Any) -> Option:
    """An option that is refused, except for values that ask for nothing."""
    return Option(Effect.REFUSED, text, allows=_among(neutral), values=_written(neutral))


def replace(kind: str, text: str, *neutral: Any) -> Option:
    """An option that is replaced, except for values that are the default anyway."""
    return Option(Effect.REPLACED, text, kind, _among(neutral), _written(neutral))


def replace_unless(kind: str, text: str, values: str, allows: Allows) -> Option:
    """An option of which some values are followed; `values` describes them."""
    return Option(Effect.REPLACED, text, kind, allows, values)


def _among(values: tuple[Any, ...]) -> Allows:
    return lambda value, key, run: value in values


def _written(values: tuple[Any, ...]) -> str:
    return " or ".join(f"`{json.dumps(value)}`" for value in values)


UNKNOWN = replace("others", "the endpoint does not have this option")


class OptionTable:
    """The options of a protocol, by their paths."""

    def __init__(self, *parts: Mapping[str, Option]) -> None:
        self.options = {path: option for part in parts for path, option in part.items()}
        self.objects = {path.rpartition(".")[0] for path in self.options}
        """Paths of objects whose keys have entries."""
        self.lists = {path[: path.rindex("[")] for path in self.options if path.endswith("]")}
        """Paths of lists whose items have entries."""

    def key(self, path: str, key: str) -> tuple[str, Option]:
        """Return the path and the entry of a key of an object."""
        below = f"{path}.{key}" if path else key
        return (below, UNKNOWN) if set(key) & set(".[") else self._entry(below, f"{path}.*")

    def item(self, path: str, kind: Any) -> tuple[str, Option]:
        """Return the path and the entry of an item of a list, by its type."""
        return self._entry(f"{path}[{kind!s:.80}]", f"{path}[*]")

    def _entry(self, path: str, others: str) -> tuple[str, Option]:
        return path, self.options.get(path) or self.options.get(others) or UNKNOWN


@dataclass
class OptionReader:
    """Reads the options of one request.

    Attributes:
        replaced: the given values of the options that are left out, by their place in the request.
        kinds: the entries of these options, by their paths in the table.
    """

    table: OptionTable
    run: RequestContext
    replaced: dict[str, Any] = field(default_factory=dict)
    kinds: dict[str, Option] = field(default_factory=dict)

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request with the options that are followed. Null asks for nothing, like no value.

        Raises:
            Refused: naming an option that is refused.
        """
        return self._object("", "", body)

    def _object(self, path: str, location: str, value: Mapping[str, Any]) -> dict[str, Any]:
        read = {}
        for key, inner in value.items():
            if inner is None:
                continue
            below, option = self.table.key(path, key)
            kept = self._value(option, below, f"{location}.{key}" if location else key, key, inner)
            if kept is not _LEFT_OUT:
                read[key] = kept
        return read

    def _value(self, option: Option, path: str, location: str, key: str, value: Any) -> Any:
        if not option.allows(value, key, self.run):
            return self._leave_out(option, path, location, value)
        if isinstance(value, Mapping) and path in self.table.objects:
            return self._object(path, location, value)
        if isinstance(value, list) and path in self.table.lists:
            items = (self._item(option, path, f"{location}[{at}]", item) for at, item in enumerate(value))
            return [item for item in items if item is not _LEFT_OUT]
        return value

    def _item(self, option: Option, path: str, location: str, item: Any) -> Any:
        if not isinstance(item, Mapping):
            return item
        path, entry = self.table.item(path, item.get(option.tag) or option.untyped)
        return self._value(entry, path, location, "", item)

    def _leave_out(self, option: Option, path: str, location: str, value: Any) -> Any:
        text = json.dumps(value)
        problem = f"'{location}' is {text if len(text) <= SHOWN else f'{text[:SHOWN]}…'}: {option.text}"
        if option.effect is Effect.REFUSED:
            raise Refused(400, f"{problem}.", "unsupported_value", path)
        if getattr(self.run.rules, option.kind) == "strict":
            rule = f"explorer.requests.{option.kind}: strict"
            raise Refused(400, f"{problem} ({rule}).", "unsupported_value", path)
        self.replaced[location] = value
        self.kinds[path] = option
        return _LEFT_OUT
