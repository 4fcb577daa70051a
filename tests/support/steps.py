"""Processors as workers of a scene, and lists of steps that are asked without a store."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.rows import Scene
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.lists import lists
from trinity_db.processors.lists.judge import Row, judge
from trinity_db.processors.lists.step import Step
from trinity_db.processors.service import Processors
from trinity_db.store.processing import StepVerdict


def processors(
    scene: Scene, config: Mapping[str, Any], drain: bool = False, steps: lists.Steps | None = None
) -> Processors:
    """The processors of a scene's run, by its configuration, or with other steps than that names."""
    settings = ProcessorsConfig.model_validate(config)
    steps = {**lists.load(settings), **(steps or {})}
    role = Processors(scene.database, scene.run, settings, steps, drain)
    role.worker_id = scene.processor
    role.start()
    return role


def process(scene: Scene, config: Mapping[str, Any], steps: lists.Steps | None = None) -> None:
    """Move all rows as far as they go."""
    role = processors(scene, config, steps=steps)
    while role.work():
        pass


def load(processor: str, *named: Any) -> list[Step]:
    """The steps of one list, as the configuration names them."""
    return list(lists.load(ProcessorsConfig.model_validate({processor: list(named)}))[processor])


def verdicts(processor: str, steps: Sequence[Step], *rows: Mapping[str, Any]) -> list[StepVerdict]:
    """What the steps make of rows; each has what they read."""
    asked = [
        Row({"id": number, "rollout_id": number, "last_step": 0, **row}, StepVerdict(number, 1))
        for number, row in enumerate(rows)
    ]
    return [row.verdict for row in judge(asked, steps, lists.LISTS[processor].reading, lambda: False)]


def value(name: str, row: Mapping[str, Any], **options: Any) -> float:
    """The number that a score step gives a row.

    Raises:
        AssertionError: with the error, where the step fails.
    """
    [verdict] = verdicts("score", load("score", {"name": name, **options}), row)
    assert verdict.error is None, verdict.error
    [event] = verdict.events
    return event.value
