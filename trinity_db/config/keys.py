"""Documentation of configuration keys from their fields: text, type, default, limits, and keys below.

`trinity-db config` and the generated reference use it. Independent of the sections themselves.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trinity_db.config.base import Change, Kept, mark_of, sections_below
from trinity_db.errors import NotFound

KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path"}
REQUIRED = "required"
Mark = Change | Kept | None


@dataclass(frozen=True)
class Meaning:
    """Documentation of a key, common to one or several sections."""

    key: str
    text: str
    kind: str
    """Type of its values, with limits."""
    default: str
    """Default as written in a file; `required` without a default, empty for a section."""
    mark: Mark
    """Whether it may change during a run. None: each key below has its own mark."""
    within: tuple[str, ...]
    """The recipes' compositions or parts that have the key; empty if only one section has it."""
    below: tuple[type[BaseModel], ...]
    """Sections that it may hold."""


def find(model: type[BaseModel], key: str) -> list[Meaning]:
    """Return the meanings of a key: several if alternative sections, chosen by name, have it.

    The path may contain the name of such a section: `sampler.prioritized.alpha`.

    Raises:
        NotFound: if the key does not exist; the message suggests the closest one.
    """
    sections: list[tuple[type[BaseModel], Mark]] = [(model, None)]
    fields: list[tuple[type[BaseModel], FieldInfo, Mark]] = []
    is_section = False
    for name in key.split("."):
        here = [
            (s, s.model_fields[name], mark_of(s, name) or m) for s, m in sections if name in s.model_fields
        ]
        if chosen := [(s, m) for s, m in sections if not here and alternative(s) == name]:
            sections, is_section = chosen[:1], True
            continue
        if not here:
            raise NotFound(f"There is no key '{key}'; {nearest(of_fields(model, key), every(model))}")
        fields, is_section = here, False
        sections = [(below, mark) for s, _, mark in here for below in sections_below(s, name)]
    if is_section:
        ((section, mark),) = sections
        return [Meaning(key, line(section.__doc__), "section", "", mark, (), (section,))]
    return _meanings(key, fields, tuple(dict.fromkeys(section for section, _ in sections)))


def _meanings(
    key: str, fields: list[tuple[type[BaseModel], FieldInfo, Mark]], below: tuple[type[BaseModel], ...]
) -> list[Meaning]:
    by_words: dict[tuple[str, str, str], list[tuple[type[BaseModel], Mark]]] = {}
    for section, field, mark in fields:
        words = (line(field.description), type_of(field), default_of(field))
        by_words.setdefault(words, []).append((section, mark))
    several = len({section for section, _, _ in fields}) > 1
    return [
        Meaning(
            key,
            *words,
            places[0][1],
            tuple(dict.fromkeys(name_of(section) for section, _ in places)) if several else (),
            tuple(inner for inner in below if len(by_words) == 1 or _holds(places, key, inner)),
        )
        for words, places in by_words.items()
    ]


def _holds(places: list[tuple[type[BaseModel], Mark]], key: str, below: type[BaseModel]) -> bool:
    name = key.rpartition(".")[2]
    return any(name in s.model_fields and below in sections_below(s, name) for s, _ in places)


def every(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the path of every key below a section."""
    yield from dict.fromkeys(_every(model, prefix))


def _every(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name in model.model_fields:
        yield f"{prefix}{name}"
        for section in sections_below(model, name):
            yield from _every(section, f"{prefix}{name}.")


def alternatives(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield every section that is chosen by name, with its key."""
    for name in model.model_fields:
        for section in sections_below(model, name):
            if alternative(section) not in (None, "own"):
                yield f"{prefix}{name}", section
            yield from alternatives(section, f"{prefix}{name}.")


def alternative(section: type[BaseModel]) -> str | None:
    """Return the name that selects a section; None if it has no alternatives."""
    field = section.model_fields.get("name")
    return str(field.default) if field is not None and get_origin(field.annotation) is Literal else None


def name_of(section: type[BaseModel]) -> str:
    """Return the display name of a section."""
    field = section.model_fields.get("name")
    return field.default if field is not None and isinstance(field.default, str) else section.__name__


def options_of(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the keys of a section, without the name that selects it."""
    chosen = alternative(section) is not None
    return {key: field for key, field in section.model_fields.items() if key != "name" or not chosen}


def of_fields(model: type[BaseModel], key: str) -> str:
    """Drop section names from a key's path: sampler.prioritized.alpha → sampler.alpha."""
    names = {alternative(section) for _, section in alternatives(model)}
    first, *parts = key.split(".")
    return ".".join([first, *(part for part in parts if part not in names)])


def nearest(key: str, known: Iterable[str]) -> str:
    """Suggest the known key that a wrong one may mean: same last part, or closest spelling."""
    names = list(known)
    ends = [name for name in names if name.endswith(f".{key.rpartition('.')[2]}")]
    close = difflib.get_close_matches(key, ends, n=1, cutoff=0) or difflib.get_close_matches(key, names, n=1)
    return f"did you mean '{close[0]}'?" if close else "trinity-db config explain shows all."


def line(text: str | None) -> str:
    """Return a text in one line."""
    return " ".join((text or "").split())


def type_of(field: FieldInfo) -> str:
    """Describe the values of a key, with limits."""
    limits = " and ".join(
        f"{sign} {_number(getattr(limit, name))}"
        for limit in field.metadata
        for kind, name, sign in ((Ge, "ge", "≥"), (Gt, "gt", ">"), (Le, "le", "≤"), (Lt, "lt", "<"))
        if isinstance(limit, kind)
    )
    kind, or_null, _ = _kind(field.annotation).partition(" or null")
    return f"{kind} {limits}".strip() + (", or null" if limits and or_null else or_null)


def _number(value: float) -> str:
    """Format a limit."""
    power = int(value).bit_length() - 1
    return f"2^{power}" if value == 2**power and power > 20 else f"{value:g}"


def _kind(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        kinds = [_kind(argument) for argument in arguments if argument is not NoneType]
        return " or ".join(dict.fromkeys(kinds)) + (" or null" if NoneType in arguments else "")
    if origin in (list, tuple, Sequence):
        return f"list of {_kind(arguments[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return KINDS.get(annotation, "any value")


def default_of(field: FieldInfo) -> str:
    """Format the default of a key as in a file."""
    if field.is_required():
        return REQUIRED
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "null"
    if isinstance(value, BaseModel):
        return str(getattr(value, "name", ""))
    if isinstance(value, tuple | list):
        names = [
            getattr(item, "function", None) or getattr(item, "name", None) or str(item) for item in value
        ]
        return f"[{', '.join(names)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
