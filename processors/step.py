"""Steps: the named functions that the processors' lists consist of.

A step is a function. A parameter that has a column's name reads that column (`trinity_db.store.processing`
has them all); every other one is an option, and the configuration gives it beside the step's name. What a
step returns is decided by its list (`results.py`). A step that has to get ready, as one that loads a model,
is a class: its constructor takes a `Context` and the options, and its instances are called with columns. A
step that waits for a server is `async def`, and is asked about many rows at the same time within `Limits`.
If a class has a static `files(**options)`, a change of the files that it returns makes another version of its
list. So does another model of a class with a static `model_digest(context, **options)`, which returns the
digest of the model that it would load now; an instance has that of its own model as `loaded_digest`. A
coroutine `close` of an instance is awaited when no row will come any more.
"""

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import to_jsonable_python

from trinity_db import functions, signatures
from trinity_db.config import ModelConfig
from trinity_db.database import Database
from trinity_db.errors import ConfigError
from trinity_db.processors.limits import Limits
from trinity_db.processors.own_modules import PACKAGE, imported
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
class Answer:
    """The result of any step, with what belongs to it."""

    value: Any
    """The result: a number, a mapping of numbers or of answers, a reason, or None."""
    detail: Mapping[str, Any] | None = None
    """What is kept with each reward event of it, such as a judge's words. Values that JSON has."""
    tokens: int = 0
    """What it cost of the step's tokens_per_minute."""
    weight: float = 1.0
    """Of an answer in a mapping: its share in the step's value."""


@dataclass(frozen=True)
class Response:
    """The result of a step of `synthesis` that answers the row's task: an expert row for other runs."""

    text: str


class NotAnswered(Exception):
    """An asynchronous step has no answer. What it raised says what to do then; it is kept as it stands.

    Args:
        after: Seconds that the server wants to be left alone. Until then the step is not asked about any row.
        tokens: What the try cost of the step's tokens_per_minute.
        is_final: Another try would end the same way, so the row fails at once.
    """

    def __init__(self, message: str, after: float = 0.0, tokens: int = 0, is_final: bool = False) -> None:
        super().__init__(message)
        self.after = after
        self.tokens = tokens
        self.is_final = is_final


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
    limits: Limits | None = None
    """How it may be asked, if it is asynchronous; None if it is not."""
    call: Callable[..., Any] | None = None
    """What is called with the columns; None while it is not ready."""
    files: Mapping[Path, str | None] = field(default_factory=dict)
    """SHA-256 of the file with its code, then of the user's own modules that this imports, then of files that
    its options name and it judges by, as they were when it was loaded. None of a file that is not there."""
    model_digest: str | None = None
    """Of a model that it judges by; None while that is not known, and of a step that has none."""

    @property
    def version(self) -> int:
        """Of its code."""
        return int(getattr(self.function, "version", 1))

    @property
    def digest(self) -> str | None:
        """SHA-256 of the file with its code; None of code without a file. If that imports modules of the
        user's, the SHA-256 of all their digests. If it judges by other files too, that of their digests and
        of its options as well, so that it covers a rubric and a judge's name. If it judges by a model, that
        of the model's as well."""
        digests = [*self.files.values()]
        if self.model_digest is not None:
            digests.append(self.model_digest)
        if len(digests) <= 1 and not self._is_by_files:
            return next(iter(digests), None)
        made_of = json.dumps([digests, self._plain_options] if self._is_by_files else digests, sort_keys=True)
        return hashlib.sha256(made_of.encode()).hexdigest()

    @property
    def _is_by_files(self) -> bool:
        return hasattr(self.function, "files")

    @property
    def _plain_options(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_jsonable_python(dict(self.options), fallback=str)
        return plain

    @property
    def batch(self) -> int | None:
        """How many rows it is asked about at once, at most; None: one, without lists."""
        found: int | None = getattr(self.function, "batch", None)
        return found

    @property
    def is_async(self) -> bool:
        """Whether what it says has to be awaited."""
        called: Any = self.function.__call__ if inspect.isclass(self.function) else self.function
        return inspect.iscoroutinefunction(called)

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
        """The step, ready to be called.

        Raises:
            ConfigError: it does not get ready, or a file that it judges by is no more as it was.
        """
        if self.call is not None:
            return self
        call = self.function(context, **self.options)
        for path, known in self.files.items():
            if digest_of(path) != known:
                raise ConfigError(f"{self.name}: {path} changed while it was read; start again.")
        loaded = call.loaded_digest if hasattr(self.function, "model_digest") else None
        return replace(self, call=call, model_digest=loaded)

    def identified(self, context: Context) -> "Step":
        """The step as it would be recorded if it got ready now. Its model is read, and not loaded.

        Raises:
            ConfigError: there is no such model.
        """
        find = getattr(self.function, "model_digest", None)
        return self if find is None else replace(self, model_digest=find(context, **self.options))

    def record(self) -> dict[str, Any]:
        """What is stored of it."""
        return {
            "name": self.name,
            "version": self.version,
            "digest": self.digest,
            "weight": self.weight,
            "options": self._plain_options,
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
        return Step(name, function, tuple(reads), options, files=_files(function, options))
    options = signatures.options(function, title, given, processing.columns(), beside)
    reads = [one for one in declared if one in processing.columns()]
    return Step(
        name, function, tuple(reads), options, call=partial(function, **options), files=_files(function, {})
    )


def digest_of(file: Path | None) -> str | None:
    """The SHA-256 of a file as it is now, in hexadecimal digits; None if there is none."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() if file is not None else None
    except OSError:
        return None


def _files(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[Path, str | None]:
    """The files that a step's results follow from. A module of this package is covered by its own version."""
    code = _file_of(function)
    is_own = code is not None and function.__module__.partition(".")[0] != PACKAGE
    modules = imported(code) if code is not None and is_own else []
    named = function.files(**options) if hasattr(function, "files") else ()
    return {path: digest_of(path) for path in (code, *modules, *named) if path is not None}


def _file_of(function: Callable[..., Any]) -> Path | None:
    file = getattr(sys.modules.get(function.__module__), "__file__", None)
    return Path(file) if file else None


def _check_trainer(parameters: Collection[str], title: str) -> None:
    for trainer, known in FOREIGN.items():
        if known <= set(parameters):
            raise ConfigError(
                f"{title} has a signature of {trainer}'s. Here it judges one response and returns one "
                "number: def reward(response, task, **options) -> float, where task has the columns of the "
                "imported task, as task['answer']."
            )
