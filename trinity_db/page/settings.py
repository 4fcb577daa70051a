"""Settings of runs as people read them: by dotted keys, and what a change of them changed."""

import json
from collections.abc import Mapping
from typing import Any

CHARACTERS = 200  # of a value; prompts are longer


def flat(config: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """A configuration by dotted keys; an empty part is a value."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{path}{key}.")
        else:
            found[f"{path}{key}"] = value
    return found


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The keys whose values differ between two configurations, with both."""
    old, new = flat(before), flat(after)
    return {
        key: (old.get(key), new.get(key))
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    }


def value(given: Any) -> str:
    """A value in one line, cut where it is long."""
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return cut(text or '""', CHARACTERS)


def cut(text: str, characters: int) -> str:
    """At most so many characters of a text."""
    return text if len(text) <= characters else f"{text[:characters]}…"
