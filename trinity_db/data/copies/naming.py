"""Replaces names in a copied run's configuration with the names of runs and tasksets in this store."""

import json
from collections.abc import Mapping
from typing import Any


def renamed_config(text: str, runs: Mapping[str, str], tasksets: Mapping[str, str]) -> str:
    """Return a configuration with replaced names.

    Args:
        runs: names of runs and data sets: in the copy → here.
        tasksets: names of tasksets: in the copy → here.
    """
    if all(old == new for old, new in (*runs.items(), *tasksets.items())):
        return text
    config = json.loads(text)
    for names, *path in (
        (runs, "name"),
        (runs, "data"),
        (runs, "processors", "made", "data"),
        (tasksets, "taskset"),
        (tasksets, "evaluation", "taskset"),
        (tasksets, "processors", "made", "taskset"),
    ):
        _rename(config, path, names)
    return json.dumps(config)


def _rename(section: Any, path: list[str], names: Mapping[str, str]) -> None:
    """Replace the names at a path of the configuration, if it exists."""
    for key in path[:-1]:
        section = section.get(key) if isinstance(section, dict) else None
    if isinstance(section, dict) and path[-1] in section:
        section[path[-1]] = _renamed(section[path[-1]], names)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Replace a name, a list of names, or names with weights."""
    match value:
        case str():
            return names.get(value, value)
        case list():
            return [names.get(item, item) if isinstance(item, str) else item for item in value]
        case dict():
            return {names.get(name, name): weight for name, weight in value.items()}
    return value
