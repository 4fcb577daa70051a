"""The question that people are asked about rows and pairs in a run's queue."""

from collections.abc import Mapping
from typing import Any

from trinity_db.store.reviews import Question


def question(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Question:
    """Return the question from a run's configuration; `overrides` that are not None take precedence."""
    people = {key: value for key, value in (config.get("people") or {}).items() if key != "wait_seconds"}
    source = config.get("requires_reward") or "human"
    return Question(**{"source": source, **people, **{k: v for k, v in overrides.items() if v is not None}})
