"""Letters of multiple choice, A to J, in answers and responses."""

import re
from dataclasses import dataclass

from trinity_db.processors.answers.final import MAX_TEXT, final, stated

_MARKUP = re.compile(
    r"\\(?:text|textbf|textit|mathrm|mathbf|mathsf|bf|rm|quad)(?![a-z])|\\[(),;:\[\] ]|[${}*_`~]"
)
_LABEL = re.compile(r"(?:[(\[]([A-J])[)\]]\s*[.:,-]?|([A-J])(?:[).:](?!\w)|\s*\Z))\s*(?P<text>.*)", re.DOTALL)
# Words that may precede a letter in a statement, and what may follow it. A and I are words of their own.
_BEFORE = re.compile(
    r"(?:(?:but|therefore|thus|clearly|likely|either|both|option|choice|answer|letter)[\s:,]*)+", re.I
)
_LOOSE = re.compile(
    r"([A-J])(?:(?=[,;/&-])|(?=\s+(?:because|since|as|or|and|is|which|for)\b)|(?<![AI])(?=\s+\S))"
)
_ONLY_LETTERS = re.compile(r"(?:[A-J\W]|\b(?:or|and|not)\b)+")
_SINGLE = re.compile("[A-J]")
_NEGATED = re.compile(r"\b(?:not|n't|isn't)\s+[(\[]?[A-J](?![A-Za-z])[)\]]?")
_ANOTHER = re.compile(r"\b(?:or|and)\s+[(\[]?([A-J])(?![A-Za-z])")
_ROUND = re.compile(r"\(([A-J])\)")
_VERDICT = re.compile(
    r"(?:(?<![A-Za-z(])|\()([A-J])\)?\s+is\s+(?:the\s+)?(?:correct|right|best|answer)\b"
    r"|\b(?:correct|right|best)\s+(?:option|choice)\s*(?:is|:)\s*\(?([A-J])(?![A-Za-z'])"
    r"|\b(?:choose|pick|select|go with)\s+(?:option\s+|choice\s+|answer\s+)?\(?([A-J])(?![A-Za-z'])"
)
_SENTENCE_END = re.compile(r"[.!?]\s")
_DENIED = re.compile(
    r"\b(?:not|cannot|wrong|incorrect|eliminate|eliminated|except|false)\b|n't\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Choice:
    """A letter, and the text of its choice if that is given."""

    letter: str
    text: str


def choice(answer: str) -> Choice | None:
    """Return the letter with which an answer begins, such as C, (C) 12 or C: the heart; None without one."""
    label = _LABEL.fullmatch(_plain(answer))
    return Choice(label[1] or label[2], label["text"]) if label else None


def stated_letters(response: str) -> set[str]:
    """Return the letters that a response states as its final answer; several if it hedges."""
    marked = final(response)
    if marked is not None:
        return _letters(marked)
    for clause in stated(response):
        if letters := _letters(clause) or set(_ROUND.findall(_NEGATED.sub("", clause))):
            return letters
    text = _plain(response[-MAX_TEXT:])
    if verdicts := _VERDICT.findall(text):
        return {"".join(verdicts[-1])}
    labels = {label.letter for line in text.splitlines() if (label := choice(line))}
    if labels:
        return labels if len(labels) == 1 else set()
    sentence = _SENTENCE_END.split(text)[-1]
    return set() if _DENIED.search(sentence) else set(_ROUND.findall(sentence))


def _letters(statement: str) -> set[str]:
    """Return the letters that a statement consists of or begins with."""
    text = _NEGATED.sub("", _plain(statement)).strip(" ,")
    if before := _BEFORE.match(text):
        text = text[before.end() :]
    if len(letter := text.strip("().")) == 1:
        text = letter.upper()
    if _ONLY_LETTERS.fullmatch(text):
        return set(_SINGLE.findall(text))
    if label := _LABEL.fullmatch(text) or _LOOSE.match(text):
        return {next(filter(None, label.groups()[:2])), *_ANOTHER.findall(text)}
    return set()


def _plain(text: str) -> str:
    """Remove LaTeX's and Markdown's markup of text."""
    return _MARKUP.sub("", text).strip()
