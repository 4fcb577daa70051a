"""Compares what a program printed with the expected output, like the graders of competitions do."""

import re
from decimal import Decimal

from trinity_db.processors.children.values import TOLERANCE

# No leading zeros, which are significant in binary and other codes.
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_WHOLE = re.compile(r"[+-]?[0-9]+")


def is_printed(output: str, expected: str | bool) -> bool:
    """Whether an output has the words of the expected one, line by line, except for empty lines.

    Numbers of which at least one has a decimal point or an exponent are compared as described at `_is_close`.
    A truth value matches True and true.
    """
    if isinstance(expected, bool):
        return output.strip().lower() == str(expected).lower()
    lines, expected_lines = _words(output), _words(expected)
    return len(lines) == len(expected_lines) and all(
        len(words) == len(expected_words)
        and all(
            word == expected_word or _is_close(word, expected_word)
            for word, expected_word in zip(words, expected_words, strict=True)
        )
        for words, expected_words in zip(lines, expected_lines, strict=True)
    )


def _words(text: str) -> list[list[str]]:
    return [words for line in text.split("\n") if (words := line.split())]


def _is_close(word: str, expected: str) -> bool:
    """Whether two numbers differ by at most the tolerance: relative or absolute, and only absolute if the
    expected number is whole, so that a large integer is not rounded."""
    if not (_NUMBER.fullmatch(word) and _NUMBER.fullmatch(expected)):
        return False
    is_whole = _WHOLE.fullmatch(expected) is not None
    if is_whole and _WHOLE.fullmatch(word):
        return False
    number, expected_number = Decimal(word), Decimal(expected)
    tolerance = Decimal(str(TOLERANCE))
    return abs(number - expected_number) <= (
        tolerance if is_whole else tolerance * max(Decimal(1), abs(expected_number))
    )
