"""What a person sees of a claim, and how keys are read: single keys on a terminal, lines from a pipe.

Models and strangers wrote the texts, and a terminal obeys what it is sent: so nothing that is not plain text
reaches it as it is. What is printed scrolls like other output, so that long texts can be read above.
"""

import os
import re
import select
import sys
import termios
import tty
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trinity_db.cli import output
from trinity_db.errors import ConfigError
from trinity_db.inspection.words import cell, scalar

if TYPE_CHECKING:
    from rich.console import Console

    from trinity_db.store.verdicts import Claim

END = ""  # no key will come any more
_UNPRINTABLE = re.compile(r"[^\n -~\u00a1-\u02ff]")  # candidates: the rest of Latin needs no look
_ARROWS = re.compile(rb"\x1b(\[[0-9;]*[ -~]|O[ -~])?")  # and other keys that send several bytes
_JOINERS = "\u200c\u200d"  # Persian, Indic scripts and emoji need them, and they move nothing


def inert(text: str) -> str:
    """Text that a terminal only shows: control and format characters, as those that turn writing around, in
    the form \\x1b. Tabs become blanks.
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


def print_claim(console: "Console", claim: "Claim", heading: str) -> None:
    """Show what is to be judged."""
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


def _prompt(claim: "Claim") -> str:
    """The prompt, turn by turn where it is a list of messages."""
    messages = claim.messages
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        return claim.prompt
    return "\n".join(f"{one.get('role', '?')}: {scalar(one.get('content'))}" for one in messages)


def print_rewards(console: "Console", claim: "Claim", parts: Sequence[dict[str, Any]]) -> None:
    """Show what the rewards of the claim's rows are made of."""
    if not parts:
        console.print("Nothing has given a reward yet.")
        return
    names = dict(zip(claim.experience_ids, ("A", "B"), strict=False)) if claim.is_pair else {}
    rows = [
        [names.get(part["experience_id"], ""), *(inert(cell(part[key])) for key in KEYS_OF_PARTS)]
        for part in parts
    ]
    columns = ("response", "reward", "value", "weight", "source")
    console.print(output.fitted(columns, rows, console.width, ("source", "weight"), ("value", "weight")))


KEYS_OF_PARTS = ("name", "value", "weight", "source")


class Keys:
    """Keys from standard input: one at a time on a terminal, else one a line.

    What is typed on a terminal before `wait` is thrown away, so that no key judges a row that was not shown.
    """

    def __init__(self) -> None:
        """Raises ConfigError: the command was started without a standard input."""
        if sys.stdin is None:
            raise ConfigError("Standard input is closed: give keys on a terminal, or one a line.")
        self._input = sys.stdin.fileno()
        self.is_terminal = os.isatty(self._input) and sys.stdout.isatty()
        self._before = termios.tcgetattr(self._input) if self.is_terminal else None
        self._rest = b""
        self._has_ended = False
        self.line = 0
        """Number of the line that was read last."""

    def listen(self) -> None:
        """Take keys from now on, each without Enter."""
        if self._before is not None:
            tty.setcbreak(self._input, termios.TCSAFLUSH)

    def restore(self) -> None:
        """Leave the terminal as it was. Harmless when repeated."""
        if self._before is not None:
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str | None:
        """The next key, in lower case; END if none will come, None if none came in time."""
        if self.is_terminal:
            if not select.select([self._input], [], [], seconds)[0]:
                return None
            typed = os.read(self._input, 64)
            if typed in (b"", b"\x04"):
                return END
            # Several at once are a pasted text, or a letter that no key here has.
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
            if said := line.decode(errors="replace").strip().lower():
                return said
