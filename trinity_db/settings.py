"""Typed configuration: the base class of every section, and reading a file into one.

Knows `--set` overrides and how to say what is wrong in one line. It knows no section:
those stand in the `config.py` beside each role.
"""

import copy
import difflib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from trinity_db.errors import ConfigError
from trinity_db.yaml_text import one_line, parsed

RUN_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9_-])?$"
"""What a training run may be called: the name is a part of paths and of commands."""

MAX_BYTES = 256 * 1024  # of a configuration file
MAX_CHARACTERS = 100_000  # of one value
MAX_FLOAT = 1e30  # of a number and of its inverse: losses are computed in float32
MAX_SHOWN = 100  # characters of a key or value in a message


class Settings(BaseModel):
    """A section of the configuration. An unknown key is an error; the text under a field explains it.

    So is a value that no run could store or compute with. A whole number, for example, fits a Postgres
    integer where its field gives no limit of its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def values_can_be_stored(self) -> Self:
        for name, field in type(self).model_fields.items():
            has_limit = any(hasattr(rule, "lt") or hasattr(rule, "le") for rule in field.metadata)
            _check(name, getattr(self, name), 2**63 if has_limit else 2**31)
        return self


SettingsT = TypeVar("SettingsT", bound=Settings)


class Change(Enum):
    """Stands beside a key, as Annotated[float, Change.DATED]: a run may go on with another value of it."""

    PER_PROCESS = auto()
    """It does not change the run. Each process has its own value, and it is not stored with the run."""
    DATED = auto()
    """By --change, for all that follows. Each change is a row of run_setting, which later batches name."""


@dataclass(frozen=True)
class Kept:
    """Stands beside a key that a run keeps, because rows that it has written depend on it."""

    because: str
    """Why the key may not change, as the end of a sentence."""
    once_trained: bool = False
    """Only steps depend on it: before the first is committed it may be changed."""


def rule(model: type[BaseModel], key: str) -> Change | Kept:
    """Whether a key may change: what stands beside it, or beside the nearest section that it is in."""
    found: Change | Kept | None = None
    sections = [model]
    for part in key.split("."):
        holding = [section for section in sections if part in section.model_fields]
        for section in holding:
            found = mark_of(section, part) or found
        sections = [below for section in holding for below in sections_below(section, part)]
    assert found is not None, f"nothing says whether {key} may change"
    return found


def marked(model: type[BaseModel], mark: Change) -> Iterator[str]:
    """The keys beside which a mark stands."""
    for name in model.model_fields:
        if (found := mark_of(model, name)) is not None:
            if found is mark:
                yield name
            continue
        for section in sections_below(model, name):
            for below in marked(section, mark):
                yield f"{name}.{below}"


def mark_of(section: type[BaseModel], name: str) -> Change | Kept | None:
    """The mark beside a field. None: the mark beside its section counts."""
    marks = [mark for mark in section.model_fields[name].metadata if isinstance(mark, Change | Kept)]
    return marks[0] if marks else None


def home() -> Path:
    """The folder that holds the embedded store, checkpoints and logs: TRINITY_DB_HOME, or ./.trinity-db."""
    return Path(os.environ.get("TRINITY_DB_HOME") or ".trinity-db").absolute()


def lance_uri() -> str:
    """Folder or object store of archived payloads: TRINITY_DB_LANCE_URI, or lance in the home."""
    place = os.environ.get("TRINITY_DB_LANCE_URI") or str(home() / "lance")
    return place if "://" in place else str(Path(place).absolute())


def load(model: type[SettingsT], path: Path, overrides: Sequence[str] = ()) -> SettingsT:
    """Read a YAML file, apply `key.path=value` overrides, validate.

    Raises:
        ConfigError: one line that names the file, the key and, for an unknown key, the nearest right one.
    """
    return validate(model, overridden(model, content_of(path), overrides), str(path))


def content_of(path: Path, example: str = "name: first-run") -> dict[str, Any]:
    """What a YAML file holds; the example is a line of such a file.

    Raises:
        ConfigError: there is no such file, or it is not YAML with keys and values.
    """
    try:
        content = parsed(_read(path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such configuration file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must hold keys and values, for example '{example}'.")
    return content


def overridden(model: type[BaseModel], content: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The same content with `key.path=value` overrides.

    Raises:
        ConfigError: an override names no key, or its value is not YAML.
    """
    content = copy.deepcopy(content)
    for override in overrides:
        _apply(model, content, override)
    return content


def validate(
    model: type[SettingsT], content: dict[str, Any], source: str, context: str | None = None
) -> SettingsT:
    """Build the settings or raise ConfigError, one line for the first few mistakes."""
    try:
        return model.model_validate(content, context=context)
    except (ValidationError, UnicodeEncodeError) as error:
        raise ConfigError(f"{source}: {'; '.join(mistakes(model, error)[:3])}") from None


def mistakes(model: type[BaseModel], error: ValidationError | UnicodeEncodeError) -> list[str]:
    """What is wrong with settings that cannot be built, a line for each mistake."""
    if isinstance(error, UnicodeEncodeError):
        return ["a text holds half a surrogate pair, which is no character"]
    return [_describe(model, dict(mistake)) for mistake in error.errors()]


