"""What a function's signature declares: its options, with their types and defaults.

The other parameters name columns, which the role that calls it fills in. So no class of options stands beside
a function, and a user's own function says in the same way what it takes.
"""

import inspect
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from pydantic import create_model
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic.fields import FieldInfo

from trinity_db.errors import ConfigError
from trinity_db.settings import Settings, hint, validate


def options(
    function: Callable[..., Any],
    name: str,
    given: Mapping[str, Any],
    columns: Collection[str],
    beside: Iterable[str] = (),
) -> dict[str, Any]:
    """The options of a function: those given, as its types want them, and its defaults.

    Args:
        name: What messages call the function.
        columns: Parameters that are no options.
        beside: Keys of the configuration that stand beside the options, which a mistyped one may mean.

    Raises:
        ConfigError: an option is unknown, missing or of another type, or a parameter is neither an option
            nor a column.
    """
    parameters = inspect.signature(function).parameters.values()
    for one in parameters:
        if one.kind in (one.VAR_POSITIONAL, one.POSITIONAL_ONLY):
            raise ConfigError(f"{name}: it takes '{one}' by its place; every parameter needs its name.")
    declared = [one for one in parameters if one.name not in columns and one.kind is not one.VAR_KEYWORD]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    if taken := [key for key in given if key in columns]:
        raise ConfigError(f"{name}: '{taken[0]}' is a column, which it is given; it cannot be an option.")
    known = [one.name for one in declared]
    if not takes_any and (unknown := [key for key in given if key not in known]):
        raise ConfigError(f"{name}: unknown key '{unknown[0]}'; {hint(unknown[0], [*known, *beside])}")
    for one in declared:
        if one.default is one.empty and one.name not in given:
            raise ConfigError(f"{name}: {_missing(one, columns)}")
    section_of = _section if isinstance(function, Hashable) else _section.__wrapped__
    try:
        section = section_of(function, tuple(known), takes_any)
    except PydanticUndefinedAnnotation as error:
        raise ConfigError(
            f"{name}: '{error.name}', in the type of an option, is not there when it runs; import it outside "
            "of TYPE_CHECKING."
        ) from error
    found = validate(section, dict(given), name)
    return {key: getattr(found, key) for key in (*section.model_fields, *(found.model_extra or {}))}


def declared(function: Callable[..., Any], columns: Collection[str]) -> dict[str, FieldInfo]:
    """The options of a function as fields, with their types, limits and defaults."""
    return {
        one.name: FieldInfo.from_annotated_attribute(
            one.annotation, ... if one.default is one.empty else one.default
        )
        for one in keyword_only(function)
        if one.name not in columns
    }


def keyword_only(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters that callers give by name."""
    return [one for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]


def summary(function: Callable[..., Any]) -> str:
    """The first paragraph of the docstring."""
    return (inspect.getdoc(function) or "").partition("\n\n")[0]


def texts(function: Callable[..., Any]) -> dict[str, str]:
    """What the docstring says of each parameter under `Args:`."""
    return arguments((inspect.getdoc(function) or "").partition("\nArgs:\n")[2].partition("\n\n")[0])


def arguments(paragraph: str) -> dict[str, str]:
    """What a docstring's paragraph of arguments says of each."""
    found = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", paragraph, re.M)
    return {name: " ".join(text.split()) for name, text in found}


class _Options(Settings, arbitrary_types_allowed=True, protected_namespaces=()):
    """Options that a signature declares."""


class _AnyOptions(_Options, extra="allow"):
    """Options of a function that takes others too."""


# A configuration is read several times, each time with all steps, and pydantic takes milliseconds per class.
@lru_cache(maxsize=512)
def _section(function: Callable[..., Any], names: tuple[str, ...], takes_any: bool) -> type[_Options]:
    """The class whose fields are these parameters of a function."""
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
        return f"its option '{parameter.name}' has no default; give it beside the name."
    name = parameter.name
    return f"there is no column '{name}'; {hint(name, columns)}. If it is an option, give it beside the name."


def _field(parameter: inspect.Parameter) -> tuple[Any, Any]:
    return (
        Any if parameter.annotation is parameter.empty else parameter.annotation,
        ... if parameter.default is parameter.empty else parameter.default,
    )
