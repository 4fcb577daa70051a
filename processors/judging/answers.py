"""Parses marks from a judge's answer: plain JSON, JSON in a code fence, or JSON within text.

Nothing is guessed. If a mark has the wrong type, is out of range or missing, or two answers differ, the
question is retried, and finally the row fails. A row never gets a mark that the judge did not give.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trinity_db.models.chat.thoughts import split
from trinity_db.processors.judging.rubric import Criterion, Rubric

MAX_CHARACTERS = 200_000


class Unreadable(ValueError):
    """An answer without valid marks; the message has the reason."""


@dataclass(frozen=True)
class Mark:
    """A judge's mark for one criterion."""

    value: float
    words: str | None


def read(text: str, rubric: Rubric) -> dict[str, Mark]:
    """Return the mark for each criterion.

    Raises:
        Unreadable: if the marks are missing or invalid.
    """
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"it has more than {MAX_CHARACTERS:,} characters")
    _, text = split(text)
    names = {criterion.name for criterion in rubric.criteria}
    marks = [candidate for candidate in _objects(text) if names & candidate.keys()]
    if not marks:
        raise Unreadable(f"it contains no JSON object with the criteria: {' '.join(text.split())!r:.200}")
    if any(candidate != marks[0] for candidate in marks):
        raise Unreadable("it contains several JSON objects with different marks")
    return {criterion.name: _mark(marks[0], criterion) for criterion in rubric.criteria}


def _mark(marks: dict[str, Any], criterion: Criterion) -> Mark:
    if criterion.name not in marks:
        raise Unreadable(f"the criterion '{criterion.name}' is missing")
    mark: Any = marks[criterion.name]
    words: Any = None
    if isinstance(mark, dict):
        mark, words = mark.get("mark"), mark.get("words")
    if (why := criterion.fault(mark)) is not None:
        raise Unreadable(why)
    return Mark(float(mark), words if isinstance(words, str) else None)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield each outermost JSON object in a text."""
    decoder = json.JSONDecoder(object_pairs_hook=_once)
    position = 0
    while (position := text.find("{", position)) >= 0:
        try:
            parsed, position = decoder.raw_decode(text, position)
        except RecursionError:
            raise Unreadable("its JSON is nested too deeply") from None
        except Unreadable:
            raise
        except ValueError:
            position += 1
            continue
        yield parsed


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    parsed = dict(pairs)
    if len(parsed) < len(pairs):
        raise Unreadable("its JSON repeats a key")
    return parsed
