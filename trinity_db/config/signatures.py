"""Options that a function's signature declares, with their types and defaults.

The other parameters name columns, which the calling role supplies. So functions need no separate class of
options, and a user's own function declares its options in the same way.
"""

import inspect
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from pydantic import create_model
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic.fields import FieldInfo

from trinity_db.config.base import Settings, hint, validate
from trinity_db.errors import ConfigError


def options(
    function: Callable[..., Any],
    name: str,
    values: Mapping[str, Any],
    columns: Collection[str],
    beside: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the options of a function: the given ones, converted to their types, and its defaults.

    Args:
        name: What messages call the function.
        columns: Parameters that are columns.
        beside: Sibling keys of the options in the configuration, to suggest for a mistyped one.

    Raises:
        ConfigError: if an option is unknown, missing or of another type, or a parameter is neither an option
            nor a column.
    """
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise ConfigError(f"{name}: it takes '{parameter}' by position; every parameter needs a name.")
    declared = [
        parameter
        for parameter in parameters
        if parameter.name not in columns and parameter.kind is not parameter.VAR_KEYWORD
    ]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    if taken := [key for key in values if key in columns]:
        raise ConfigError(f"{name}: '{taken[0]}' is a column, which it is given; it cannot be an option.")
    known = [parameter.name for parameter in declared]
    if not takes_any and (unknown := [key for key in values if key not in known]):
        raise ConfigError(f"{name}: unknown key '{unknown[0]}'; {hint(unknown[0], [*known, *beside])}")
    for parameter in declared:
        if parameter.default is parameter.empty and parameter.name not in values:
            raise ConfigError(f"{name}: {_missing(parameter, columns)}")
    section_of = _section if isinstance(function, Hashable) else _section.__wrapped__
    try:
        section = section_of(function, tuple(known), takes_any)
    except PydanticUndefinedAnnotation as error:
        raise ConfigError(
            f"{name}: '{error.name}', in the type of an option, is not defined at run time; import it "
            f"outside "
            "of TYPE_CHECKING."
        ) from error
    section_values = validate(section, dict(values), name)
    return {
        key: getattr(section_values, key)
        for key in (*section.model_fields, *(section_values.model_extra or {}))
    }


def declared(function: Callable[..., Any], columns: Collection[str]) -> dict[str, FieldInfo]:
    """Return the options of a function as fields, with their types, limits and defaults."""
    return {
        parameter.name: FieldInfo.from_annotated_attribute(
            parameter.annotation, ... if parameter.default is parameter.empty else parameter.default
        )
        for parameter in keyword_only(function)
        if parameter.name not in columns
    }


def keyword_only(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that can be passed by name."""
    return [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]


def summary(function: Callable[..., Any]) -> str:
    """Return the first paragraph of the docstring."""
    return (inspect.getdoc(function) or "").partition("\n\n")[0]


def texts(function: Callable[..., Any]) -> dict[str, str]:
    """Return the texts of the parameters under `Args:` in the docstring."""
    return arguments((inspect.getdoc(function) or "").partition("\nArgs:\n")[2].partition("\n\n")[0])


def arguments(paragraph: str) -> dict[str, str]:
    """Parse the arguments section of a docstring into a text per argument."""
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", paragraph, re.M)
    return {name: " ".join(text.split()) for name, text in entries}


class _Options(Settings, arbitrary_types_allowed=True, protected_namespaces=()):
    """Options that a signature declares."""


class _AnyOptions(_Options, extra="allow"):
    """Options of a function that also accepts others."""


# Cached: a configuration is read several times, and pydantic takes milliseconds per class.
@lru_cache(maxsize=512)
def _section(function: Callable[..., Any], names: tuple[str, ...], takes_any: bool) -> type[_Options]:
    """Build the class whose fields are these parameters of a function."""
    parameters = inspect.signature(function).parameters
    base: type[_Options] = _AnyOptions if takes_any else _Options
    section = create_model(
        "Options",
        __base__=base,
        __module__=function.__module__,
        **{name: _field(parameters[name]) for name in names},  # type: ignore[call-overload]
    )
    section.model_rebuild()
    return section


def _missing(parameter: inspect.Parameter, columns: Collection[str]) -> str:
    if parameter.kind is parameter.KEYWORD_ONLY:
        return f"its option '{parameter.name}' has no default; set it next to the name."
    name = parameter.name
    return f"there is no column '{name}'; {hint(name, columns)}. If it is an option, set it next to the name."


def _field(parameter: inspect.Parameter) -> tuple[Any, Any]:
    return (
        Any if parameter.annotation is parameter.empty else parameter.annotation,
        ... if parameter.default is parameter.empty else parameter.default,
    )
