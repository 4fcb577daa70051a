"""The process that compares answers by their mathematical meaning, with math-verify, one after another.

`pool.py` starts it. A comparison may hang inside sympy, or take all memory. So math-verify's own limits of
time, which work by signals inside Python, are off: `pool.py` kills this process, or the kernel does if the
processor is gone. What cannot be compared is an error, and never a wrong answer.
"""

import logging
import re
import resource
from itertools import product
from typing import Any

from trinity_db.processors.children.lines import answer_lines

MEMORY_BYTES = 4 << 30  # of addresses; a tower of powers would take all that there is

# Braces up to three deep, as in \boxed{\frac{1}{\sqrt{2}}}.
_BRACED = r"\{(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*\}"
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?P<content>" + _BRACED + r"|(?<=boxed) [^\s{$\\.,]+)")
# Between two boxes of one answer, as in \boxed{1} and \boxed{2}.
_JOINT = re.compile(r"[\s$,;]*(?:and|or|\\text\s*\{\s*(?:and|or)\s*\})?[\s$,;]*(?:[a-zA-Z]\s*=\s*)?")
_MARK = re.compile(r"(?<!\\)\$|\\\(|\\\[|\\boxed|\\fbox|\\begin\{(?:equation|align)")
_SENTENCE = re.compile(r"\d\s+[a-z]{2,}")  # a number with words behind it
_TEXT = re.compile(r"\\(?:text|mathrm|textbf)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[a-z][a-z ]+")
_SIGNS = {
    "−": "-",
    "–": "-",
    "×": r"\times ",
    "·": r"\cdot ",
    "÷": r"\div ",
    "π": r"\pi ",
    "∞": r"\infty ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "°": r"^\circ ",
    "∅": r"\emptyset ",
    "±": r"\pm ",
    "²": "^2",
    "³": "^3",
    "½": r"\frac{1}{2}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
    "<=": r"\le ",
    ">=": r"\ge ",
    "!=": r"\ne ",
    "**": "^",
}
_PLAIN = [
    (re.compile(r"(?<=\d)\\[,!;](?=\d{3})"), ""),
    (re.compile(r"√\s*(\d+|[a-z]|\([^()]*\))"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\a-zA-Z])(pi|sin|cos|tan|ln|log|exp)(?![a-zA-Z])"), r"\\\1 "),
    (re.compile(r"(?<![\\a-zA-Z])(?:infinity|infty|inf|oo)(?![a-zA-Z])"), r"\\infty "),
    (re.compile(r"(?<![\\a-zA-Z])U(?![a-zA-Z])(?=\s*[\[(])"), r"\\cup "),
    (re.compile(r"\^\s*(-?\d+|\(-?[\w/]+\))"), r"^{\1}"),
    (re.compile(r"(?<=\d)\s*[eE]([+-]?\d+)\b"), r"\\times 10^{\1}"),
    (re.compile(r"(?<![\d.^])(\d+)\s+(\d+)\s*/\s*(\d+)(?!\d)"), r"\1\\frac{\2}{\3}"),
    (re.compile(r"^\{(.*)\}$"), r"\\{\1\\}"),
]
"""How answers are written without LaTeX, and the same in LaTeX."""


def main() -> None:
    """Answer until standard input ends."""
    import math_verify  # loads sympy, which takes a second

    assert math_verify
    logging.disable(logging.WARNING)  # that limits of time are off
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    answer_lines(lambda asked: is_equal(asked["response"], asked["answer"]))


def is_equal(response: str, answer: str) -> bool:
    """Whether the final answer of a response means the same as the right one.

    Raises:
        ValueError: the right answer is no mathematics.
        Exception: math-verify cannot tell.
    """
    from math_verify import verify

    wanted = _read(final(answer) or _in_latex(answer))
    if not wanted:
        raise ValueError("the task's answer cannot be read as mathematics")
    errors: list[Exception] = []
    pairs = list(product(wanted, _read(final(response) or response)))
    for one, other in pairs + [changed for pair in pairs if (changed := _with_i(*pair)) != pair]:
        try:
            if verify(
                one, other, timeout_seconds=None, raise_on_error=True, allow_set_relation_comp=True
            ) or _is_same_text(one, other):
                return True
        except Exception as error:  # sympy raises anything; another reading may still be equal
            errors.append(error)
    if errors:
        raise errors[0]
    return False


def final(text: str) -> str | None:
    """What a text marks as its final answer, as LaTeX: its last boxes, or what is behind the last ####."""
    boxes = list(_BOX.finditer(text))
    if boxes:
        start = len(boxes) - 1
        while start and _JOINT.fullmatch(text[boxes[start - 1].end() : boxes[start].start()]):
            start -= 1
        contents = [box["content"].removeprefix("{").removesuffix("}") for box in boxes[start:]]
        return _in_latex(", ".join(contents))
    if "####" in text:
        behind = text.rpartition("####")[2].strip()
        line = behind.splitlines()[0] if behind else ""
        return line if _SENTENCE.search(line) else _in_latex(line)
    return None


def _in_latex(text: str) -> str:
    """An answer as mathematics in a box."""
    text = text.strip()
    if _MARK.search(text):
        return text
    for sign, latex in _SIGNS.items():
        text = text.replace(sign, latex)
    for pattern, latex in _PLAIN:
        text = pattern.sub(latex, text)
    return rf"\boxed{{{text.rstrip('.')}}}"


def _read(text: str) -> list[Any]:
    from math_verify import parse

    found: list[Any] = parse(text, parsing_timeout=None, raise_on_error=True)
    return found


def _with_i(*both: Any) -> tuple[Any, ...]:
    """The same with the imaginary unit in place of a variable i."""
    from sympy import Basic, I

    return tuple(
        one.xreplace({name: I for name in one.free_symbols if name.name == "i"})
        if isinstance(one, Basic)
        else one
        for one in both
    )


def _is_same_text(one: Any, other: Any) -> bool:
    """Whether both are words, and the same ones, as Yes and \\text{yes}."""
    words = [_TEXT.sub(r"\1", str(said)).strip(" .").lower() for said in (one, other)]
    return words[0] == words[1] and bool(_WORDS.fullmatch(words[0]))


if __name__ == "__main__":
    main()
