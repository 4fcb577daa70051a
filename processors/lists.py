"""The lists of steps, one for each stage: which steps there are, and what their results mean."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trinity_db.config import ModelConfig
from trinity_db.processors import step
from trinity_db.processors.results import Reading, of_cleaning, of_scoring
from trinity_db.processors.step import Context, Step
from trinity_db.processors.steps import clean, rewards, teacher
from trinity_db.store import processing

if TYPE_CHECKING:
    from trinity_db.processors.config import ProcessorsConfig, StepConfig

Steps = Mapping[str, Sequence[Step]]
"""The steps of each processor's list, in order."""


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

    def load(self, config: "StepConfig") -> Step:
        """A step, as the configuration names it.

        Raises: as `step.load`.
        """
        keys = type(config).model_fields
        loaded = step.load(config.name, self.what, self.known, config.options, keys)
        return replace(loaded, weight=getattr(config, "weight", 1.0))

    def says(self, name: str) -> str | None:
        """The name of the model whose log-probabilities a built-in step stores; None for any other step."""
        return getattr(self.known.get(name), "says", None)


def _steps_of(*modules: ModuleType) -> dict[str, Callable[..., Any]]:
    """The marked steps of these modules, by name; a class by its name in small letters."""
    return {
        name.lower(): found
        for module in modules
        for name, found in vars(module).items()
        if hasattr(found, "batch") and found.__module__ == module.__name__
    }


LISTS = {
    "clean": List(
        "clean step",
        _steps_of(clean),
        ("not_empty", "finite_logprobs"),
        of_cleaning,
    ),
    "score": List(
        "score step",
        _steps_of(rewards, teacher),
        ("exact_match",),
        of_scoring,
        ("last_step",),
    ),
}
"""Of each processor that works by steps."""


def load(config: "ProcessorsConfig") -> Steps:
    """The steps of all lists, not yet ready to be called.

    Raises:
        ConfigError: a step is not there or does not take its options.
    """
    return {
        processor: [kind.load(one) for one in getattr(config, processor)] for processor, kind in LISTS.items()
    }


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
        replace(stage, columns=_columns(LISTS[stage.processor], steps[stage.processor]))
        for stage in processing.STAGES
    ]


def _columns(kind: List, steps: Sequence[Step]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*kind.columns, *(name for one in steps for name in one.columns))))
