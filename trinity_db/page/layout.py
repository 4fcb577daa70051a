"""Parts of every page: the head, notices, and refreshing from the store."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

import psycopg
from nicegui import ui

from trinity_db.errors import DatabaseUnavailable, NotFound, TrinityError
from trinity_db.page.answers import PAUSES, Answers
from trinity_db.page.elements import Cell, Pulse, element
from trinity_db.page.reader import Reader
from trinity_db.page.rights import Right, visitor
from trinity_db.postgres.connection import Database, first_line

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

REFRESH_SECONDS = 10.0  # most steps take longer; reload to refresh earlier
RESPONSE_SECONDS = 45.0  # a page runs a few statements of at most STATEMENT_SECONDS each
MAX_ID = 2**63 - 1
CHARACTERS = 20_000  # per text: enough to read, and it bounds the size of a page

STYLE = Path(__file__).with_name("style.css")
THEME = """
<script>
  const theme = localStorage.getItem("trinity-theme");
  if (theme) document.documentElement.dataset.theme = theme;
</script>
"""
THEMES = "Light or dark"
TOGGLE = """() => {
  const root = document.documentElement;
  const dark = getComputedStyle(root).colorScheme.startsWith("dark");
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("trinity-theme", root.dataset.theme);
}"""


def dress() -> None:
    """Add the style sheet and the person's theme to all pages."""
    ui.add_head_html(f"<style>{STYLE.read_text(encoding='utf-8')}</style>{THEME}", shared=True)


def frame(title: str, here: str = "") -> ui.element:
    """Create the head of a page, and the element for its content; `here` marks the current link."""
    ui.page_title(f"{title} · trinity-db")
    element("a", "Skip to the content", "skip", href="#content")
    with element("header"):
        element("a", "trinity-db", "brand", href="/")
        with element("nav", aria_label="Pages"):
            for name, target in (
                ("Runs", "/"),
                ("Experiences", "/experiences"),
                ("Verdicts", "/verdicts"),
                ("SQL", "/sql"),
                ("Doctor", "/doctor"),
            ):
                link = element("a", name, href=target)
                if name == here:
                    link.props["aria-current"] = "page"
        _tell_visitor()
        toggle = element("button", "◐", "quiet", type="button", title=THEMES, aria_label=THEMES)
        toggle.on("click", js_handler=TOGGLE)
    content = element("div", "", "page", id_="content", tabindex="-1")
    with content:
        element("h1", title)
    return content


def _tell_visitor() -> None:
    """Show the visitor's name and rights."""
    you = visitor()
    rights = [right.word for right in Right if you.may(right)]
    with element("span", "", "visitor", title=f"You may {', '.join(rights)}."):
        if you.name:
            element("span", you.name, "name")
            element("span", " · ")
        element("span", *rights[-1:])


def missing() -> None:
    """Show the 404 page."""
    ui.context.client.status_code = 404
    with frame("No such page"):
        element("p", "There is nothing at this address. The links above lead to existing pages.", "empty")


def heading(text: str, explained: str = "") -> None:
    """Add a section heading, with a line that explains the section."""
    element("h2", text)
    if explained:
        element("p", explained, "explained")


