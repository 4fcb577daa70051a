"""Steps: the named functions that the processors' lists consist of.

A step is a function. A parameter named after a column reads that column (`trinity_db.store.processing` lists
them); any other parameter is an option, set in the configuration next to the step's name. Its list decides
what results mean (`results.py`). A step that needs preparation, such as loading a model, is a class: its
constructor takes a `Context` and the options, and its instances are called with columns. A step that waits
for a server is `async def` and handles many rows concurrently within `Limits`.

Optional members of a class: a static `files(**options)` returns files that the results depend on; a change of
these files makes a new version of the list. A static `model_digest(context, **options)` returns the digest of
the model that would be loaded now, and an instance has the digest of its loaded model as `loaded_digest`;
another digest makes a new version too. A coroutine `close` of an instance is awaited after the last row.
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

from trinity_db.config import signatures, user_functions
from trinity_db.config.base import hint
from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.postgres.connection import Database
from trinity_db.processors.lists.limits import Limits
from trinity_db.processors.lists.own_modules import PACKAGE, imported
from trinity_db.store import processing

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

FOREIGN = {
    "TRL": {"completions"},
    "verl": {"solution_str", "ground_truth"},
}
"""Parameter names that identify functions written for another trainer."""


def step(*, version: int = 1, batch: int | None = None) -> Callable[[FunctionT], FunctionT]:
    """Declare properties of a step that its signature does not show.

    Args:
        version: Version of the step's code, recorded with each row. Raise it when the results change.
        batch: Maximum number of rows in one call. Columns are then lists, and the step returns pairs of a
            row's index and its result, in any order, or yields them, so that a signal can stop it in between.
            An exception as a result fails only that row.
    """

    def mark(function: FunctionT) -> FunctionT:
        function.version = version  # type: ignore[attr-defined]
        function.batch = batch  # type: ignore[attr-defined]
        return function

    return mark


@dataclass(frozen=True)
class Drop:
    """Result of a step that rejects a row for training."""

    reason: str
    detail: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Answer:
    """Result of a step, with details and costs."""

    value: Any
    """A number, a mapping of numbers or of answers, a reason, or None."""
    detail: Mapping[str, Any] | None = None
    """JSON values stored with each reward event of the result, such as a judge's explanation."""
    tokens: int = 0
    """Tokens counted against the step's tokens_per_minute."""
    weight: float = 1.0
    """For an answer in a mapping: its weight in the step's value."""


@dataclass(frozen=True)
class Response:
    """Result of a step of `synthesis` that answers the row's task: an expert row for other runs."""

    text: str


class NotAnswered(Exception):
    """An asynchronous step has no answer. Its attributes decide about retries; its message is recorded
    unchanged.

    Args:
        after: Seconds that the server asked to wait. Until then the step is called for no row.
        tokens: Tokens that the attempt cost, counted against the step's tokens_per_minute.
        is_final: Retrying would fail the same way, so the row fails at once.
    """

    def __init__(self, message: str, after: float = 0.0, tokens: int = 0, is_final: bool = False) -> None:
        super().__init__(message)
        self.after = after
        self.tokens = tokens
        self.is_final = is_final


@dataclass(frozen=True)
class Context:
    """Properties of the run that are available to a step's constructor."""

    database: Database
    model: ModelConfig
    """The run's starting model."""
    temperature: float
    """Sampling temperature of the explorers."""


