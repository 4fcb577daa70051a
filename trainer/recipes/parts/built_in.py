"""Marks functions as parts, and derives the section with their options in the configuration.

The keyword-only parameters of a part are its options. The signature has their types, limits and defaults. The
docstring has their descriptions under `Args:`, and its first paragraph describes the part. Nothing else
declares them. Configurations are read without torch, so the files of parts import torch only inside
functions.
"""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, get_type_hints

from pydantic import Field, create_model, model_validator

from trinity_db.config import signatures
from trinity_db.trainer.recipes.parts.options import PartChoice

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def built_in(
    beside: type[PartChoice] = PartChoice, *, check: Callable[[Any], None] | None = None
) -> Callable[[FunctionT], FunctionT]:
    """Mark a part. The function's `options` is then the class of its section.

    Args:
        beside: Section class to extend, with options that the composition reads.
        check: Raises ValueError if the options of a section are inconsistent.
    """

    def mark(function: FunctionT) -> FunctionT:
        function.options = _section(function, beside, check)  # type: ignore[attr-defined]
        return function

    return mark


def _section(
    function: Callable[..., Any], beside: type[PartChoice], check: Callable[[Any], None] | None
) -> type[PartChoice]:
    name = function.__name__
    declared = {parameter.name: parameter for parameter in signatures.keyword_only(function)}
    # Annotations are strings; those of columns, which are torch's types, are not resolved.
    texts = SimpleNamespace(
        __annotations__={key: parameter.annotation for key, parameter in declared.items()}
    )
    types = get_type_hints(texts, vars(inspect.getmodule(function)), include_extras=True)
    texts_of_options = signatures.texts(function)
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    fields |= {
        key: (
            types[key],
            Field(
                ... if parameter.default is parameter.empty else parameter.default,
                description=texts_of_options[key],
            ),
        )
        for key, parameter in declared.items()
    }
    made = create_model(
        "".join(word.capitalize() for word in name.split("_")),
        __base__=beside,
        __cls_kwargs__={"use_attribute_docstrings": False},  # reading the source would take 20 ms each
        __module__=function.__module__,
        __doc__=signatures.summary(function),
        __validators__={"options_go_together": _validator(check)} if check else None,
        **fields,
    )
    made.__qualname__ = f"{name}.options"  # importable path, for pickling between ranks
    return made


def _validator(check: Callable[[Any], None]) -> Any:
    def options_go_together(section: PartChoice) -> PartChoice:
        check(section)
        return section

    return model_validator(mode="after")(options_go_together)
