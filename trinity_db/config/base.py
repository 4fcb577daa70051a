"""Typed configuration: the base class of every section, and reading a file into one.

Applies `--set` overrides and describes each mistake in one line. The sections themselves are defined in the
`config.py` of each role.
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

from trinity_db.config.yaml_text import one_line, parsed
from trinity_db.errors import ConfigError

RUN_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9_-])?$"
"""Pattern of run names, which appear in paths and commands."""

STORED = "stored"
"""Context in which a stored configuration is validated: it was checked when it was written, by this version
of the program or an older one."""
JOINS = "joins"
"""Context in which a role reads its configuration: most likely the run has it already, so the role checks
processing steps, which imports all of them, only if the run has not."""

MAX_BYTES = 256 * 1024  # largest configuration file
MAX_CHARACTERS = 100_000  # longest value
MAX_FLOAT = 1e30  # largest number, and inverse of the smallest: losses are computed in float32
MAX_SHOWN = 100  # characters of a key or value in a message


class Settings(BaseModel):
    """A section of the configuration. Unknown keys are errors; the docstring of a field documents it.

    A value that no run could store or compute with is an error too. For example, an integer must fit a
    Postgres integer unless its field sets another limit.
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
    """Marks a key whose value may change during a run: Annotated[float, Change.DATED]."""

    PER_PROCESS = auto()
    """The key does not affect the run: each process has its own value, which is not stored with the run."""
    DATED = auto()
    """The key changes with --change, for all later batches. Each change is a row of run_setting, to which
    batches refer."""


@dataclass(frozen=True)
class Kept:
    """Marks a key that must not change, because rows the run has written depend on it."""

    because: str
    """Reason why the key may not change, as the end of a sentence."""
    once_trained: bool = False
    """Whether only steps depend on it, so that it may change until the first is committed."""


def rule(model: type[BaseModel], key: str) -> Change | Kept:
    """Return whether a key may change: its own mark, or that of the nearest enclosing section."""
    mark: Change | Kept | None = None
    sections = [model]
    for part in key.split("."):
        holding = [section for section in sections if part in section.model_fields]
        for section in holding:
            mark = mark_of(section, part) or mark
        sections = [below for section in holding for below in sections_below(section, part)]
    assert mark is not None, f"{key} has no mark of whether it may change"
    return mark


def marked(model: type[BaseModel], mark: Change) -> Iterator[str]:
    """Yield the keys that have a mark."""
    for name in model.model_fields:
        if (own_mark := mark_of(model, name)) is not None:
            if own_mark is mark:
                yield name
            continue
        for section in sections_below(model, name):
            for below in marked(section, mark):
                yield f"{name}.{below}"


def mark_of(section: type[BaseModel], name: str) -> Change | Kept | None:
    """Return the mark of a field. None: its section's mark applies."""
    marks = [mark for mark in section.model_fields[name].metadata if isinstance(mark, Change | Kept)]
    return marks[0] if marks else None


def home() -> Path:
    """Return the folder of the embedded store, checkpoints and logs: TRINITY_DB_HOME, or ./.trinity-db."""
    return Path(os.environ.get("TRINITY_DB_HOME") or ".trinity-db").absolute()


def lance_uri() -> str:
    """Return the folder or object store of archived payloads: TRINITY_DB_LANCE_URI, or lance in the home."""
    uri = os.environ.get("TRINITY_DB_LANCE_URI") or str(home() / "lance")
    return uri if "://" in uri else str(Path(uri).absolute())


def load(
    model: type[SettingsT], path: Path, overrides: Sequence[str] = (), context: str | None = None
) -> SettingsT:
    """Read a YAML file, apply `key.path=value` overrides, validate.

    Raises:
        ConfigError: with one line that names the file, the key and, for an unknown key, the closest match.
    """
    return validate(model, overridden(model, content_of(path), overrides), str(path), context)


def content_of(path: Path, example: str = "name: first-run") -> dict[str, Any]:
    """Read the keys and values of a YAML file; `example` is a line of such a file.

    Raises:
        ConfigError: if the file does not exist, or is not YAML with keys and values.
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
    """Return the content with `key.path=value` overrides applied.

    Raises:
        ConfigError: if an override names no key, or its value is not YAML.
    """
    content = copy.deepcopy(content)
    for override in overrides:
        _apply(model, content, override)
    return content


def validate(
    model: type[SettingsT], content: dict[str, Any], source: str, context: str | None = None
) -> SettingsT:
    """Build the settings, or raise ConfigError with the first few mistakes in one line."""
    try:
        return model.model_validate(content, context=context)
    except (ValidationError, UnicodeEncodeError) as error:
        raise ConfigError(f"{source}: {'; '.join(mistakes(model, error)[:3])}") from None


def mistakes(model: type[BaseModel], error: ValidationError | UnicodeEncodeError) -> list[str]:
    """Describe each mistake in settings that cannot be built, one line per mistake."""
    if isinstance(error, UnicodeEncodeError):
        return ["a text holds half a surrogate pair, which is not a character"]
    return [_describe(model, dict(mistake)) for mistake in error.errors()]


def _check(key: str, value: Any, limit: int) -> None:
    """Raise ValueError for values that Postgres, JSON or float32 cannot hold. Sections check themselves."""
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
    """Whether the section at these keys has a name that may replace it: `algorithm: grpo`."""
    sections = [model]
    for key in keys:
        sections = [below for s in sections if key in s.model_fields for below in sections_below(s, key)]
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
        # Our own rules name the keys or the value; their input may be a whole section.
        message = f"{mistake['ctx']['error']!s:.{10 * MAX_SHOWN}}"
        return f"{key}: {message}" if key else message
    return f"{key}: {mistake['msg']} (got {mistake['input']!r:.80})"


def hint(name: str, known: Iterable[str], label: str = "known") -> str:
    """Suggest the closest known name, or list them all."""
    nearest = difflib.get_close_matches(name, known := list(known), n=1, cutoff=0.5)
    return f"did you mean '{nearest[0]}'?" if nearest else f"{label}: {', '.join(known)}"


def _follow(model: type[BaseModel], location: Sequence[str]) -> tuple[list[str], list[type[BaseModel]]]:
    """Resolve a location reported by pydantic to its keys and the section or sections there."""
    keys: list[str] = []
    sections: list[type[BaseModel]] = [model]
    for part in location:
        below = [nested for s in sections if part in s.model_fields for nested in sections_below(s, part)]
        # A part other than a field is the tag of a union: keep the member it names.
        tagged = [s for s in sections if "name" in s.model_fields and s.model_fields["name"].default == part]
        is_tag = tagged and not any(part in s.model_fields for s in sections)
        keys += [] if is_tag else [part]
        sections = below or tagged or sections
    return keys, sections


def sections_below(section: type[BaseModel], field: str) -> list[type[BaseModel]]:
    """Return the sections that a field may hold: several if their name selects one."""
    return sections_in(section.model_fields[field].annotation)


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections that a type consists of."""
    sections: list[type[BaseModel]] = []
    pending: list[Any] = [annotation]
    while pending:
        part = pending.pop(0)
        if isinstance(part, type) and issubclass(part, BaseModel):
            sections.append(part)
        pending.extend(get_args(part))
    return sections
