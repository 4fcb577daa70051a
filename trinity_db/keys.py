"""What the fields of a configuration say about its keys: text, type, default, limits, and keys below.

`trinity-db config` and the generated reference both say it from here. This module knows no section.
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

from trinity_db.errors import NotFound
from trinity_db.settings import Change, Kept, mark_of, sections_below

KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path"}
REQUIRED = "required"
Mark = Change | Kept | None


@dataclass(frozen=True)
class Meaning:
    """What one or several sections say about a key, in the same words."""

    key: str
    text: str
    kind: str
    """The values that it takes, with their limits."""
    default: str
    """As people write it; `required` where there is none, empty for a section."""
    mark: Mark
    """Whether it may change during a run. None: each key below says it for itself."""
    within: tuple[str, ...]
    """The recipes' compositions or parts that have the key; empty where only one section has it."""
    below: tuple[type[BaseModel], ...]
    """The sections that it may hold."""


def find(model: type[BaseModel], key: str) -> list[Meaning]:
    """What a key means: several meanings where it stands in alternative sections, chosen by name.

    A name of such a section may stand in the path: `sampler.prioritized.alpha`.

    Raises:
        NotFound: there is no such key; says which is the nearest.
    """
    sections: list[tuple[type[BaseModel], Mark]] = [(model, None)]
    found: list[tuple[type[BaseModel], FieldInfo, Mark]] = []
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
        found, is_section = here, False
        sections = [(below, mark) for s, _, mark in here for below in sections_below(s, name)]
    if is_section:
        ((section, mark),) = sections
        return [Meaning(key, line(section.__doc__), "section", "", mark, (), (section,))]
    return _meanings(key, found, tuple(dict.fromkeys(section for section, _ in sections)))


def _meanings(
    key: str, found: list[tuple[type[BaseModel], FieldInfo, Mark]], below: tuple[type[BaseModel], ...]
) -> list[Meaning]:
    said: dict[tuple[str, str, str], list[tuple[type[BaseModel], Mark]]] = {}
    for section, field, mark in found:
        words = (line(field.description), type_of(field), default_of(field))
        said.setdefault(words, []).append((section, mark))
    several = len({section for section, _, _ in found}) > 1
    return [
        Meaning(
            key,
            *words,
            places[0][1],
            tuple(dict.fromkeys(name_of(section) for section, _ in places)) if several else (),
            tuple(one for one in below if len(said) == 1 or _holds(places, key, one)),
        )
        for words, places in said.items()
    ]


def _holds(places: list[tuple[type[BaseModel], Mark]], key: str, below: type[BaseModel]) -> bool:
    name = key.rpartition(".")[2]
    return any(name in s.model_fields and below in sections_below(s, name) for s, _ in places)


def every(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key below a section, by its path."""
    yield from dict.fromkeys(_every(model, prefix))


def _every(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name in model.model_fields:
        yield f"{prefix}{name}"
        for section in sections_below(model, name):
            yield from _every(section, f"{prefix}{name}.")


def alternatives(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section that is chosen by its name, with the key that it may stand under."""
    for name in model.model_fields:
        for section in sections_below(model, name):
            if alternative(section) not in (None, "own"):
                yield f"{prefix}{name}", section
            yield from alternatives(section, f"{prefix}{name}.")


def alternative(section: type[BaseModel]) -> str | None:
    """The name by which a configuration chooses a section; None: it is the only one of its kind."""
    field = section.model_fields.get("name")
    return str(field.default) if field is not None and get_origin(field.annotation) is Literal else None


def name_of(section: type[BaseModel]) -> str:
    """What people call a section."""
    field = section.model_fields.get("name")
    return field.default if field is not None and isinstance(field.default, str) else section.__name__


def options_of(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys of a section, without the name by which it is chosen."""
    chosen = alternative(section) is not None
    return {key: field for key, field in section.model_fields.items() if key != "name" or not chosen}


def of_fields(model: type[BaseModel], key: str) -> str:
    """A key without the names of sections in its path, as sampler.alpha of sampler.prioritized.alpha."""
    names = {alternative(section) for _, section in alternatives(model)}
    first, *rest = key.split(".")
    return ".".join([first, *(part for part in rest if part not in names)])


def nearest(key: str, known: Iterable[str]) -> str:
    """The known key that a wrong one may mean: one with the same end, or the nearest in letters."""
    names = list(known)
    ends = [one for one in names if one.endswith(f".{key.rpartition('.')[2]}")]
    close = difflib.get_close_matches(key, ends, n=1, cutoff=0) or difflib.get_close_matches(key, names, n=1)
    return f"did you mean '{close[0]}'?" if close else "trinity-db config explain shows all."


def line(text: str | None) -> str:
    """A text in one line."""
    return " ".join((text or "").split())


def type_of(field: FieldInfo) -> str:
    """What values a key takes, with its limits."""
    limits = " and ".join(
        f"{sign} {_number(getattr(limit, name))}"
        for limit in field.metadata
        for kind, name, sign in ((Ge, "ge", "≥"), (Gt, "gt", ">"), (Le, "le", "≤"), (Lt, "lt", "<"))
        if isinstance(limit, kind)
    )
    kind, or_null, _ = _kind(field.annotation).partition(" or null")
    return f"{kind} {limits}".strip() + (", or null" if limits and or_null else or_null)


def _number(value: float) -> str:
    """A bound as people write it."""
    power = int(value).bit_length() - 1
    return f"2^{power}" if value == 2**power and power > 20 else f"{value:g}"


def _kind(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        kinds = [_kind(one) for one in arguments if one is not NoneType]
        return " or ".join(dict.fromkeys(kinds)) + (" or null" if NoneType in arguments else "")
    if origin in (list, tuple, Sequence):
        return f"list of {_kind(arguments[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return KINDS.get(annotation, "any value")


def default_of(field: FieldInfo) -> str:
    """The default of a key, as people write it."""
    if field.is_required():
        return REQUIRED
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "null"
    if isinstance(value, BaseModel):
        return str(getattr(value, "name", ""))
    if isinstance(value, tuple | list):
        names = [getattr(one, "function", None) or getattr(one, "name", None) or str(one) for one in value]
        return f"[{', '.join(names)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