class Look(Generic[Result]):
    """One visitor's view of the store: it reads, shows, and reports errors."""

    def __init__(
        self,
        reader: Reader | Answers,
        read: Callable[[Database], Result],
        show: Callable[[Result], None],
        gone: Callable[[], None],
        *,
        follows: bool,
    ) -> None:
        self._reader, self._read, self._show, self._gone = reader, read, show, gone
        self._visitor = visitor()
        self._follows = follows
        """Whether the view refreshes periodically, or only until a read succeeds."""
        self._looks = False
        self._is_shown = False
        self._is_due = False
        self._rests_until = 0.0
        self._notice = element("p", "", "notice", role="alert")
        self._notice.set_visibility(False)
        Pulse(REFRESH_SECONDS, self._again)

    async def look(self) -> None:
        """Read and show, or report the error."""
        self._looks, begun = True, time.monotonic()
        try:
            result = await self.ask()
        except NotFound as error:
            self._is_shown = True
            self._follows = False
            self._gone()
            self._tell(f"{error} It may have been deleted.")
        except DatabaseUnavailable as error:
            self._is_shown = False
            self._tell(f"{error} This page retries every {REFRESH_SECONDS:.0f} seconds.")
        except TrinityError as error:
            self._tell(str(error))
        except psycopg.Error as error:
            logger.warning("A page could not be read: %s", first_line(error))
            self._tell(f"The database refuses: {first_line(error)}")
        else:
            self._is_shown = True
            self._notice.set_visibility(False)
            self._show(result)
        finally:
            self._looks = False
            self._rests_until = time.monotonic() + PAUSES * (time.monotonic() - begun)

    async def ask(self) -> Result:
        """Read what is shown, with one or more queries."""
        return await self._reader.ask(self._read, self._visitor)

    def soon(self) -> None:
        """Refresh after the pause, because something changed; several calls cause one refresh."""
        if not self._is_due:
            self._is_due = True
            ui.timer(max(0.0, self._rests_until - time.monotonic()), self._come, once=True)

    async def _come(self) -> None:
        self._is_due = False
        await self.look()

    def _tell(self, text: str) -> None:
        self._notice.text = text
        self._notice.set_visibility(True)

    async def _again(self) -> None:
        rests = self._looks or (self._is_shown and time.monotonic() < self._rests_until)
        if not rests and (self._follows or not self._is_shown):
            await self.look()


def once(reader: Reader, read: Callable[[Database], Result], build: Callable[[Result], None]) -> Look[Result]:
    """Create a view whose content is built once, when it is read."""

    def show(result: Result) -> None:
        content.clear()
        with content:
            build(result)

    def gone() -> None:
        content.clear()

    look = Look(reader, read, show, gone, follows=False)
    content = element("div")
    return look


def identifier(text: str) -> int | None:
    """Parse the id of a row; None if no row can have it."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return None
    return int(text) if int(text) <= MAX_ID else None


def later(work: Callable[[], object]) -> None:
    """Run a callback once the browser shows the page."""
    ui.timer(0, work, once=True)


def cut(text: str | None, characters: int = CHARACTERS) -> str:
    """Shorten a text, and append how many characters were cut."""
    if text is None or len(text) <= characters:
        return text or ""
    return f"{text[:characters]}… ({len(text) - characters:,} more characters: trinity-db show)"


def beginning(text: str | None, characters: int) -> str:
    """Beginning of a text, in one line."""
    line = " ".join((text or "").split())
    return line if len(line) <= characters else f"{line[:characters]}…"


def text(link_text: str) -> str:
    """A link's text in a form that the database accepts: without NUL and unpaired surrogates."""
    return link_text.replace("\x00", "").encode("utf-8", "replace").decode()


def number(value: float | None, digits: int = 3) -> str:
    """Format a number in a few characters; "" for None."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def state(name: str | None) -> Cell:
    """Cell that shows a state as a coloured word."""
    return Cell(name or "", kind=f"state-{name}" if (name or "").isalpha() else "")


def count(number: int, singular: str, plural: str) -> str:
    """Format a number with its noun."""
    return f"{number:,} {singular if number == 1 else plural}"


def versions(low: int | None, high: int | None) -> str:
    """Format the policy versions that sampled a row's tokens."""
    return "" if low is None else str(low) if low == high else f"{low} to {high}"


def link(path: str, *parts: object, **query: object) -> str:
    """Build a link within this page; None and "" are left out, and a list gives one parameter per value."""
    parameters = {key: value for key, value in query.items() if value not in (None, "")}
    steps = "/".join(["", path, *(quote(str(part), safe="") for part in parts)])
    return f"{steps}?{urlencode(parameters, doseq=True)}" if parameters else steps
