"""Marks the functions that a configuration may name, and makes of each the section that holds its options.

The keyword-only parameters of a part are its options. The signature has their types, limits and defaults. The
docstring has their texts under `Args:`, and its first paragraph says what the part is. Nothing else declares
them. A configuration is read without torch, so the files of parts import torch only inside functions.
"""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, get_type_hints

from pydantic import Field, create_model, model_validator

from trinity_db import signatures
from trinity_db.trainer.parts.options import Part

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def built_in(
    beside: type[Part] = Part, *, check: Callable[[Any], None] | None = None
) -> Callable[[FunctionT], FunctionT]:
    """Mark a part. The function's `options` is then the class of its section.

    Args:
        beside: What a composition reads of the section beside the function's own options.
        check: Raises ValueError where the options of a section do not go together.
    """

    def mark(function: FunctionT) -> FunctionT:
        function.options = _section(function, beside, check)  # type: ignore[attr-defined]
        return function

    return mark


def _section(
    function: Callable[..., Any], beside: type[Part], check: Callable[[Any], None] | None
) -> type[Part]:
    name = function.__name__
    declared = {one.name: one for one in signatures.keyword_only(function)}
    # Types stand there as text; those of columns, which are torch's, are not looked up.
    texts = SimpleNamespace(__annotations__={key: one.annotation for key, one in declared.items()})
    types = get_type_hints(texts, vars(inspect.getmodule(function)), include_extras=True)
    said = signatures.texts(function)
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    fields |= {
        key: (types[key], Field(... if one.default is one.empty else one.default, description=said[key]))
        for key, one in declared.items()
    }
    made = create_model(
        "".join(word.capitalize() for word in name.split("_")),
        __base__=beside,
        __cls_kwargs__={"use_attribute_docstrings": False},  # looked up in the source, for 20 ms each
        __module__=function.__module__,
        __doc__=signatures.summary(function),
        __validators__={"options_go_together": _validator(check)} if check else None,
        **fields,
    )
    made.__qualname__ = f"{name}.options"  # where it is found when a rank sends it to another
    return made


def _validator(check: Callable[[Any], None]) -> Any:
    def options_go_together(section: Part) -> Part:
        check(section)
        return section

    return model_validator(mode="after")(options_go_together)
