"""Resolved values of a configuration's keys, and the origin of each."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trinity_db.config import base
from trinity_db.errors import ConfigError
from trinity_db.insight.words import moment
from trinity_db.run.configuration import RunConfig
from trinity_db.trainer.recipes.recipes import RECIPES

SET = "--set"
FILE = "file"
DEFAULT = "default"
START = "start of the run"


@dataclass(frozen=True)
class Value:
    """A key with its value."""

    key: str
    value: Any
    origin: str
    """Origin of the value."""


def of(path: Path, overrides: Sequence[str]) -> list[Value]:
    """Resolve a configuration: of a file, or of the run with that name if the file does not exist.

    Raises:
        ConfigError: if the file is missing or has mistakes, or --set is given for a run.
        NotFound: if there is neither such a file nor such a run.
    """
    if path.exists() or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return _of_file(path, overrides)
    if overrides:
        raise ConfigError(f"{path}: no such file, and --set does not apply to runs.")
    return _of_run(str(path))


def _of_run(name: str) -> list[Value]:
    from trinity_db.postgres.opening import open_reader
    from trinity_db.schema.states import RunKind
    from trinity_db.store import runs
    from trinity_db.store import settings as changes

    with closing(open_reader()) as database, database.transaction(read_only=True) as tx:
        run = runs.find(tx, name, "file and no run")
        if run.kind != RunKind.TRAIN:
            raise ConfigError(f"'{name}' is an imported data set, which has no configuration.")
        changed = changes.latest(tx, run.id)
    stored = dict(_leaves(run.config))
    return [
        Value(key, value, DEFAULT if key not in stored else _since(changed.get(key)))
        for key, value in _leaves(RunConfig.completed(run.config))
    ]


def _since(changed_at: datetime | None) -> str:
    return START if changed_at is None else f"changed {moment(changed_at)}"


def _of_file(path: Path, overrides: Sequence[str]) -> list[Value]:
    content = base.overridden(RunConfig, base.content_of(path), overrides)
    set_here = base.overridden(RunConfig, {}, overrides)
    config = base.validate(RunConfig, content, str(path))

    def origin(key: str) -> str:
        if _gives(set_here, key, config.algorithm):
            return SET
        if _gives(content, key, config.algorithm):
            return FILE
        return f"recipe {config.algorithm.name}" if _is_of_recipe(config.algorithm, key) else DEFAULT

    return [Value(key, value, origin(key)) for key, value in _leaves(config.model_dump(mode="json"))]


def _leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key that has a value and is not a section, by its path. A list is one value."""
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _gives(content: Mapping[str, Any], key: str, algorithm: BaseModel) -> bool:
    """Whether hand-written content sets the value of a key."""
    section, *below = key.split(".")
    if section == "algorithm" and below[1:2] in (["function"], ["options"]):
        below = [
            below[0],
            "name",
        ]  # a user's part is written as one name, with its options next to it
    node: Any = content
    for name in (section, *below):
        if isinstance(node, str):
            return name == "name"
        if not isinstance(node, Mapping) or name not in node:
            return section == "algorithm" and _is_flat(content.get("algorithm"), below, algorithm)
        node = node[name]
    return True


def _is_flat(written: Any, below: Sequence[str], algorithm: BaseModel) -> bool:
    """Whether an option of a part is written next to the recipe's name."""
    if not isinstance(written, Mapping):
        return False
    flat = [key for key in written if key not in type(algorithm).model_fields]
    if isinstance(getattr(algorithm, below[0], None), tuple):
        return bool(flat)  # the only possible parts
    return len(below) > 1 and below[1] in flat


def _is_of_recipe(algorithm: BaseModel, key: str) -> bool:
    """Whether the recipe chose this value, and no file or option did."""
    section, *below = key.split(".")
    if section != "algorithm":
        return False
    recipe = RECIPES[algorithm.name]  # type: ignore[attr-defined]
    chosen, original = getattr(algorithm, below[0]), getattr(recipe, below[0])
    if not isinstance(original, BaseModel):
        return isinstance(original, tuple) or below[0] in recipe.model_fields_set
    if len(below) == 1 or type(chosen) is not type(original):
        return False
    return below[1] == "name" or below[1] in original.model_fields_set
