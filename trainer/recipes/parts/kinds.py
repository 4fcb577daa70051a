"""The parts that algorithms are composed of, found by kind and name, or in a user's own file.

A part is a function. Its positional parameters name its inputs, which are columns of `columns.py` for most
kinds, so that the signature declares its needs; its keyword-only parameters are its options. `built_in.py`
derives the section of a configuration from them. `properties.py` has further facts that a composition needs.
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

from trinity_db.config import signatures, user_functions
from trinity_db.config.base import Settings, validate
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.trainer.recipes.parts.columns import COLUMNS
from trinity_db.trainer.recipes.parts.options import (
    Own,
    OwnCorrection,
    OwnDistillation,
    OwnDivergence,
    OwnPairLoss,
    OwnValues,
)
from trinity_db.trainer.recipes.parts.options import PartChoice as Section
from trinity_db.trainer.recipes.parts.properties import Properties, properties_of


@dataclass(frozen=True)
class Kind:
    """A kind of part."""

    file: str
    """Module of the built-in parts."""
    shaped_like: str | None
    """Input with the shape of the result; None: the result is one number."""
    made: tuple[str, ...] = ()
    """Inputs that the composition computes only for this kind, in addition to columns."""
    own: type[Own] = Own
    """Section of a user's own part."""

    @property
    def module(self) -> ModuleType:
        return importlib.import_module(f"{__package__}.{self.file}")

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """Built-in parts, in the order of the module."""
        module = self.module
        return {
            name: function
            for name, function in vars(module).items()
            if hasattr(function, "options") and function.__module__ == module.__name__
        }

    @property
    def sections(self) -> Any:
        """Sections of all parts of this kind, as a union discriminated by name."""
        options = tuple(part_function.options for part_function in self.functions.values())  # type: ignore[attr-defined]
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
    """Return the names that parts of a kind may read."""
    columns = tuple(name for name, column in COLUMNS.items() if kind in column.readers)
    return (*KINDS[kind].made, *columns)


@dataclass(frozen=True)
class Part:
    """A function with its options, called with all available inputs."""

    kind: str
    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any]
    is_own: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of its inputs."""
        return tuple(positional(self.function))

    @property
    def properties(self) -> Properties:
        """Facts about the function that a composition needs beyond its signature."""
        return properties_of(self.function)

    def __call__(self, columns: Mapping[str, Any]) -> Any:
        """Call the function with its inputs, and return its result.

        Raises:
            TrinityError: if a user's own function failed or returned something else.
        """
        arguments = [columns[name] for name in self.columns]
        if not self.is_own:
            return self.function(*arguments, **self.options)
        try:
            result = self.function(*arguments, **self.options)
        except Exception as error:
            raise TrinityError(f"{self} raised {user_functions.describe_error(error)}") from error
        self._check(result, columns)
        return result

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'"

    def _check(self, result: Any, columns: Mapping[str, Any]) -> None:
        like = KINDS[self.kind].shaped_like
        expected = tuple(columns[like].shape) if like else ()
        expected_result = f"an array of shape {list(expected)}"
        if self.kind == "policy loss":
            expected_result = f"a dict with 'loss', {expected_result}"
            result = result.get("loss") if isinstance(result, dict) else None
        if tuple(getattr(result, "shape", (-1,))) != expected:
            raise TrinityError(f"{self}: it must return {expected_result}.")


def section(kind: str, name: str) -> type[Any]:
    """Return the section class of a built-in part; see `built_in.py`."""
    made: type[Any] = KINDS[kind].functions[name].options  # type: ignore[attr-defined]
    return made


def chosen(kind: str, name: str, **options: Any) -> Any:
    """Return the section of a built-in part, with these options."""
    return section(kind, name)(**options)


def part(kind: str, options: Section) -> Part:
    """Return the part with these options.

    Raises:
        ConfigError: if a user's own part does not exist, or its signature is invalid.
    """
    if isinstance(options, Own):
        function: Callable[..., Any] = user_functions.find(options.function, kind, {})
        return _own(kind, options.function, function, options.options)
    function = KINDS[kind].functions[options.name]
    values = {
        parameter.name: getattr(options, parameter.name) for parameter in signatures.keyword_only(function)
    }
    return Part(kind, options.name, function, values, is_own=False)


def needs(parts: Iterable[Part | None]) -> dict[str, str]:
    """Return the columns that parts read, each with its first reader."""
    readers: dict[str, str] = {}
    for part in parts:
        for column in part.columns if part else ():
            readers.setdefault(column, str(part))
    return readers


@cache
def positional(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that name a part's inputs."""
    parameters = inspect.signature(function).parameters
    return {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind is not parameter.KEYWORD_ONLY
    }


def _own(kind: str, name: str, function: Callable[..., Any], values: Mapping[str, Any]) -> Part:
    known = readable(kind)
    for parameter in positional(function).values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            raise ConfigError(f"{kind} '{name}': it takes {parameter}; name its options, after a *.")
    unknown = [column for column in positional(function) if column not in known]
    if unknown:
        raise ConfigError(
            f"{kind} '{name}': it reads '{unknown[0]}', but a {kind} can read {', '.join(known)}; "
            "put a * before it to make it an option."
        )
    fields: dict[str, Any] = {
        parameter.name: (
            Any if parameter.annotation is parameter.empty else parameter.annotation,
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in signatures.keyword_only(function)
    }
    # Type annotations may be strings, which pydantic resolves in the function's module. Only those of options
    # are resolved, so that types of inputs may be imported for type checkers only.
    section = create_model("Options", __base__=Settings, __module__=function.__module__, **fields)
    try:
        section.model_rebuild()
    except PydanticUndefinedAnnotation as error:
        raise ConfigError(
            f"{kind} '{name}': '{error.name}', in the type of an option, is not defined at run time; "
            "import it outside of TYPE_CHECKING."
        ) from error
    options = validate(section, dict(values), f"{kind} '{name}'")
    return Part(kind, name, function, {key: getattr(options, key) for key in fields}, is_own=True)
