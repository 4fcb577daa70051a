"""Terminal output for labelling, and its input: single keys on a terminal, lines from a pipe.

Texts come from models and strangers, and a terminal executes control sequences: so everything but plain text
is escaped. The output scrolls like any other, so that people can scroll back to read long texts.
"""

import os
import re
import select
import sys
import termios
import tty
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trinity_db.cli import output
from trinity_db.errors import ConfigError
from trinity_db.insight.words import cell, scalar

if TYPE_CHECKING:
    from rich.console import Console

    from trinity_db.schema.typed_rows import RewardPart
    from trinity_db.store.verdicts import ReviewClaim

END = ""  # end of input
_UNPRINTABLE = re.compile(r"[^\n -~\u00a1-\u02ff]")  # candidates: the rest of Latin is printable
_ARROWS = re.compile(rb"\x1b(\[[0-9;]*[ -~]|O[ -~])?")  # and other keys that send several bytes
_JOINERS = "\u200c\u200d"  # needed for Persian, Indic scripts and emoji, and harmless


def inert(text: str) -> str:
    """Escape a text so that a terminal only displays it: control and format characters, such as those that
    change the writing direction, become \\x1b. Tabs become blanks.
    """
    return _UNPRINTABLE.sub(lambda match: _shown(match[0]), text.expandtabs(4))


def _shown(character: str) -> str:
    if unicodedata.category(character)[0] not in "CZ" or character in _JOINERS:
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    number = ord(character)
    return (
        f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
    )


def print_claim(console: "Console", claim: "ReviewClaim", heading: str) -> None:
    """Print the item to judge."""
    from rich.text import Text

    console.print(Text(f"-- {inert(heading)} --", style="dim"))
    _print_text(console, "prompt", _prompt(claim))
    names = ("A", "B") if claim.is_pair else ("response",)
    for name, response in zip(names, claim.responses, strict=True):
        _print_text(console, name, response)


def _print_text(console: "Console", name: str, text: str) -> None:
    from rich.text import Text

    console.print(Text(name, style="bold"))
    console.print(Text(inert(text) or "(empty)"), overflow="fold")
    console.print()


def _prompt(claim: "ReviewClaim") -> str:
    """Prompt of a claim, turn by turn if it is a list of messages."""
    messages = claim.messages
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return claim.prompt
    return "\n".join(f"{message.get('role', '?')}: {scalar(message.get('content'))}" for message in messages)


def print_rewards(console: "Console", claim: "ReviewClaim", parts: Sequence["RewardPart"]) -> None:
    """Print the rewards of the claim's rows."""
    if not parts:
        console.print("No rewards yet.")
        return
    names = dict(zip(claim.experience_ids, ("A", "B"), strict=False)) if claim.is_pair else {}
    rows = [
        [
            names.get(part["experience_id"], ""),
            *(
                inert(cell(content))
                for content in (part["name"], part["value"], part["weight"], part["source"])
            ),
        ]
        for part in parts
    ]
    columns = ("response", "reward", "value", "weight", "source")
    console.print(output.fitted(columns, rows, console.width, ("source", "weight"), ("value", "weight")))


class Keys:
    """Keys from standard input: single keystrokes on a terminal, otherwise one key per line.

    Keys typed on a terminal before `wait` are discarded, so that no key judges a row that was not shown.
    """

    def __init__(self) -> None:
        """Raises ConfigError if standard input is closed."""
        if sys.stdin is None:
            raise ConfigError("Standard input is closed: enter keys on a terminal, or pipe one per line.")
        self._input = sys.stdin.fileno()
        self.is_terminal = os.isatty(self._input) and sys.stdout.isatty()
        self._before = termios.tcgetattr(self._input) if self.is_terminal else None
        self._rest = b""
        self._has_ended = False
        self.line = 0
        """Number of the last line read."""

    def listen(self) -> None:
        """Accept keys from now on, without Enter."""
        if self._before is not None:
            tty.setcbreak(self._input, termios.TCSAFLUSH)

    def restore(self) -> None:
        """Restore the terminal. May be called repeatedly."""
        if self._before is not None:
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str | None:
        """Return the next key in lower case; END at the end of the input, None on a timeout."""
        if self.is_terminal:
            if not select.select([self._input], [], [], seconds)[0]:
                return None
            typed = os.read(self._input, 64)
            if typed in (b"", b"\x04"):
                return END
            # Several characters at once are a pasted text, or a letter that is not one of these keys.
            key = _ARROWS.sub(b"", typed)
            return key.decode().lower() if len(key) == 1 and key.isascii() else "?"
        return self._line(seconds)

    def _line(self, seconds: float) -> str | None:
        while True:
            while b"\n" not in self._rest and not self._has_ended:
                if not select.select([self._input], [], [], seconds)[0]:
                    return None
                read = os.read(self._input, 65536)
                self._has_ended = not read
                self._rest += read
            if not self._rest:
                return END
            line, _, self._rest = self._rest.partition(b"\n")
            self.line += 1
            if key := line.decode(errors="replace").strip().lower():
                return key
