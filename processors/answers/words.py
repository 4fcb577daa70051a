"""Answers in words, which are compared as text."""

import re

_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[^\W\d_][^\W\d_ '’.,&\-]*(?:[ '’.,&\-]+[^\W\d_]+)*")
_NAME = re.compile(r"[^\W\d_]{3,} \d+(?:[ ,]+\d+)*")  # May 5, Route 66
_AMOUNT = re.compile(r"(?:about|around|roughly|nearly|exactly|approximately|number|answer)\b")
_RUN = re.compile(r"[^\W\d_]+")
_CONNECTIVES = {"and", "or"}
_MATHEMATICS = {"pi", "inf", "infty", "infinity", "sin", "cos", "tan", "log", "exp", "sqrt"}
_SHORT = {"no", "on", "up", "in"}


def normal(text: str) -> str:
    """Return a text without markup, case, and punctuation around it."""
    return " ".join(_TEXT.sub(r"\1", text).strip(" \t\n.,;:!*_`$\"'").casefold().split())


def is_words(text: str) -> bool:
    """Whether an answer is words, such as east or no solution, instead of mathematics.

    Single letters and two of them are variables, and so are letters in a row, such as xyz and abc.
    """
    text = normal(text)
    runs = set(_RUN.findall(text)) - _CONNECTIVES
    if runs & _MATHEMATICS:
        return False
    if _NAME.fullmatch(text):
        return not _AMOUNT.match(text)
    return bool(_WORDS.fullmatch(text)) and any(map(_is_word, runs))


def _is_word(run: str) -> bool:
    codes = sorted(map(ord, run))
    are_variables = len(run) < 3 or codes == list(range(codes[0], codes[0] + len(codes)))
    return not are_variables or not run.isascii() or run in _SHORT
