"""Texts of any length: a long one shows its beginning and end, and the rest on demand."""

from collections.abc import Callable

from trinity_db.page.elements import element

SHOWN = 20_000  # characters up to which a text is shown whole: a page may have hundreds of texts
TAIL = 4_000  # characters at the end of a longer one: the answer is there
PART = 200_000  # characters that the first press adds; each further press doubles the text


class LongText:
    """A text. Its hidden part can be read step by step, with a button."""

    def __init__(
        self, text: str, shown: int = SHOWN, on_more: Callable[[], None] | None = None, empty: str = ""
    ) -> None:
        """Show the text whole if it has at most `shown` characters; `empty` is shown for an empty text."""
        self._text, self._on_more = text, on_more
        self._end = len(text) if len(text) <= shown else shown - TAIL
        if self.hidden == 0:
            element("pre", text or empty, "text")
            return
        with element("pre", "", "text"):
            self._head = element("span", text[: self._end])
            self._button = element("button", self._word(), "gap", type="button").on(
                "click", self._more, args=[]
            )
            self._tail = element("span", text[-TAIL:])

    @property
    def hidden(self) -> int:
        """Number of hidden characters."""
        return 0 if self._end >= len(self._text) else len(self._text) - TAIL - self._end

    def _word(self) -> str:
        most = max(PART, self._end)
        hidden = "them" if most >= self.hidden else f"{most:,} more"
        return f"… {self.hidden:,} characters are hidden: show {hidden} …"

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
    """Show a text for reading."""
    LongText(text or "")
