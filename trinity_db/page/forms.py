"""Form fields, and parsing of their values from a link.

Forms are plain HTML: they work by keyboard, and their fields become the link.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from trinity_db.errors import ConfigError
from trinity_db.page import layout
from trinity_db.page.elements import element

MAX_VERSION = 2**31 - 1


def choice(
    name: str, label: str, values: Sequence[str] | Mapping[str, str], chosen: str, none: str = "any"
) -> None:
    """Add a select field: values, or values with their labels.

    Args:
        chosen: selected value, shown even if it is not among the values.
        none: label for no selection.
    """
    words = dict(values) if isinstance(values, Mapping) else {value: value for value in values}
    shown = {"": none} | ({} if chosen in ("", *words) else {chosen: chosen}) | words
    with element("label", label), element("select", name=name, aria_label=label):
        for value, word in shown.items():
            option = element("option", word, value=value)
            if value == chosen:
                option.props["selected"] = True


def field(name: str, label: str, kind: str, parameters: Mapping[str, str], classes: str = "") -> None:
    """Add a text field."""
    with element("label", label, classes):
        element("input", name=name, type=kind, value=parameters.get(name, ""), autocomplete="off")


def explained_field(name: str, text: str, value: str) -> None:
    """Add a text field with its name above and an explanation below."""
    with element("div"):
        with element("label", name):
            field = element("input", name=name, autocomplete="off", aria_describedby=f"about-{name}")
        # An attribute: Vue sets a property again, overwriting what was typed, whenever the page updates.
        field.props["^value"] = value
        element("p", text, "muted", id_=f"about-{name}")


def explained_choice(name: str, text: str, values: Sequence[str], chosen: str) -> None:
    """Add a select field with its name above and an explanation below."""
    with element("div"):
        with element("label", name), element("select", name=name, aria_describedby=f"about-{name}"):
            for value in dict.fromkeys([chosen, *values]):
                option = element("option", value, value=value)
                if value == chosen:
                    option.props["selected"] = True
        element("p", text, "muted", id_=f"about-{name}")


def hidden(name: str, value: str) -> None:
    """Add a hidden field, which keeps a value of the link."""
    element("input", name=name, type="hidden", value=value)


def values(
    kind: type, readers: Mapping[str, Callable[[str], Any]], parameters: Mapping[str, str]
) -> dict[str, Any]:
    """Parse a link into the fields of a dataclass; a field without a parser is text.

    Raises:
        ConfigError: if a value is invalid; the message names valid ones.
    """
    return {
        field.name: readers.get(field.name, layout.text)(parameters[field.name].strip())
        for field in fields(kind)
        if parameters.get(field.name, "").strip()
    }


def whole(noun: str, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers.

    Raises:
        ConfigError: by the parser, if the text is not a whole number.
    """

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
            raise ConfigError(f"A {noun} is a whole number, not '{text[:40]}'.")
        return int(text)

    return read


def real(noun: str) -> Callable[[str], float]:
    """Return a parser of numbers.

    Raises:
        ConfigError: by the parser, if the text is not a number.
    """

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ConfigError(f"A {noun} is a number, not '{text[:40]}'.")
        return value

    return read


def one_of(noun: str, values: Sequence[str]) -> Callable[[str], str]:
    """Return a parser that accepts only these words.

    Raises:
        ConfigError: by the parser, if the text is another word.
    """

    def read(text: str) -> str:
        if text not in values:
            raise ConfigError(f"'{text[:40]}' is not a {noun}; use one of {', '.join(values)}.")
        return text

    return read
