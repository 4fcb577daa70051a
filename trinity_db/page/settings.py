"""Settings of runs as people read them: by dotted keys, with the changes between two configurations."""

import json
from collections.abc import Mapping
from typing import Any

CHARACTERS = 200  # shown of a value; prompts are longer


def flat(config: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Flatten a configuration to dotted keys; an empty section counts as a value."""
    values: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            values |= flat(value, f"{path}{key}.")
        else:
            values[f"{path}{key}"] = value
    return values


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the keys whose values differ between two configurations, with both values."""
    old, new = flat(before), flat(after)
    return {
        key: (old.get(key), new.get(key))
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    }


def value(setting: Any) -> str:
    """Format a value in one line, shortened if it is long."""
    text = setting if isinstance(setting, str) else json.dumps(setting, ensure_ascii=False)
    return cut(text or '""', CHARACTERS)


def cut(text: str, characters: int) -> str:
    """Shorten a text to a number of characters."""
    return text if len(text) <= characters else f"{text[:characters]}…"
