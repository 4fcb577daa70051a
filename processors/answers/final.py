"""Finds the final answer that a response, or a task's solution, states."""

import re
from collections.abc import Iterator

from trinity_db.processors.answers.numbers import after_mark

MAX_TEXT = 10_000  # characters at the end of a text that are searched for statements
MAX_CLAUSE = 1000

_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s*(?P<brace>\{)|[ ]+(?P<bare>[^\s{$\\.,]+))")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# Text between two boxes of one answer, such as \boxed{1} and \boxed{2}.
_JOINT = re.compile(r"[\s$,;()]*+(?:and|or|\\text\s*\{\s*(?:and|or)\s*\})?[\s$,;()]*+(?:[a-zA-Z]\s*=\s*)?")
_STATED = re.compile(
    r"(?:\b(?:answer|ans)\b|\bA(?=:)|答案)[*_`\"'’)#\s]*"
    r"(?:(?:to|for|of)\b[^\n.:=]{0,100}?\s)?"
    r"(?:(?:is|are|was|equals?|(?:would|must|should|will)\s+be|be)\b|[=:]|是|为|(?<=[\s*])\n)"
    r"[*_`\s]*:?[*_`\s]*",
    re.IGNORECASE,
)
_END = re.compile(
    r"\$\$[^$]*\$\$|\\\[.*?\\\]|\$[^$\n]*\$|\\\(.*?\\\)"  # formulas: no end
    r"|(?P<end>[.!?](?=[\s*]|$)|[\n;]|\b(?:because|since|which|where|so)\b|,\s(?!\s*(?:and|or)\b)(?=\s*[a-z]{2}))",
    re.DOTALL | re.IGNORECASE,
)
_MONEY = re.compile(r"\$(?=\d[\d,.]*\s*(?:,|or|and)\s*\$\d)|(?<=or\s)\$(?=\d[\d,.]*(?![\d$]))")


def final(text: str) -> str | None:
    """Return the marked final answer of a text.

    It is the content of the last `\\boxed{}`, or of several in a row; or else the line after the last `####`;
    each only within the last `<answer>…</answer>` if there is one; or else all of that. It is empty if the
    last box does not end.

    Returns:
        None if nothing is marked.
    """
    _, tagged, rest = text.rpartition("<answer>")
    inner = rest.partition("</answer>")[0] if tagged else text
    if (boxes := _boxes(inner)) is not None:
        return boxes
    if "####" in inner:
        return after_mark(inner, "####").strip()
    return inner.strip() if tagged else None


def stated(text: str) -> Iterator[str]:
    """Yield what follows "The answer is" or the like, until the end of its clause; the last one first."""
    text = text[-MAX_TEXT:]
    for opening in reversed(list(_STATED.finditer(text))):
        if clause := _clause(text[opening.end() : opening.end() + MAX_CLAUSE]):
            yield clause


def _clause(text: str) -> str:
    text = _MONEY.sub("", text)
    ends = (mark.start() for mark in _END.finditer(text) if mark["end"])
    return text[: next(ends, len(text))].strip(" \t*_`")


def _boxes(text: str) -> str | None:
    contents: list[str] = []
    start = len(text)
    for box in reversed(list(_BOX.finditer(text))):
        end = _closing(text, box.end()) if box["brace"] else box.end()
        if not contents:
            if end is None:
                return ""
        elif end is None or end > start or not _JOINT.fullmatch(text, end, start):
            break
        contents.append(box["bare"] or text[box.end() : end - 1])
        start = box.start()
    return ", ".join(reversed(contents)) if contents else None


def _closing(text: str, start: int) -> int | None:
    """Return the position behind the brace that closes one opened before `start`; None if none does."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.end()
    return None
