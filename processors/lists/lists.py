"""Lists of steps, one for each stage: the available steps, and the interpretation of their results."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.processors.lists import step
from trinity_db.processors.lists.limits import Limits
from trinity_db.processors.lists.results import Reading, of_cleaning, of_priority, of_scoring
from trinity_db.processors.lists.step import Context, Step
from trinity_db.processors.lists.synthesis_results import of_synthesis
from trinity_db.processors.steps import (
    clean,
    code,
    embed,
    language,
    mathematics,
    model_judge,
    near_duplicates,
    overlap,
    priorities,
    reward_model,
    rewards,
    synthesis,
    teacher,
)
from trinity_db.store import processing

if TYPE_CHECKING:
    from trinity_db.processors.config import ProcessorsConfig, StepConfig

Steps = Mapping[str, Sequence[Step]]
"""Steps of each processor's list, in order."""


OF_GROUPS = "it is known once the whole group is scored, and only steps of priority and synthesis read it"
OF_ARRAYS = "rows may be processed whose arrays are archived"


@dataclass(frozen=True)
class List:
    """The steps available to one processor."""

    kind: str
    """Kind of step, for messages."""
    known: Mapping[str, Callable[..., Any]]
    """Built-in steps by name."""
    reading: Reading
    """Function that applies a step's result to the verdict."""
    columns: tuple[str, ...] = ()
    """Columns that `reading` needs."""
    unknown: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys(processing.OF_GROUPS, OF_GROUPS))
    """Columns that no step of the list may read, with the reason."""
    may_wait: bool = True
    """Whether steps may be asynchronous."""

    def load(self, config: "StepConfig") -> Step:
        """Load a step from its configuration.

        Raises: see `step.load`.
        """
        keys = type(config).model_fields
        loaded = step.load(config.name, self.kind, self.known, config.options, keys)
        title = f"{self.kind} '{config.name}'"
        if loaded.is_async and loaded.batch:
            raise ConfigError(f"{title}: it is async def and has batch, but async steps process single rows.")
        for column in loaded.columns:
            if column in self.unknown:
                raise ConfigError(f"{title} reads '{column}': {self.unknown[column]}.")
        if loaded.is_async and not self.may_wait:
            raise ConfigError(f"{title}: it is async def, but a {self.kind} must be synchronous: use def.")
        if config.limits is not None and not loaded.is_async:
            raise ConfigError(f"{title}: it has limits, which only apply to a step that is async def.")
        limits = (config.limits or Limits()) if loaded.is_async else None
        return replace(loaded, weight=getattr(config, "weight", 1.0), limits=limits)


def _steps_of(*modules: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the marked steps of these modules by name; a class MathMatch has the name math_match."""
    return {
        re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(): value
        for module in modules
        for name, value in vars(module).items()
        if hasattr(value, "batch") and value.__module__ == module.__name__
    }


LISTS = {
    "clean": List(
        "clean step",
        _steps_of(clean, language, near_duplicates, overlap, embed),
        of_cleaning,
    ),
    "score": List(
        "score step",
        _steps_of(rewards, mathematics, code, model_judge, reward_model, teacher),
        of_scoring,
        ("last_step",),
    ),
    "priority": List(
        "priority step",
        _steps_of(priorities),
        of_priority,
        unknown=dict.fromkeys(processing.ARRAYS, OF_ARRAYS),
        may_wait=False,
    ),
    "synthesis": List(
        "synthesis step",
        _steps_of(synthesis),
        of_synthesis,
        ("task", "response"),
        unknown=dict.fromkeys(processing.ARRAYS, OF_ARRAYS),
    ),
}
"""List of each processor that uses steps."""


def load(config: "ProcessorsConfig") -> Steps:
    """Load the steps of all lists, without preparing them.

    Raises:
        ConfigError: if a step does not exist, does not take its options, or is in the wrong position.
    """
    steps_by_processor = {
        processor: [kind.load(step) for step in getattr(config, processor)]
        for processor, kind in LISTS.items()
    }
    for processor, steps in steps_by_processor.items():
        for before, after in pairwise(steps):
            if before.is_async and not after.is_async:
                raise ConfigError(
                    f"{LISTS[processor].kind} '{after.name}' is after '{before.name}', which is "
                    "asynchronous: put asynchronous steps last, so that they only run for rows that pass "
                    "the others."
                )
    return steps_by_processor


def check(config: "ProcessorsConfig", model: ModelConfig) -> None:
    """Find mistakes before the run is created.

    Args:
        model: The run's starting model.

    Raises:
        ConfigError: if a step does not exist, does not take its options, or would fail to prepare.
    """
    for steps in load(config).values():
        for checked in steps:
            checked.check(model)


def prepare(steps: Steps, context: Context) -> Steps:
    """Prepare all steps, which loads models."""
    return {processor: [step.prepared(context) for step in listed] for processor, listed in steps.items()}


def stages(steps: Steps) -> list[processing.Stage]:
    """Return the stages in order, with the columns that their steps and lists read."""
    return [
        replace(stage, columns=columns_of(stage.processor, steps[stage.processor]))
        for stage in processing.STAGES
    ]


def columns_of(processor: str, steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the columns that a list with these steps reads."""
    read = (*LISTS[processor].columns, *(name for step in steps for name in step.columns))
    return tuple(dict.fromkeys(read))
