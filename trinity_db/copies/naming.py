"""The names in a copied run's configuration, as its runs and tasksets are called in the store of the copy."""

import json
from collections.abc import Mapping
from typing import Any


def renamed_config(text: str, runs: Mapping[str, str], tasksets: Mapping[str, str]) -> str:
    """A configuration with other names.

    Args:
        runs: Runs and data sets: their name in the copy → here.
        tasksets: Tasksets, likewise.
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
    """Rename what stands at a place of the configuration, if there is anything."""
    for key in path[:-1]:
        section = section.get(key) if isinstance(section, dict) else None
    if isinstance(section, dict) and path[-1] in section:
        section[path[-1]] = _renamed(section[path[-1]], names)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A name, a list of names, or names with their weights."""
    match value:
        case str():
            return names.get(value, value)
        case list():
            return [names.get(one, one) if isinstance(one, str) else one for one in value]
        case dict():
            return {names.get(name, name): weight for name, weight in value.items()}
    return value