def _check(key: str, value: Any, limit: int) -> None:
    """Raise ValueError for what Postgres, JSON or a float32 cannot hold. Sections have checked themselves."""
    if isinstance(value, str | Path):
        text = str(value)
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"{key} must not be longer than {MAX_CHARACTERS:,} characters")
        if "\x00" in text or text != text.encode("utf-8", "replace").decode():
            raise ValueError(f"{key} must not contain NUL, or half a surrogate pair")
    elif isinstance(value, float):
        if not math.isfinite(value) or not (value == 0 or 1 / MAX_FLOAT <= abs(value) <= MAX_FLOAT):
            raise ValueError(
                f"{key} must be 0 or a number from {1 / MAX_FLOAT:g} to {MAX_FLOAT:g} (got {value})"
            )
    elif isinstance(value, int) and not -limit <= value < limit:
        raise ValueError(f"{key} must be from {-limit} to {limit - 1}")
    elif isinstance(value, dict):
        for name, inner in value.items():
            _check(key, name, 2**63)
            _check(f"{key}.{name!s:.{MAX_SHOWN}}", inner, 2**63)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check(key, inner, 2**63)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: is longer than {MAX_BYTES // 1024} KiB; is it a configuration?")
    return content.decode("utf-8")


def _apply(model: type[BaseModel], content: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    shown = override[:MAX_SHOWN]
    if not separator or not key:
        raise ConfigError(
            f"--set {shown}: write it as key.path=value, for example trainer.learning_rate=1e-5."
        )
    *parents, last = key.split(".")
    section = content
    for depth, name in enumerate(parents, 1):
        below = section.setdefault(name, {})
        if isinstance(below, str) and _has_name(model, parents[:depth]):
            below = section[name] = {"name": below}
        if not isinstance(below, dict):
            whole = ".".join(parents[:depth])
            raise ConfigError(
                f"--set {override:.{MAX_SHOWN}}: '{name}' is a value, not a section; set it by {whole}=..."
            )
        section = below
    try:
        section[last] = parsed(value)
    except yaml.YAMLError:
        raise ConfigError(f"--set {shown}: that is not a YAML value; quote it if it is text.") from None


def _has_name(model: type[BaseModel], keys: Sequence[str]) -> bool:
    """Whether the section below these keys has a name, and may be given by it alone: `algorithm: grpo`."""
    sections = [model]
    for key in keys:
        sections = [one for s in sections if key in s.model_fields for one in sections_below(s, key)]
    return any("name" in section.model_fields for section in sections)


def _describe(model: type[BaseModel], mistake: dict[str, Any]) -> str:
    location = [f"{part!s:.{MAX_SHOWN}}" for part in mistake["loc"]]
    if mistake["type"] == "extra_forbidden":
        known, sections = _follow(model, location[:-1])
        fields = sorted({name for section in sections for name in section.model_fields})
        key = ".".join([*known, location[-1]])
        return f"unknown key '{key}'; {hint(location[-1], fields, 'known keys')}"
    key = ".".join(_follow(model, location)[0])
    if mistake["type"] == "union_tag_invalid":
        name, names = (
            f"{mistake['ctx']['tag']:.{MAX_SHOWN}}",
            mistake["ctx"]["expected_tags"].replace("'", "").split(", "),
        )
        return f"{key}: there is no '{name}'; {hint(name, names)}"
    if mistake["type"] == "value_error" and isinstance(mistake["input"], dict | BaseModel | str | list):
        # A rule of our own: it names the keys or the value, and its input may be the whole section.
        message = f"{mistake['ctx']['error']!s:.{10 * MAX_SHOWN}}"
        return f"{key}: {message}" if key else message
    return f"{key}: {mistake['msg']} (got {mistake['input']!r:.80})"


def hint(name: str, known: Iterable[str], what: str = "known") -> str:
    """The nearest of the names that there are, or else all of them."""
    nearest = difflib.get_close_matches(name, known := list(known), n=1, cutoff=0.5)
    return f"did you mean '{nearest[0]}'?" if nearest else f"{what}: {', '.join(known)}"


def _follow(model: type[BaseModel], location: Sequence[str]) -> tuple[list[str], list[type[BaseModel]]]:
    """Where a location, as pydantic reports it, leads to: its keys, and the section or sections there."""
    keys: list[str] = []
    sections: list[type[BaseModel]] = [model]
    for part in location:
        below = [one for s in sections if part in s.model_fields for one in sections_below(s, part)]
        # A part that is no field is the tag of a union: keep the member it names.
        tagged = [s for s in sections if "name" in s.model_fields and s.model_fields["name"].default == part]
        is_tag = tagged and not any(part in s.model_fields for s in sections)
        keys += [] if is_tag else [part]
        sections = below or tagged or sections
    return keys, sections


def sections_below(section: type[BaseModel], field: str) -> list[type[BaseModel]]:
    """The sections that a field may hold: more than one where they are told apart by their name."""
    return sections_in(section.model_fields[field].annotation)


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a type consists of."""
    found: list[type[BaseModel]] = []
    pending: list[Any] = [annotation]
    while pending:
        one = pending.pop(0)
        if isinstance(one, type) and issubclass(one, BaseModel):
            found.append(one)
        pending.extend(get_args(one))
    return found
