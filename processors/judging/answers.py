"""Reads marks out of what a judge writes: JSON alone, in a fence of code, or in the middle of text.

It guesses nothing. A mark of another type, out of its scale or missing, or two different answers, is no
answer: the row is asked about again, and fails in the end. It never gets a mark that the judge did not give.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trinity_db.processors.judging.rubric import Criterion, Rubric

MAX_CHARACTERS = 200_000
THOUGHTS = "<think>", "</think>"


class Unreadable(ValueError):
    """An answer that holds no marks; the text says why."""


@dataclass(frozen=True)
class Mark:
    """What a judge says by a criterion."""

    value: float
    words: str | None


def read(text: str, rubric: Rubric) -> dict[str, Mark]:
    """The mark by each criterion.

    Raises:
        Unreadable: it is not there.
    """
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"it has more than {MAX_CHARACTERS:,} characters")
    begin, end = THOUGHTS
    if text.lstrip().startswith(begin):
        text = text.partition(end)[2]
    names = {one.name for one in rubric.criteria}
    found = [one for one in _objects(text) if names & one.keys()]
    if not found:
        raise Unreadable(f"it holds no JSON object with the criteria: {' '.join(text.split())!r:.200}")
    if any(one != found[0] for one in found):
        raise Unreadable("it holds several JSON objects with different marks")
    return {one.name: _mark(found[0], one) for one in rubric.criteria}


def _mark(found: dict[str, Any], criterion: Criterion) -> Mark:
    if criterion.name not in found:
        raise Unreadable(f"the criterion '{criterion.name}' is missing")
    mark: Any = found[criterion.name]
    words: Any = None
    if isinstance(mark, dict):
        mark, words = mark.get("mark"), mark.get("words")
    if (why := criterion.fault(mark)) is not None:
        raise Unreadable(why)
    return Mark(float(mark), words if isinstance(words, str) else None)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Every JSON object in a text that is in no other one."""
    decoder = json.JSONDecoder(object_pairs_hook=_once)
    place = 0
    while (place := text.find("{", place)) >= 0:
        try:
            found, place = decoder.raw_decode(text, place)
        except RecursionError:
            raise Unreadable("its JSON is nested too deeply") from None
        except Unreadable:
            raise
        except ValueError:
            place += 1
            continue
        yield found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Unreadable("a key of its JSON stands there twice")
    return found
