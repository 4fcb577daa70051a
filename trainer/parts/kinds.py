"""The parts that algorithms are composed of: found by kind and name, or in a user's own file.

A part is a function. Its positional parameters name what it reads, columns of `columns.py` for most
kinds, so its signature says what it needs; its keyword-only parameters are its options. `built_in.py` makes
the section of a configuration from them. What else a composition must know of a part stands in
`properties.py`.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Annotated, Any, Union

from pydantic import Field, create_model
from pydantic.errors import PydanticUndefinedAnnotation

from trinity_db import functions, signatures
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.settings import Settings, validate
from trinity_db.trainer.parts.columns import COLUMNS
from trinity_db.trainer.parts.options import (
    Own,
    OwnCorrection,
    OwnDistillation,
    OwnDivergence,
    OwnPairLoss,
    OwnValues,
)
from trinity_db.trainer.parts.options import (
    Part as Section,
)
from trinity_db.trainer.parts.properties import Properties, properties_of


@dataclass(frozen=True)
class Kind:
    """A kind of part."""

    file: str
    """The module where they are, each under its name."""
    shaped_like: str | None
    """The input whose shape the result has; None: the result is one number."""
    made: tuple[str, ...] = ()
    """Inputs that the composition makes for this kind alone, beside the columns."""
    own: type[Own] = Own
    """The section of a user's own part."""

    @property
    def module(self) -> ModuleType:
        return importlib.import_module(f"{__package__}.{self.file}")

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The built-in parts, as they stand in the module."""
        module = self.module
        return {
            name: one
            for name, one in vars(module).items()
            if hasattr(one, "options") and one.__module__ == module.__name__
        }

    @property
    def sections(self) -> Any:
        """The sections that may choose a part of this kind, as a union that pydantic tells apart by name."""
        options = tuple(one.options for one in self.functions.values())  # type: ignore[attr-defined]
        return Annotated[Union[(*options, self.own)], Field(discriminator="name")]


KINDS = {
    "advantage": Kind("advantages", "rewards"),
    "policy loss": Kind("policy_losses", "mask"),
    "correction": Kind("corrections", "mask", own=OwnCorrection),
    "kl": Kind("kl", "mask", own=OwnDivergence),
    "value": Kind("values", "mask", ("token_rewards",), OwnValues),
    "distillation": Kind("distillation", "mask", own=OwnDistillation),
    "aggregation": Kind("aggregation", None, ("values", "mask", "totals")),
    "preference loss": Kind(
        "preference_losses",
        "chosen",
        ("chosen", "rejected", "chosen_reference", "rejected_reference", "chosen_length", "rejected_length"),
        OwnPairLoss,
    ),
    "label loss": Kind(
        "label_losses",
        "response",
        ("response", "response_reference", "response_length", "desirable", "divergence"),
    ),
    "supervised loss": Kind("supervised_losses", "mask"),
}


def readable(kind: str) -> tuple[str, ...]:
    """The names that parts of a kind may read."""
    columns = tuple(name for name, column in COLUMNS.items() if kind in column.readers)
    return (*KINDS[kind].made, *columns)


@dataclass(frozen=True)
class Part:
    """A function with its options, to be called with everything there is to read."""

    kind: str
    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any]
    is_own: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that it reads."""
        return tuple(positional(self.function))

    @property
    def properties(self) -> Properties:
        """The facts about it that a composition needs beyond its signature."""
        return properties_of(self.function)

    def __call__(self, columns: Mapping[str, Any]) -> Any:
        """Call the function with the columns that it reads, and return its result.

        Raises:
            TrinityError: the function is a user's own, and failed or returned something else.
        """
        arguments = [columns[name] for name in self.columns]
        if not self.is_own:
            return self.function(*arguments, **self.options)
        try:
            result = self.function(*arguments, **self.options)
        except Exception as error:
            raise TrinityError(f"{self} raised {functions.describe_error(error)}") from error
        self._check(result, columns)
        return result

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'"

    def _check(self, result: Any, columns: Mapping[str, Any]) -> None:
        like = KINDS[self.kind].shaped_like
        expected = tuple(columns[like].shape) if like else ()
        what = f"an array of shape {list(expected)}"
        if self.kind == "policy loss":
            what = f"a dict with 'loss', {what}"
            result = result.get("loss") if isinstance(result, dict) else None
        if tuple(getattr(result, "shape", (-1,))) != expected:
            raise TrinityError(f"{self}: it must return {what}.")


def section(kind: str, name: str) -> type[Any]:
    """The class of the sections that choose a built-in part; see `built_in.py`."""
    made: type[Any] = KINDS[kind].functions[name].options  # type: ignore[attr-defined]
    return made


def chosen(kind: str, name: str, **options: Any) -> Any:
    """The section that chooses a built-in part, with these options."""
    return section(kind, name)(**options)


def part(kind: str, options: Section) -> Part:
    """The part that these options belong to.

    Raises:
        ConfigError: it is a user's own, and there is none, or it reads or takes something else.
    """
    if isinstance(options, Own):
        function: Callable[..., Any] = functions.find(options.function, kind, {})
        return _own(kind, options.function, function, options.options)
    function = KINDS[kind].functions[options.name]
    values = {one.name: getattr(options, one.name) for one in signatures.keyword_only(function)}
    return Part(kind, options.name, function, values, is_own=False)


def needs(parts: Iterable[Part | None]) -> dict[str, str]:
    """The columns that parts read, each with the first that does."""
    readers: dict[str, str] = {}
    for one in parts:
        for column in one.columns if one else ():
            readers.setdefault(column, str(one))
    return readers


@cache
def positional(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters that stand for what a part reads."""
    parameters = inspect.signature(function).parameters
    return {name: one for name, one in parameters.items() if one.kind is not one.KEYWORD_ONLY}


def _own(kind: str, name: str, function: Callable[..., Any], given: Mapping[str, Any]) -> Part:
    known = readable(kind)
    for one in positional(function).values():
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            raise ConfigError(f"{kind} '{name}': it takes {one}; name its options, after a *.")
    unknown = [column for column in positional(function) if column not in known]
    if unknown:
        raise ConfigError(
            f"{kind} '{name}': it reads '{unknown[0]}', and a {kind} can read {', '.join(known)}; "
            "make an option of it with a * before it."
        )
    fields: dict[str, Any] = {
        one.name: (
            Any if one.annotation is one.empty else one.annotation,
            ... if one.default is one.empty else one.default,
        )
        for one in signatures.keyword_only(function)
    }
    # Types may stand there as text, which pydantic looks up in the function's module: those of options alone,
    # so that what is read may have types that are imported for type checkers only.
    section = create_model("Options", __base__=Settings, __module__=function.__module__, **fields)
    try:
        section.model_rebuild()
    except PydanticUndefinedAnnotation as error:
        raise ConfigError(
            f"{kind} '{name}': '{error.name}', in the type of an option, is not there when it runs; "
            "import it outside of TYPE_CHECKING."
        ) from error
    options = validate(section, dict(given), f"{kind} '{name}'")
    return Part(kind, name, function, {key: getattr(options, key) for key in fields}, is_own=True)
