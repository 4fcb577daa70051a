"""The lists of steps, one for each stage: which steps there are, and what their results mean."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trinity_db.config import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.processors import step
from trinity_db.processors.limits import Limits
from trinity_db.processors.making import of_synthesis
from trinity_db.processors.results import Reading, of_cleaning, of_priority, of_scoring
from trinity_db.processors.step import Context, Step
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
"""The steps of each processor's list, in order."""


OF_GROUPS = "it is known once the whole group is judged, and only steps of priority and synthesis read it"
OF_ARRAYS = "it may be asked about rows whose arrays are archived"


@dataclass(frozen=True)
class List:
    """The steps that one processor may have."""

    what: str
    """What messages call one of the steps."""
    known: Mapping[str, Callable[..., Any]]
    """The built-in steps, by name."""
    defaults: tuple[str, ...]
    """The steps of a list that the configuration leaves out. In a list, `defaults` stands for them."""
    reading: Reading
    """What the result of a step means."""
    columns: tuple[str, ...] = ()
    """The columns that `reading` reads."""
    unknown: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys(processing.OF_GROUPS, OF_GROUPS))
    """Columns that no step of it may read, with the reason."""
    may_wait: bool = True
    """Whether a step may be asynchronous."""

    def load(self, config: "StepConfig") -> Step:
        """A step, as the configuration names it.

        Raises: as `step.load`.
        """
        keys = type(config).model_fields
        loaded = step.load(config.name, self.what, self.known, config.options, keys)
        title = f"{self.what} '{config.name}'"
        if loaded.is_async and loaded.batch:
            raise ConfigError(f"{title}: it is async def and has batch; it is asked about one row at a time.")
        for column in loaded.columns:
            if column in self.unknown:
                raise ConfigError(f"{title} reads '{column}': {self.unknown[column]}.")
        if loaded.is_async and not self.may_wait:
            raise ConfigError(f"{title}: it is async def, and a {self.what} answers at once: use def.")
        if config.limits is not None and not loaded.is_async:
            raise ConfigError(f"{title}: limits are for a step that is async def, and it is not.")
        limits = (config.limits or Limits()) if loaded.is_async else None
        return replace(loaded, weight=getattr(config, "weight", 1.0), limits=limits)

    def says(self, name: str) -> str | None:
        """The name of the model whose log-probabilities a built-in step stores; None for any other step."""
        return getattr(self.known.get(name), "says", None)


def _steps_of(*modules: ModuleType) -> dict[str, Callable[..., Any]]:
    """The marked steps of these modules, by name; a class MathMatch by the name math_match."""
    return {
        re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(): found
        for module in modules
        for name, found in vars(module).items()
        if hasattr(found, "batch") and found.__module__ == module.__name__
    }


LISTS = {
    "clean": List(
        "clean step",
        _steps_of(clean, language, near_duplicates, overlap, embed),
        ("finite_logprobs",),
        of_cleaning,
    ),
    "score": List(
        "score step",
        _steps_of(rewards, mathematics, code, model_judge, reward_model, teacher),
        ("exact_match",),
        of_scoring,
        ("last_step",),
    ),
    "priority": List(
        "priority step",
        _steps_of(priorities),
        (),
        of_priority,
        unknown=dict.fromkeys(processing.ARRAYS, OF_ARRAYS),
        may_wait=False,
    ),
    "synthesis": List(
        "synthesis step",
        _steps_of(synthesis),
        (),
        of_synthesis,
        ("task", "response"),
        unknown=dict.fromkeys(processing.ARRAYS, OF_ARRAYS),
    ),
}
"""Of each processor that works by steps."""


def load(config: "ProcessorsConfig") -> Steps:
    """The steps of all lists, not yet ready to be called.

    Raises:
        ConfigError: a step is not there, does not take its options, or stands in the wrong place.
    """
    found = {
        processor: [kind.load(one) for one in getattr(config, processor)] for processor, kind in LISTS.items()
    }
    for processor, steps in found.items():
        for one, other in pairwise(steps):
            if one.is_async and not other.is_async:
                raise ConfigError(
                    f"{LISTS[processor].what} '{other.name}' stands behind '{one.name}', which is "
                    "asynchronous: name asynchronous steps last, so that they are asked only about rows that "
                    "the others pass."
                )
    return found


def check(config: "ProcessorsConfig", model: ModelConfig) -> None:
    """Find mistakes before the run is created.

    Args:
        model: the run's starting model.

    Raises:
        ConfigError: a step is not there, does not take its options, or could not get ready.
    """
    for found in load(config).values():
        for one in found:
            one.check(model)


def prepare(steps: Steps, context: Context) -> Steps:
    """The same, ready to be called; models are loaded."""
    return {processor: [one.prepared(context) for one in found] for processor, found in steps.items()}


def stages(steps: Steps) -> list[processing.Stage]:
    """The stages in their order, with the columns that their steps and lists read."""
    return [
        replace(stage, columns=columns_of(stage.processor, steps[stage.processor]))
        for stage in processing.STAGES
    ]


def columns_of(processor: str, steps: Sequence[Step]) -> tuple[str, ...]:
    """What a list with these steps reads of a row."""
    read = (*LISTS[processor].columns, *(name for one in steps for name in one.columns))
    return tuple(dict.fromkeys(read))
