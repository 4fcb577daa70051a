"""What all pages have: the head, a place for notices, and how a page follows the store."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

import psycopg
from nicegui import ui

from trinity_db.database import Database, first_line
from trinity_db.errors import DatabaseUnavailable, NotFound, TrinityError
from trinity_db.page.answers import PAUSES, Answers
from trinity_db.page.elements import Cell, Pulse, said
from trinity_db.page.reader import Reader
from trinity_db.page.rights import Right, visitor

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

REFRESH_SECONDS = 10.0  # a step takes longer on most runs; people who want more press reload
RESPONSE_SECONDS = 45.0  # a page asks a few statements, of STATEMENT_SECONDS each at most
MAX_ID = 2**63 - 1
CHARACTERS = 20_000  # of one text: what people read, and what a visitor's page may weigh

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
    """Give all pages the style sheet and the theme that the person chose."""
    ui.add_head_html(f"<style>{STYLE.read_text(encoding='utf-8')}</style>{THEME}", shared=True)


def frame(title: str, here: str = "") -> ui.element:
    """The head of a page, and the element that its content goes into; `here` names the link of this page."""
    ui.page_title(f"{title} · trinity-db")
    said("a", "Skip to the content", "skip", href="#content")
    with said("header"):
        said("a", "trinity-db", "brand", href="/")
        with said("nav", aria_label="Pages"):
            for name, place in (
                ("Runs", "/"),
                ("Experiences", "/experiences"),
                ("Verdicts", "/verdicts"),
                ("SQL", "/sql"),
                ("Doctor", "/doctor"),
            ):
                link = said("a", name, href=place)
                if name == here:
                    link.props["aria-current"] = "page"
        _tell_visitor()
        toggle = said("button", "◐", "quiet", type="button", title=THEMES, aria_label=THEMES)
        toggle.on("click", js_handler=TOGGLE)
    content = said("div", "", "page", id_="content", tabindex="-1")
    with content:
        said("h1", title)
    return content


def _tell_visitor() -> None:
    """Who the visitor is, and what the visitor may do."""
    you = visitor()
    rights = [right.word for right in Right if you.may(right)]
    with said("span", "", "visitor", title=f"You may {', '.join(rights)}."):
        if you.name:
            said("span", you.name, "name")
            said("span", " · ")
        said("span", *rights[-1:])


def missing() -> None:
    """What stands at an address that is none."""
    ui.context.client.status_code = 404
    with frame("No such page"):
        said("p", "There is nothing at this address. The links above lead to what there is.", "empty")


def heading(text: str, explained: str = "") -> None:
    """The head of a section, with a line that says what it shows."""
    said("h2", text)
    if explained:
        said("p", explained, "explained")


class Look(Generic[Found]):
    """One visitor's look at the store: reads, shows, and says so where it cannot read."""

    def __init__(
        self,
        reader: Reader | Answers,
        read: Callable[[Database], Found],
        show: Callable[[Found], None],
        gone: Callable[[], None],
        *,
        follows: bool,
    ) -> None:
        self._reader, self._read, self._show, self._gone = reader, read, show, gone
        self._visitor = visitor()
        self._follows = follows
        """Whether it looks again and again, or once unless that failed."""
        self._looks = False
        self._is_shown = False
        self._is_due = False
        self._rests_until = 0.0
        self._notice = said("p", "", "notice", role="alert")
        self._notice.set_visibility(False)
        Pulse(REFRESH_SECONDS, self._again)

    async def look(self) -> None:
        """Read and show, or tell why not."""
        self._looks, begun = True, time.monotonic()
        try:
            found = await self.ask()
        except NotFound as error:
            self._is_shown = True
            self._follows = False
            self._gone()
            self._tell(f"{error} It may have been deleted.")
        except DatabaseUnavailable as error:
            self._is_shown = False
            self._tell(f"{error} This page looks again every {REFRESH_SECONDS:.0f} seconds.")
        except TrinityError as error:
            self._tell(str(error))
        except psycopg.Error as error:
            logger.warning("A page could not be read: %s", first_line(error))
            self._tell(f"The database refuses: {first_line(error)}")
        else:
            self._is_shown = True
            self._notice.set_visibility(False)
            self._show(found)
        finally:
            self._looks = False
            self._rests_until = time.monotonic() + PAUSES * (time.monotonic() - begun)

    async def ask(self) -> Found:
        """What is shown, by one question or several."""
        return await self._reader.ask(self._read, self._visitor)

    def soon(self) -> None:
        """Look again once it has rested, as something is new; several calls meanwhile are one look."""
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


def once(reader: Reader, read: Callable[[Database], Found], build: Callable[[Found], None]) -> Look[Found]:
    """A look whose content is built when it is read, and not again."""

    def show(found: Found) -> None:
        content.clear()
        with content:
            build(found)

    def gone() -> None:
        content.clear()

    look = Look(reader, read, show, gone, follows=False)
    content = said("div")
    return look


def identifier(text: str) -> int | None:
    """The number of a row; None if no row can have it."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return None
    return int(text) if int(text) <= MAX_ID else None


def later(work: Callable[[], object]) -> None:
    """Begin work once the browser shows the page."""
    ui.timer(0, work, once=True)


def cut(text: str | None, characters: int = CHARACTERS) -> str:
    """At most so many characters of a text, and how many it has more."""
    if text is None or len(text) <= characters:
        return text or ""
    return f"{text[:characters]}… ({len(text) - characters:,} more characters: trinity-db show)"


def beginning(text: str | None, characters: int) -> str:
    """The beginning of a text in one line."""
    line = " ".join((text or "").split())
    return line if len(line) <= characters else f"{line[:characters]}…"


def text(given: str) -> str:
    """A text of a link as the database takes it: without NUL, and without halves of characters."""
    return given.replace("\x00", "").encode("utf-8", "replace").decode()


def number(value: float | None, digits: int = 3) -> str:
    """A number in a few characters; "" where there is none."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def state(name: str | None) -> Cell:
    """A state as a coloured word."""
    return Cell(name or "", kind=f"state-{name}" if (name or "").isalpha() else "")


def count(number: int, one: str, many: str) -> str:
    """A number with its noun."""
    return f"{number:,} {one if number == 1 else many}"


def versions(low: int | None, high: int | None) -> str:
    """The policy versions that wrote a row."""
    return "" if low is None else str(low) if low == high else f"{low} to {high}"


def place(path: str, *parts: object, **query: object) -> str:
    """A link within this page; what is None or "" is left out, and a list is given value by value."""
    given = {key: value for key, value in query.items() if value not in (None, "")}
    steps = "/".join(["", path, *(quote(str(part), safe="") for part in parts)])
    return f"{steps}?{urlencode(given, doseq=True)}" if given else steps
