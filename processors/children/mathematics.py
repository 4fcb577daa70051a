"""The process that compares answers by their mathematical meaning, with math-verify, one at a time.

`pool.py` starts it. A comparison may hang in sympy or exhaust the memory. Therefore math-verify's own
timeouts, which rely on signals in Python, are off: `pool.py` kills this process, or the kernel does if the
processor is gone. An answer that cannot be compared is an error, never a wrong answer.
"""

import logging
import re
import resource
from collections.abc import Sequence
from itertools import accumulate, islice, pairwise, product
from typing import Any

from trinity_db.processors.answers.characters import in_ascii
from trinity_db.processors.answers.final import final, stated
from trinity_db.processors.answers.latex import in_latex
from trinity_db.processors.answers.letters import choice, stated_letters
from trinity_db.processors.answers.numbers import DIGITS
from trinity_db.processors.answers.words import is_words, normal
from trinity_db.processors.children.lines import answer_lines

MEMORY_BYTES = 4 << 30  # address space; a tower of powers would exhaust any memory
TAIL = 1000  # characters at the end of a response that are searched for mathematics if it states no answer

MAX_ANSWER = 2000  # characters of an answer, above any formula in use
STATEMENTS = 5  # last statements of an answer that are tried until one can be read

_ATOM = (
    r"(?:[a-zA-Z]\s*=\s*)?"
    rf"(?:\$[^$\n]+\$|\\\([^\n]{{1,300}}?\\\)|(?<![\w.])\\?[$€£¥₹]?-?{DIGITS}(?:\s*/\s*\d+)?(?:\s*\\?%)?)"
)
_OR = r"\s*(?:,\s*(?:and|or)?|\(?\b(?:and|or)\b)\s*(?:(?:maybe|possibly|perhaps|else|even)\s+)?"
_SEVERAL = re.compile(rf"(?<![\w.(\[{{]){_ATOM}(?:{_OR}{_ATOM})+")
_SINGLE = re.compile(_ATOM)
_NEGATED = re.compile(rf"(?:,\s*|\b(?:but|and)\s+)?\bnot\s+{_ATOM}")
_MINUS = re.compile(r"(?<!\d\s)\b(?:minus|negative)\s+(?=\d)")
_WORD = re.compile(
    r"(?:^|[\s(])(?!(?:sqrt|sin|cos|tan|log|exp|inf)[^a-z]|infinity|and\b)(?:[A-Za-z]{3,}|(?:so|is|it|of|in|to)\b)"
)
_LEADING_WORDS = re.compile(r"(?:(?:[A-Za-z]{3,}|so|is|it|at|of|in|to)[,:]?\s+)+(?=[\\\d(\[{-])")
_APPROXIMATELY = re.compile(r"\\approx|\\simeq|≈")
_SPACING = re.compile(r"\\left|\\right|\\[,;! ]|[\s$]")
_SET = re.compile(r"\\?\{.*\\?\}", re.DOTALL)


def main() -> None:
    """Answer requests until standard input is closed."""
    import math_verify  # loads sympy, which takes a second

    assert math_verify
    logging.disable(logging.WARNING)  # math-verify warns that its timeouts are off
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    answer_lines(lambda request: is_right(request["response"], request["answers"]))


def is_right(response: str, answers: Sequence[str]) -> bool:
    """Whether the final answer of a response equals one of the accepted answers.

    Raises:
        Exception: if it equals none, and the comparison with one of them failed.
    """
    errors: list[Exception] = []
    for answer in answers:
        try:
            if is_equal(response, answer):
                return True
        except Exception as error:  # sympy raises anything; another answer may still be equal
            errors.append(error)
    if errors:
        raise errors[0]
    return False


def is_equal(response: str, answer: str) -> bool:
    """Whether the final answer of a response is equal to the correct one.

    Raises:
        ValueError: if the correct answer is neither mathematics, words, nor a letter.
        Exception: if math-verify fails.
    """
    response, answer = in_ascii(response), in_ascii(answer)
    expected = final(answer) or next(stated(answer), answer)
    if label := choice(expected):
        letters = stated_letters(response)
        if letters or not label.text:
            return letters == {label.letter}
        expected = label.text
    if len(expected) > MAX_ANSWER:
        raise ValueError(f"the task's answer has more than {MAX_ANSWER} characters")
    if is_words(expected):
        return normal(expected) in map(normal, _candidates(response))
    if not (meanings := _meanings(expected)):
        raise ValueError("the task's answer cannot be read as mathematics")
    final_text, response_meanings = _final_meanings(response)
    return _are_same_kind(final_text, expected) and _is_any_equal(meanings, response_meanings)


def _candidates(response: str) -> list[str]:
    """Return the texts that may be the final answer of a response; the first that can be read counts."""
    marked = final(response)
    if marked is None:
        return list(islice(stated(response), STATEMENTS))
    label = choice(marked)
    return [label.text] if label and label.text else [marked]


def _final_meanings(response: str) -> tuple[str, list[Any]]:
    """Return the final answer of a response, and its mathematics."""
    for text in _candidates(response):
        if meanings := _meanings(text):
            return text, meanings
    if final(response) is not None:
        return "", []
    tail = response[-TAIL:].strip()
    return tail, _meanings(tail, "")


