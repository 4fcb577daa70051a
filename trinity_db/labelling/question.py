"""What people are asked about the rows and pairs that enter the queue of a run."""

from collections.abc import Mapping
from typing import Any

from trinity_db.store.reviews import Question


def question(config: Mapping[str, Any], given: Mapping[str, Any]) -> Question:
    """The question of a run, by its configuration; `given` goes before it where it is not None."""
    people = {key: value for key, value in (config.get("people") or {}).items() if key != "wait_seconds"}
    source = config.get("requires_reward") or "human"
    return Question(**{"source": source, **people, **{k: v for k, v in given.items() if v is not None}})
