"""Plain notations of mathematics, and their LaTeX."""

import re
from collections.abc import Callable

_FORMULA = re.compile(r"(?<!\\)\$|\\\(|\\\[|\\boxed|\\fbox|\\begin\{(?:equation|align)")
_DELIMITED = re.compile(r"\$\$(.+)\$\$|\$([^$]+)\$|\\\[(.+)\\\]|\\\(((?:(?!\\\)).)+)\\\)", re.DOTALL)
_SIGNS = {
    "×": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "÷": r"\div ",
    "π": r"\pi ",
    "∞": r"\infty ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "≈": r"\approx ",
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


def _fraction(decimal: re.Match[str]) -> str:
    """Return a repeating decimal, such as 0.1\\overline{6}, as a fraction."""
    fixed, repeated = decimal[2], decimal[3]
    number = int(decimal[1] + fixed + repeated) - int(decimal[1] + fixed)
    return rf"\frac{{{number}}}{{{'9' * len(repeated)}{'0' * len(fixed)}}}"


_NOTATIONS: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"\\text\s*\{\s*\\?[$€£¥₹₩]\s*\}"), ""),
    (re.compile(r"(\d{1,99})\.(\d{0,99})\\overline\s*\{\s*(\d{1,99})\s*\}"), _fraction),
    (re.compile(r"\\?[$€£¥₹₩](?=\s*-?[\d.])|(?<=\d)\s*[€£¥₹₩]"), ""),
    (re.compile(r"(?<=\d)\\[,!;](?=\d{3})"), ""),
    (re.compile(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?!\d)"), lambda groups: groups[0].replace(" ", "")),
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
"""Plain notations of answers, and their LaTeX replacements."""


def in_latex(text: str) -> str:
    """Return an answer as boxed LaTeX; text with formulas in it unchanged."""
    text = text.strip()
    if whole := _DELIMITED.fullmatch(text.rstrip(".")):
        text = next(filter(None, whole.groups())).strip()
    if text.count("$") > 1 or _FORMULA.search(text.replace("$", "")):
        return text
    for sign, latex in _SIGNS.items():
        text = text.replace(sign, latex)
    for pattern, replacement in _NOTATIONS:
        text = pattern.sub(replacement, text)
    return rf"\boxed{{{text.rstrip('.')}}}"