def _meanings(text: str, lead: str = "answer: ") -> list[Any]:
    """Return the mathematics in a text, as sympy's objects; nothing if there is none, or it is false.

    Args:
        lead: What math-verify reads before a text with words. After "answer: " the first expression or the
            one behind the last equals sign counts, otherwise the last expression.
    """
    if len(text) > MAX_ANSWER:
        return []
    text = _MINUS.sub("-", _NEGATED.sub("", text)).strip(" \n*_`")
    if "$" not in text and (words := _LEADING_WORDS.match(text)):
        text = text[words.end() :]
    if (sides := [side for side in _APPROXIMATELY.split(text) if side.strip()])[1:] and not _WORD.search(
        text
    ):
        return _agreeing([_meanings(side) for side in sides])
    several = list(_SEVERAL.finditer(text))
    if several and _WORD.search(text) and not _SINGLE.search(text, several[-1].end()):
        text = ", ".join(atom[0].replace("$", "") for atom in _SINGLE.finditer(several[-1][0]))
    elif _WORD.search(text) and "\\" not in text and not text.isalpha():
        return [link for expression in _read(lead + text) for link in _links(expression)]
    return [link for expression in _read(in_latex(text)) for link in _links(expression)]


def _read(text: str) -> list[Any]:
    from math_verify import parse

    parsed: list[Any] = parse(text, parsing_timeout=None, raise_on_error=True)
    # Parts that it cannot read are returned as texts.
    return [expression for expression in parsed if not isinstance(expression, str)]


def _links(meaning: Any) -> list[Any]:
    """Return the sides of a chain of numbers, such as 1/2 = 0.5; nothing if it is false, such as 3 = 7."""
    from latex2sympy2_extended.logic import And
    from sympy import Eq, Expr, Symbol

    equations = meaning._unsorted_args if isinstance(meaning, And) else [meaning]
    if not all(isinstance(equation, Eq) for equation in equations):
        return [meaning]
    sides = [equations[0].lhs, *(equation.rhs for equation in equations)]
    numbers = [side for side in sides if isinstance(side, Expr) and not side.free_symbols]
    if not all(_is_near(*pair, exact=True) for pair in pairwise(numbers)):
        return []
    if numbers == sides:
        return numbers
    if isinstance(sides[0], Symbol) and numbers == sides[1:]:
        return [Eq(sides[0], number, evaluate=False) for number in numbers]
    return [meaning]


def _agreeing(sides: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the numbers on the sides of approximate equations; nothing if they are further apart."""
    from sympy import Expr

    numbers = [
        number for side in sides for number in side if isinstance(number, Expr) and not number.free_symbols
    ]
    return numbers if all(_is_near(*pair, exact=False) for pair in pairwise(numbers)) else []


def _is_near(first: Any, second: Any, exact: bool) -> bool:
    """Whether two numbers are equal, up to the last decimal of one that is rounded."""
    from sympy import Float, Integer

    error = 1e-9
    for number in (first, second):
        if isinstance(number, Float):
            error = max(error, 10.0 ** -len(f"{float(number):.15g}".partition(".")[2]))
        elif isinstance(number, Integer) and not exact:
            error = 1.0
    return bool(abs((first - second).doit().evalf()) <= error * 1.000001)


def _are_same_kind(first: str, second: str) -> bool:
    """Whether not one of two texts is written as a set and the other as a tuple, a point or an interval."""
    kinds = set()
    for text in (first, second):
        text = _SPACING.sub("", text)
        kinds |= {"set"} if _SET.fullmatch(text) else {"tuple"} if _is_tuple(text) else set()
    return len(kinds) < 2


def _is_tuple(text: str) -> bool:
    """Whether one pair of brackets encloses a whole text with commas."""
    depths = list(accumulate((character in "([") - (character in ")]") for character in text))
    return "," in text and bool(depths) and depths[-1] == 0 and 0 not in depths[:-1]


def _is_any_equal(answer_meanings: Sequence[Any], response_meanings: Sequence[Any]) -> bool:
    """Whether any two meanings are equal.

    Raises:
        Exception: if none are, and math-verify failed to compare two.
    """
    from math_verify import verify

    errors: list[Exception] = []
    pairs = list(product(answer_meanings, response_meanings))
    for answer, response in pairs + [changed for pair in pairs if (changed := _with_i(*pair)) != pair]:
        try:
            if verify(
                answer, response, timeout_seconds=None, raise_on_error=True, allow_set_relation_comp=True
            ):
                return True
        except Exception as error:  # sympy raises anything; another meaning may still be equal
            errors.append(error)
    if errors:
        raise errors[0]
    return False


def _with_i(*pair: Any) -> tuple[Any, ...]:
    """Replace a variable i with the imaginary unit."""
    from sympy import Basic, I

    return tuple(
        meaning.xreplace({name: I for name in meaning.free_symbols if name.name == "i"})
        if isinstance(meaning, Basic)
        else meaning
        for meaning in pair
    )


if __name__ == "__main__":
    main()