@dataclass(frozen=True)
class Step:
    """A step of a list, with its options."""

    name: str
    function: Callable[..., Any]
    """The declared function or class."""
    columns: tuple[str, ...]
    """Columns that the step reads."""
    options: Mapping[str, Any]
    weight: float = 1.0
    """Weight in the reward."""
    limits: Limits | None = None
    """Limits of an asynchronous step; None for any other."""
    call: Callable[..., Any] | None = None
    """Function that is called with the columns; None until the step is prepared."""
    files: Mapping[Path, str | None] = field(default_factory=dict)
    """SHA-256 of each file that the results depend on, at load time: the step's code, the user's modules that
    it imports, then files named by its options. None for a missing file."""
    model_digest: str | None = None
    """Digest of the model that the step uses; None without a model or before it is known."""

    @property
    def version(self) -> int:
        """Version of the step's code."""
        return int(getattr(self.function, "version", 1))

    @property
    def digest(self) -> str | None:
        """SHA-256 that identifies the step's code and inputs; None for code without a file.

        With one file it is that file's digest. With more files, or a model, it covers all their digests. If
        the class declares `files`, it covers the options too, such as the name of a judge."""
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
        """Maximum number of rows in one call; None: single rows, without lists."""
        size: int | None = getattr(self.function, "batch", None)
        return size

    @property
    def is_async(self) -> bool:
        """Whether the result must be awaited."""
        called: Any = self.function.__call__ if inspect.isclass(self.function) else self.function
        return inspect.iscoroutinefunction(called)

    def __call__(self, columns: Mapping[str, Any]) -> Any:
        """Call the step with the columns of a row, or with lists of the columns of several rows."""
        assert self.call is not None, f"{self.name} is not ready"
        return self.call(**{name: columns[name] for name in self.columns})

    def check(self, model: ModelConfig) -> None:
        """Find mistakes that the signature does not show, before the run is created.

        Args:
            model: The run's starting model.

        Raises:
            ConfigError: if preparing the step would fail.
        """
        if (check := getattr(self.function, "check", None)) is not None:
            check(model, **self.options)

    def prepared(self, context: Context) -> "Step":
        """Return the step, ready to be called.

        Raises:
            ConfigError: if preparing it fails, or one of its files has changed meanwhile.
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
        """Return the step with the digest of its current model, without loading the model.

        Raises:
            ConfigError: if the model does not exist.
        """
        find = getattr(self.function, "model_digest", None)
        return self if find is None else replace(self, model_digest=find(context, **self.options))

    def record(self) -> dict[str, Any]:
        """Return what is stored about the step."""
        return {
            "name": self.name,
            "version": self.version,
            "digest": self.digest,
            "weight": self.weight,
            "options": self._plain_options,
        }


def load(
    name: str,
    kind: str,
    known: Mapping[str, Callable[..., Any]],
    values: Mapping[str, Any],
    beside: Iterable[str] = (),
) -> Step:
    """Load a step with its options: a built-in step, or the user's `path/to/file.py:name`.

    Args:
        kind: Kind of step, for messages.
        beside: Keys of the configuration that are not options.

    Raises:
        ConfigError: if the step does not exist, does not take these options, or it was written for another
            trainer.
    """
    function = user_functions.find(name, kind, known)
    title = f"{kind} '{name}'"
    declared = tuple(inspect.signature(function).parameters)
    _check_trainer(declared, title)
    if inspect.isclass(function):
        # The constructor takes the context and the options; the columns are parameters of __call__.
        options = signatures.options(function, title, values, declared[:1], beside)
        _, *reads = inspect.signature(function.__call__).parameters
        if unknown := [name_read for name_read in reads if name_read not in processing.columns()]:
            columns = hint(unknown[0], processing.columns())
            raise ConfigError(f"{title}: there is no column '{unknown[0]}'; {columns}.")
        return Step(name, function, tuple(reads), options, files=_files(function, options))
    options = signatures.options(function, title, values, processing.columns(), beside)
    reads = [column for column in declared if column in processing.columns()]
    return Step(
        name, function, tuple(reads), options, call=partial(function, **options), files=_files(function, {})
    )


def digest_of(file: Path | None) -> str | None:
    """Return the current SHA-256 of a file in hexadecimal; None if the file does not exist."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() if file is not None else None
    except OSError:
        return None


def _files(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[Path, str | None]:
    """Return the files that the results depend on. The step's version covers modules of this package."""
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
                f"{title} has the signature of a reward function for {trainer}. Here a function scores one "
                "response and returns one number: def reward(response, task, **options) -> float, where task "
                "has the columns of the imported task, such as task['answer']."
            )
