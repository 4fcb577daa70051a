"""Texts of any length: of a long one the beginning and the end, and what lies between on demand."""

from collections.abc import Callable

from trinity_db.page.elements import said

SHOWN = 20_000  # characters of a text that is shown whole: a page may have hundreds of them
TAIL = 4_000  # characters at the end of a longer one: an answer stands there
PART = 200_000  # characters that the first press adds; each further one as many as are there already


class LongText:
    """One text. What is hidden can be read part by part, by a button."""

    def __init__(
        self, text: str, shown: int = SHOWN, on_more: Callable[[], None] | None = None, empty: str = ""
    ) -> None:
        """Show it whole if it has at most `shown` characters; `empty` stands in place of no text."""
        self._text, self._on_more = text, on_more
        self._end = len(text) if len(text) <= shown else shown - TAIL
        if self.hidden == 0:
            said("pre", text or empty, "text")
            return
        with said("pre", "", "text"):
            self._head = said("span", text[: self._end])
            self._button = said("button", self._word(), "gap", type="button").on("click", self._more, args=[])
            self._tail = said("span", text[-TAIL:])

    @property
    def hidden(self) -> int:
        """How many characters are not shown."""
        return 0 if self._end >= len(self._text) else len(self._text) - TAIL - self._end

    def _word(self) -> str:
        most = max(PART, self._end)
        which = "them" if most >= self.hidden else f"{most:,} more"
        return f"… {self.hidden:,} characters are hidden: show {which} …"

    async def _more(self) -> None:
        self._end = min(self._end + max(PART, self._end), len(self._text) - TAIL)
        if self.hidden == 0:
            self._end = len(self._text)
            self._button.delete()
            self._tail.delete()
        else:
            self._button.text = self._word()
        self._head.text = self._text[: self._end]
        if self._on_more is not None:
            self._on_more()


def show(text: str | None) -> None:
    """A text that a person reads."""
    LongText(text or "")
