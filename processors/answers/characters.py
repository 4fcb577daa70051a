"""Characters that stand for one of ASCII."""

import re
import unicodedata

_MINUS = "\N{MINUS SIGN}\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{FIGURE DASH}\N{EN DASH}\N{SMALL HYPHEN-MINUS}"
_GROUPS = re.compile(
    r"(?<=\d)[\N{NO-BREAK SPACE}\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}](?=\d{3}(?!\d))", re.ASCII
)


class _Table(dict[int, str]):
    """The text that replaces each character, by its code."""

    def __missing__(self, code: int) -> str:
        self[code] = _replaced(chr(code))
        return self[code]


def _replaced(character: str) -> str:
    category = unicodedata.category(character)
    if "！" <= character <= "～":  # the full-width forms of ASCII, in its order
        return chr(ord(character) - 0xFEE0)
    if (digit := unicodedata.decimal(character, None)) is not None:
        return str(digit)
    if character in _MINUS:
        return "-"
    if character == "。":
        return ". "
    if category == "Zs":  # spaces
        return " "
    return "" if category == "Cf" else character  # invisible, such as a byte order mark


_TABLE = _Table()


def in_ascii(text: str) -> str:
    """Replace full-width characters, minus signs, digits of other scripts and special spaces.

    Spaces between groups of digits are removed, and so are invisible characters.
    """
    return text if text.isascii() else _GROUPS.sub("", text).translate(_TABLE)
