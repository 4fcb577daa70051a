"""Steps: the named functions that the processors' lists consist of.

A step is a function. A parameter that has a column's name reads that column (`trinity_db.store.processing`
has them all); every other one is an option, and the configuration gives it beside the step's name. What a
step returns is decided by its list (`results.py`). A step that has to get ready, as one that loads a model,
is a class: its constructor takes a `Context` and the options, and its instances are called with columns.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from pydantic_core import to_jsonable_python

from trinity_db import functions, signatures
from trinity_db.config import ModelConfig
from trinity_db.database import Database
from trinity_db.errors import ConfigError
from trinity_db.settings import hint
from trinity_db.store import processing

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

FOREIGN = {
    "TRL": {"completions"},
    "verl": {"solution_str", "ground_truth"},
}
"""Parameters by which a function that was written for another trainer is known."""


def step(*, version: int = 1, batch: int | None = None) -> Callable[[FunctionT], FunctionT]:
    """Say of a function that is used as a step what its signature does not.

    Args:
        version: Of its code. Raise it when its results change: each row's record names it.
        batch: It is asked about so many rows at once, at most. Each column is a list then, and it returns
            pairs of a row's place in the lists and its result, in any order; or yields them as they come,
            so that a signal can end it in between. An exception as a result fails that row alone.
    """

    def mark(function: FunctionT) -> FunctionT:
        function.version = version  # type: ignore[attr-defined]
        function.batch = batch  # type: ignore[attr-defined]
        return function

    return mark


@dataclass(frozen=True)
class Drop:
    """The result of any step that finds a row unfit for training."""

    reason: str
    detail: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Context:
    """What a step that has to get ready may know of its run."""

    database: Database
    model: ModelConfig
    """The run's starting model."""
    temperature: float
    """At which explorers sample."""


@dataclass(frozen=True)
class Step:
    """A step of a list, with its options."""

    name: str
    function: Callable[..., Any]
    """As it was declared: a function, or a class of what gets ready first."""
    columns: tuple[str, ...]
    """What it reads."""
    options: Mapping[str, Any]
    weight: float = 1.0
    """Its share in the reward."""
    call: Callable[..., Any] | None = None
    """What is called with the columns; None while it is not ready."""

    @property
    def version(self) -> int:
        """Of its code."""
        return int(getattr(self.function, "version", 1))

    @property
    def batch(self) -> int | None:
        """How many rows it is asked about at once, at most; None: one, without lists."""
        found: int | None = getattr(self.function, "batch", None)
        return found

    def __call__(self, columns: Mapping[str, Any]) -> Any:
        """What it says of a row, or of the rows whose columns are in lists."""
        assert self.call is not None, f"{self.name} is not ready"
        return self.call(**{name: columns[name] for name in self.columns})

    def check(self, model: ModelConfig) -> None:
        """Find mistakes that its signature does not show, before the run is created.

        Args:
            model: the run's starting model.

        Raises:
            ConfigError: a step that has to get ready would not get ready.
        """
        if (check := getattr(self.function, "check", None)) is not None:
            check(model, **self.options)

    def prepared(self, context: Context) -> "Step":
        """The step, ready to be called."""
        if self.call is not None:
            return self
        return replace(self, call=self.function(context, **self.options))

    def record(self) -> dict[str, Any]:
        """What is stored of it."""
        return {
            "name": self.name,
            "version": self.version,
            "weight": self.weight,
            "options": to_jsonable_python(dict(self.options), fallback=str),
        }


def load(
    name: str,
    what: str,
    known: Mapping[str, Callable[..., Any]],
    given: Mapping[str, Any],
    beside: Iterable[str] = (),
) -> Step:
    """The step of that name with these options: one of ours, or the user's `path/to/file.py:name`.

    Args:
        what: What messages call such a step.
        beside: Keys of the configuration that stand beside its options.

    Raises:
        ConfigError: there is no such step, it does not take these options, or it was written for another
            trainer.
    """
    function = functions.find(name, what, known)
    title = f"{what} '{name}'"
    declared = tuple(inspect.signature(function).parameters)
    _check_trainer(declared, title)
    if inspect.isclass(function):
        # Its constructor takes the context and options; what it reads stands where it is called.
        options = signatures.options(function, title, given, declared[:1], beside)
        _, *reads = inspect.signature(function.__call__).parameters
        if unknown := [one for one in reads if one not in processing.columns()]:
            columns = hint(unknown[0], processing.columns())
            raise ConfigError(f"{title}: there is no column '{unknown[0]}'; {columns}.")
        return Step(name, function, tuple(reads), options)
    options = signatures.options(function, title, given, processing.columns(), beside)
    reads = [one for one in declared if one in processing.columns()]
    return Step(name, function, tuple(reads), options, call=partial(function, **options))


def _check_trainer(parameters: Collection[str], title: str) -> None:
    for trainer, known in FOREIGN.items():
        if known <= set(parameters):
            raise ConfigError(
                f"{title} has a signature of {trainer}'s. Here it judges one response and returns one "
                "number: def reward(response, task, **options) -> float, where task has the columns of the "
                "imported task, as task['answer']."
            )
