"""Components that show what the store says. Each makes text nodes of the texts that it is given.

What a component shows is handed to it as a tuple: NiceGUI would copy lists and dicts into ones that it
watches for changes, which takes more time than all else about a view.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    label: str
    kind: Literal["", "number", "long"] = ""
    hint: str | None = None
    """What it says, with its unit."""


@dataclass(frozen=True)
class Cell:
    """A value of a table as it is shown."""

    text: str = ""
    href: str | None = None
    """A place on this page; made here, and never by the store."""
    kind: str = ""
    """A class of the style sheet, for a word such as a state."""
    hint: str | None = None
    ticks: str | None = None
    """The id of a form: a box before the text gives it the text as a `run`."""


@dataclass(frozen=True)
class Fact:
    """A name and what is said of it."""

    name: str
    text: str
    href: str | None = None


class Rows(ui.element, component="components/rows.js"):
    """A table that keeps its place while its rows change."""

    def __init__(self, caption: str, columns: Sequence[Column], empty: str) -> None:
        super().__init__()
        self.props["caption"] = caption
        self.props["columns"] = [asdict(column) for column in columns]
        self.props["empty"] = empty
        self.props["rows"] = ()

    def show(self, rows: Sequence[Sequence[Cell]]) -> None:
        self._show(tuple([vars(cell) for cell in row] for row in rows))

    def show_texts(self, rows: Sequence[Sequence[str]]) -> None:
        """Show many cells that are nothing but texts."""
        self._show(tuple(list(row) for row in rows))

    def say_empty(self, text: str) -> None:
        """Say something else in place of a table without rows."""
        self.props["empty"] = text
        self.update()

    def _show(self, shown: tuple[list[Any], ...]) -> None:
        if shown != self.props["rows"]:
            self.props["rows"] = shown
            self.update()


class Facts(ui.element, component="components/facts.js"):
    """Names with what is said of them."""

    def __init__(self) -> None:
        super().__init__()
        self.props["items"] = ()

    def show(self, facts: Sequence[Fact]) -> None:
        shown = tuple(vars(fact) for fact in facts if fact.text)
        if shown != self.props["items"]:
            self.props["items"] = shown
            self.update()


class Tokens(ui.element, component="components/tokens.js"):
    """The tokens of a sequence, coloured by their log-probability."""

    def __init__(self, items: Sequence[Sequence[Any]]) -> None:
        super().__init__()
        self.props["items"] = tuple(items)


class Editor(ui.element, component="components/editor.js"):
    """A field for a statement, with what carries it out and cancels it."""

    def __init__(
        self,
        text: str,
        longest: int,
        on_run: Callable[[str], Awaitable[None]],
        on_cancel: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__()
        self.props["text"] = text
        self.props["longest"] = longest
        self.props["listens"] = False
        self.props["runs"] = False
        self.props["mark"] = None
        self.on("run", lambda event: on_run(str(event.args)))
        self.on("cancel", on_cancel, args=[])

    def listen(self) -> None:
        """From now on what the browser says is heard: what it said before is lost."""
        self.props["listens"] = True
        self.update()

    def show(self, runs: bool, mark: tuple[int, int] | None = None) -> None:
        """Whether a statement runs, and which characters of it are wrong."""
        self.props["runs"] = runs
        self.props["mark"] = None if mark is None else list(mark)
        self.update()


class Draft(ui.element, component="components/draft.js"):
    """A file that a person may change, and buttons that do something with it."""

    def __init__(
        self,
        text: str,
        longest: int,
        actions: Sequence[tuple[str, str, bool]],
        on_act: Callable[[str, str, Mapping[str, Any]], Awaitable[None]],
        form: str = "",
        on_fill: Callable[[Mapping[str, Any]], Awaitable[None]] | None = None,
    ) -> None:
        """The text to begin with; actions are name, word, and whether it is the main one.

        Args:
            on_act: is given the action, the text, and the values of the form, {} if they do not count.
            form: selects the form whose fields write the text; "" if there is none.
            on_fill: is given the values of the form when they have changed.
        """
        super().__init__()
        self.props["text"] = text
        self.props["longest"] = longest
        self.props["actions"] = [list(one) for one in actions]
        self.props["listens"] = False
        self.props["busy"] = False
        self.props["form"] = form
        self.on("act", lambda event: on_act(*event.args) if _fits(event.args, str, str, dict) else None)
        if on_fill is not None:
            self.on("fill", lambda event: on_fill(event.args) if isinstance(event.args, dict) else None)

    def listen(self) -> None:
        """From now on what the browser says is heard: what it said before is lost."""
        self.props["listens"] = True
        self.update()

    def write(self, text: str) -> None:
        """Show another text, unless the person changed the one that is shown."""
        self.props["text"] = text
        self.update()

    def work(self, busy: bool) -> None:
        """Take no press of a button while something is done."""
        self.props["busy"] = busy
        self.update()


class Relations(ui.element, component="components/relations.js"):
    """Tables and views, each with its columns and comments."""

    def __init__(self, items: Sequence[Sequence[Any]]) -> None:
        super().__init__()
        self.props["items"] = tuple(items)


@dataclass(frozen=True)
class Key:
    """A key that a page takes."""

    key: str
    word: str
    help: str
    is_main: bool = False


class Keys(ui.element, component="components/keys.js"):
    """The keys that a page takes, as buttons too. Each key is taken once in a turn, and `?` explains them."""

    def __init__(
        self, on_key: Callable[[str, int], Awaitable[None]], on_leave: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__()
        self.props["keys"] = []
        self.props["turn"] = 0
        self.props["shown"] = 0
        self.props["warning"] = ""
        self.on("take", lambda event: on_key(*event.args) if _fits(event.args, str, int) else None)
        self.on("leave", on_leave, args=[])

    def show(self, keys: Sequence[Key], turn: int, shown: int) -> None:
        """Take these keys from now on; a key that was pressed before belongs to an earlier turn.

        Args:
            shown: the number of what they are about; another one is seen from its beginning.
        """
        self.props["keys"] = [asdict(key) for key in keys]
        self.props["turn"] = turn
        self.props["shown"] = shown
        self.update()

    def warn(self, text: str) -> None:
        """Say what to know before a key is pressed; nothing if it is empty."""
        if text != self.props["warning"]:
            self.props["warning"] = text
            self.update()


class Pulse(ui.element, component="components/pulse.js"):
    """Calls every so many seconds while the page is visible; in a hidden tab never."""

    def __init__(self, seconds: float, on_beat: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.props["seconds"] = seconds
        self.on("beat", on_beat, args=[])


def _fits(args: Any, *kinds: type) -> bool:
    """Whether an event has these arguments: a socket may send others than our components do."""
    return isinstance(args, list) and tuple(map(type, args)) == kinds


def said(tag: str, text: str = "", classes: str = "", **attributes: Any) -> TextElement:
    """An element of HTML with a text; attributes are those of the tag."""
    element = TextElement(tag=tag, text=text)
    if classes:
        element.classes(classes)
    for name, value in attributes.items():
        element.props[name.rstrip("_").replace("_", "-")] = value
    return element
