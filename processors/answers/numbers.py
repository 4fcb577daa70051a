"""The final number of a text, exactly."""

import re
from collections.abc import Sequence
from fractions import Fraction

from trinity_db.processors.answers.characters import in_ascii

DIGITS = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)"
"""A number without sign, such as 1,234.50 or .5."""

_NUMBER = re.compile(
    rf"""
    (?P<sign>(?<![\w)\]}}])-(?:\\?[$€£¥₹])?)?
    (?:(?P<whole>\d+)\s+(?=\d+\s*/\s*\d))?
    (?P<number>{DIGITS})
    (?:\s*/\s*(?P<over>{DIGITS}))?
    (?:[eE](?P<exponent>[+-]?\d{{1,3}})(?!\w)|\s*[×x*·]\s*10\s*(?:\^|\*\*)\s*\{{?(?P<power>[+-]?\d{{1,3}})(?!\w))?
    (?P<raised>\s*\^\s*[({{]?\s*-?\w|\*\*[({{]?-?\d|[⁰¹²³⁴-⁹])?
    """,
    re.VERBOSE | re.ASCII,
)
"""Such as 1,234.50, -3, .5, 3/4, 3 1/2, 2e5 and 2*10^5; with a power that makes it another number."""

MAX_TEXT = 10_000  # characters at the end of a text that are searched for numbers

_SEPARATOR = re.compile(r"(?<=\d)(?:\{,\}|,?\\[,!;: ])(?=\d{3})", re.ASCII)
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*(-?[\d.,]+)\s*\}\s*\{\s*([\d.,]+)\s*\}|(\d)(\d))", re.ASCII)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_IN_WORD = re.compile(
    r"(?:(?<=[A-Za-z])(?<!\d[eExX])[\^_]?|(?<=[A-Za-z]\})\^)\{?\d+", re.ASCII
)  # m2, m^2, CO2
_JOINT = re.compile(r"[\s$*()]*(?:[,;|]|\band\b)[\s$*()]*", re.IGNORECASE)
_OR = re.compile(r"[\s,;$*()]*\bor\b(?:\s+(?:maybe|possibly|perhaps|else|even))?[\s$*(]*", re.IGNORECASE)


def final_number(text: str, mark: str) -> Fraction | None:
    """Return the last number of a text, or of the line after its last mark if it has one.

    Returns:
        None without a number, if the number is raised to a power, or if it is one of two alternatives: "4 or
        5", and after a mark also "4, 5", which in a sentence may be a date.
    """
    numbers = _numbers(after_mark(text, mark))
    values = [_value(number) for number in numbers[-2:]]
    if len(values) == 2 and values[0] != values[1]:
        before, last = numbers[-2:]
        gap = last.string[before.end() : last.start()]
        if _OR.fullmatch(gap) or (mark in text and _JOINT.fullmatch(gap)):
            return None
    return values[-1] if values else None


def accepted_numbers(answers: Sequence[str], mark: str) -> list[Fraction]:
    """Return the numbers of a task's answers. Answers without a number are ignored if there are others.

    Raises:
        ValueError: if no answer has a number, or one has several.
    """
    accepted = []
    for answer in answers:
        values = {_value(number) for number in _numbers(after_mark(answer, mark))}
        if len(values) > 1:
            remedy = "set 'after' to the mark before the final one"
            raise ValueError(f"the task's answer {answer[-80:]!r} has several numbers; {remedy}")
        accepted += [value for value in values if value is not None]
    if not accepted:
        raise ValueError(f"the task's answer {answers[0][-80:]!r} has no plain number")
    return accepted


def after_mark(text: str, mark: str) -> str:
    """Return the first line with text after the last mark; the whole text without a mark."""
    _, marked, rest = text.rpartition(mark)
    return rest.strip().partition("\n")[0] if marked else text


def _numbers(text: str) -> list[re.Match[str]]:
    """Return the numbers at the end of a text. Digits within words count if there are no others."""
    text = text[-MAX_TEXT:]
    text = _FRACTION.sub(_with_slash, _SEPARATOR.sub("", in_ascii(text)))
    text = _COMMAND.sub(" ", text.replace(r"\times", "×").replace(r"\cdot", "·"))
    return list(_NUMBER.finditer(_IN_WORD.sub(" ", text))) or list(_NUMBER.finditer(text))


def _with_slash(fraction: re.Match[str]) -> str:
    """Return a fraction as 1/2; after a whole number as 3 1/2."""
    is_signed = fraction.string[fraction.start() - 1 : fraction.start()] == "-"
    return f"{'' if is_signed else ' '}{fraction[1] or fraction[3]}/{fraction[2] or fraction[4]} "


def _value(number: re.Match[str]) -> Fraction | None:
    """Return the value of a number; None if it is raised to a power, divided by 0, or too long."""
    if number["raised"]:
        return None
    try:
        power = number["exponent"] or number["power"] or "0"
        value = Fraction(f"{number['number'].replace(',', '')}e{power}")
        value /= Fraction((number["over"] or "1").replace(",", ""))
        value += Fraction(number["whole"] or "0")
    except (ValueError, ZeroDivisionError):  # Python converts at most 4,300 digits
        return None
    return -value if number["sign"] else value
