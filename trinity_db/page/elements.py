"""Components that show data of the store. Each makes text nodes of the texts that it gets.

Components take their data as tuples: NiceGUI would copy lists and dicts into versions that it watches for
changes, which takes longer than everything else about a view.
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
    """Meaning of the column, with its unit."""


@dataclass(frozen=True)
class Cell:
    """A table value as it is shown."""

    text: str = ""
    href: str | None = None
    """Link within this page; built by the code, never taken from the store."""
    kind: str = ""
    """Class of the style sheet, for a word such as a state."""
    hint: str | None = None
    ticks: str | None = None
    """Id of a form: a checkbox before the text adds the text to it as a `run`."""


@dataclass(frozen=True)
class Fact:
    """A name and its value."""

    name: str
    text: str
    href: str | None = None


class Rows(ui.element, component="components/rows.js"):
    """A table that keeps its scroll position while its rows change."""

    def __init__(self, caption: str, columns: Sequence[Column], empty: str) -> None:
        super().__init__()
        self.props["caption"] = caption
        self.props["columns"] = [asdict(column) for column in columns]
        self.props["empty"] = empty
        self.props["rows"] = ()

    def show(self, rows: Sequence[Sequence[Cell]]) -> None:
        self._show(tuple([vars(cell) for cell in row] for row in rows))

    def show_texts(self, rows: Sequence[Sequence[str]]) -> None:
        """Show many cells that are plain texts."""
        self._show(tuple(list(row) for row in rows))

    def say_empty(self, text: str) -> None:
        """Change the text that is shown when the table has no rows."""
        self.props["empty"] = text
        self.update()

    def _show(self, shown: tuple[list[Any], ...]) -> None:
        if shown != self.props["rows"]:
            self.props["rows"] = shown
            self.update()


class Facts(ui.element, component="components/facts.js"):
    """Names with their values."""

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
    """A text field for a statement, with buttons to run and cancel it."""

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
        """Handle the browser's events from now on; earlier ones are lost."""
        self.props["listens"] = True
        self.update()

    def show(self, runs: bool, mark: tuple[int, int] | None = None) -> None:
        """Show whether a statement runs, and which of its characters are wrong."""
        self.props["runs"] = runs
        self.props["mark"] = None if mark is None else list(mark)
        self.update()


class Draft(ui.element, component="components/draft.js"):
    """A file that a person can edit, and buttons that act on it."""

    def __init__(
        self,
        text: str,
        longest: int,
        actions: Sequence[tuple[str, str, bool]],
        on_act: Callable[[str, str, Mapping[str, Any]], Awaitable[None]],
        form: str = "",
        on_fill: Callable[[Mapping[str, Any]], Awaitable[None]] | None = None,
    ) -> None:
        """Show a text; actions are triples of name, label, and whether it is the main button.

        Args:
            on_act: gets the action, the text, and the values of the form, {} if the form does not count.
            form: CSS selector of the form whose fields write the text; "" without a form.
            on_fill: gets the form's values when they have changed.
        """
        super().__init__()
        self.props["text"] = text
        self.props["longest"] = longest
        self.props["actions"] = [list(action) for action in actions]
        self.props["listens"] = False
        self.props["busy"] = False
        self.props["form"] = form
        self.on("act", lambda event: on_act(*event.args) if _fits(event.args, str, str, dict) else None)
        if on_fill is not None:
            self.on("fill", lambda event: on_fill(event.args) if isinstance(event.args, dict) else None)

    def listen(self) -> None:
        """Handle the browser's events from now on; earlier ones are lost."""
        self.props["listens"] = True
        self.update()

    def write(self, text: str) -> None:
        """Show another text, unless the person has edited the current one."""
        self.props["text"] = text
        self.update()

    def work(self, busy: bool) -> None:
        """Disable the buttons while an action runs."""
        self.props["busy"] = busy
        self.update()


class Relations(ui.element, component="components/relations.js"):
    """Tables and views, each with its columns and comments."""

    def __init__(self, items: Sequence[Sequence[Any]]) -> None:
        super().__init__()
        self.props["items"] = tuple(items)


@dataclass(frozen=True)
class Key:
    """A key that a page accepts."""

    key: str
    word: str
    help: str
    is_main: bool = False


class Keys(ui.element, component="components/keys.js"):
    """The keys that a page accepts, also as buttons. Each turn accepts one key, and `?` explains the keys."""

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
        """Accept these keys from now on; a key pressed earlier belongs to an earlier turn.

        Args:
            shown: number of the item that is judged; a new item is scrolled to its beginning.
        """
        self.props["keys"] = [asdict(key) for key in keys]
        self.props["turn"] = turn
        self.props["shown"] = shown
        self.update()

    def warn(self, text: str) -> None:
        """Show a warning next to the keys; "" removes it."""
        if text != self.props["warning"]:
            self.props["warning"] = text
            self.update()


class Pulse(ui.element, component="components/pulse.js"):
    """Calls a function periodically while the page is visible; never in a hidden tab."""

    def __init__(self, seconds: float, on_beat: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.props["seconds"] = seconds
        self.on("beat", on_beat, args=[])


def _fits(args: Any, *kinds: type) -> bool:
    """Whether an event has arguments of these types: a socket may send anything."""
    return isinstance(args, list) and tuple(map(type, args)) == kinds


def element(tag: str, text: str = "", classes: str = "", **attributes: Any) -> TextElement:
    """Create an HTML element with a text; attributes become those of the tag."""
    new = TextElement(tag=tag, text=text)
    if classes:
        new.classes(classes)
    for name, value in attributes.items():
        new.props[name.rstrip("_").replace("_", "-")] = value
    return new
