"""What a visitor may do: three rights, each of which includes those before it.

`Access` knows by the session of a browser which visitor it is, and says so in the scope of each request.
Pages ask `may(Right.LABEL)` when they are built, to offer only what is allowed, and again when they do it:
a right may end while a page is open, and an event may come from elsewhere than a button.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from nicegui import ui

SCOPE = "trinity_db.visitor"
"""The key of a request's scope under which stands a function that says whose it is, as things are now."""


class Right(IntEnum):
    """What a visitor may do."""

    LOOK = 1
    """Read all that the page shows."""
    LABEL = 2
    """Also give verdicts, under the visitor's name."""
    MANAGE = 3
    """Also start, stop and prolong runs."""

    @property
    def word(self) -> str:
        """As people write it."""
        return self.name.lower()


@dataclass(frozen=True)
class Visitor:
    """Who looks at the page from one browser."""

    name: str | None
    """None: the page was started for no one by name; such a visitor looks."""
    right: Right | None
    """None: there was one, until it was taken away."""

    def may(self, right: Right) -> bool:
        """Whether the visitor has a right."""
        return self.right is not None and self.right >= right


GONE = Visitor(None, None)


def visitor() -> Visitor:
    """Who opened the page that is built now, or whose event is handled now."""
    now: Callable[[], Visitor] = ui.context.client.request.scope[SCOPE]
    return now()


def may(right: Right) -> bool:
    """Whether this visitor has a right now."""
    return visitor().may(right)
