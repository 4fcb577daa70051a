"""Fields of forms, and what a link says in them.

A form is plain: it works by keyboard, and its fields become the link.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from trinity_db.errors import ConfigError
from trinity_db.page import layout
from trinity_db.page.elements import said

MAX_VERSION = 2**31 - 1


def choice(
    name: str, label: str, values: Sequence[str] | Mapping[str, str], chosen: str, none: str = "any"
) -> None:
    """A list to choose from: values, or values with their words.

    Args:
        chosen: stands in it though it is none of the values.
        none: the word for no choice.
    """
    words = dict(values) if isinstance(values, Mapping) else {value: value for value in values}
    shown = {"": none} | ({} if chosen in ("", *words) else {chosen: chosen}) | words
    with said("label", label), said("select", name=name, aria_label=label):
        for value, word in shown.items():
            option = said("option", word, value=value)
            if value == chosen:
                option.props["selected"] = True


def field(name: str, label: str, kind: str, given: Mapping[str, str], classes: str = "") -> None:
    """A field to type into."""
    with said("label", label, classes):
        said("input", name=name, type=kind, value=given.get(name, ""), autocomplete="off")


def explained_field(name: str, text: str, value: str) -> None:
    """A field with its name above it, and below it what it means."""
    with said("div"):
        with said("label", name):
            field = said("input", name=name, autocomplete="off", aria_describedby=f"about-{name}")
        # An attribute: Vue sets a property again, over what was typed, whenever the page shows something new.
        field.props["^value"] = value
        said("p", text, "muted", id_=f"about-{name}")


def explained_choice(name: str, text: str, values: Sequence[str], chosen: str) -> None:
    """A list to choose from, as `explained_field`."""
    with said("div"):
        with said("label", name), said("select", name=name, aria_describedby=f"about-{name}"):
            for value in dict.fromkeys([chosen, *values]):
                option = said("option", value, value=value)
                if value == chosen:
                    option.props["selected"] = True
        said("p", text, "muted", id_=f"about-{name}")


def hidden(name: str, value: str) -> None:
    """What a form keeps of the link without showing it."""
    said("input", name=name, type="hidden", value=value)


def values(
    kind: type, readers: Mapping[str, Callable[[str], Any]], given: Mapping[str, str]
) -> dict[str, Any]:
    """What a link says of the fields of a dataclass; a field without a reader is text.

    Raises:
        ConfigError: a value is none of its kind; with what may stand there.
    """
    return {
        one.name: readers.get(one.name, layout.text)(given[one.name].strip())
        for one in fields(kind)
        if given.get(one.name, "").strip()
    }


def whole(what: str, most: int) -> Callable[[str], int]:
    """Reads a whole number.

    Raises:
        ConfigError: it is none; the reader does.
    """

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
            raise ConfigError(f"A {what} is a whole number, and '{text[:40]}' is none.")
        return int(text)

    return read


def real(what: str) -> Callable[[str], float]:
    """Reads a number.

    Raises:
        ConfigError: it is none; the reader does.
    """

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ConfigError(f"A {what} is a number, and '{text[:40]}' is none.")
        return value

    return read


def one_of(what: str, values: Sequence[str]) -> Callable[[str], str]:
    """Reads one of these words.

    Raises:
        ConfigError: it is none; the reader does.
    """

    def read(text: str) -> str:
        if text not in values:
            raise ConfigError(f"'{text[:40]}' is no {what}; there are {', '.join(values)}.")
        return text

    return read
