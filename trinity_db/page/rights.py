"""Rights of visitors: three, each of which includes the ones before it.

`Access` identifies the visitor by the browser's session, and stores a function in the scope of each request.
Pages check `may(Right.LABEL)` when they are built, to offer only what is allowed, and again on each action:
a right may be withdrawn while a page is open, and an event may be sent without a button.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from nicegui import ui

SCOPE = "trinity_db.visitor"
"""Key in a request's scope of a function that returns the current visitor."""


class Right(IntEnum):
    """Right of a visitor."""

    LOOK = 1
    """Read all that the page shows."""
    LABEL = 2
    """Also give verdicts, under the visitor's name."""
    MANAGE = 3
    """Also start, stop and extend runs."""

    @property
    def word(self) -> str:
        """Name of the right in files and on pages."""
        return self.name.lower()


@dataclass(frozen=True)
class Visitor:
    """The person who views the page from one browser."""

    name: str | None
    """Name of the person; None if the page was started without one: such a visitor only looks."""
    right: Right | None
    """Right of the visitor; None after it was withdrawn."""

    def may(self, right: Right) -> bool:
        """Whether the visitor has a right."""
        return self.right is not None and self.right >= right


GONE = Visitor(None, None)


def visitor() -> Visitor:
    """Visitor who opened the page that is being built, or whose event is being handled."""
    now: Callable[[], Visitor] = ui.context.client.request.scope[SCOPE]
    return now()


def may(right: Right) -> bool:
    """Whether the current visitor has a right."""
    return visitor().may(right)
