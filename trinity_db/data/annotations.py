"""Verdicts from Label Studio or Argilla: export of open reviews as JSON, and import of the verdicts.

Label Studio: the format on its page "Label Studio JSON format of annotated tasks". Argilla 2: the records of
`dataset.records.to_json` and `from_json`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity_db.errors import ImportFileError
from trinity_db.schema.states import LabelState
from trinity_db.store.verdicts import PersonVerdict

GOOD_OR_BAD = {"good": 1, "bad": 0}
BETTER = {"A": 1, "B": -1, "tie": 0, "left": 1, "right": -1}
"""Words of verdicts on a pair. Label Studio's tag Pairwise uses left for A, the first one, and right."""
Words = Mapping[str, int]
STATES = {"submitted": LabelState.SUBMITTED, "discarded": LabelState.DISCARDED}


@dataclass(frozen=True)
class FileVerdict:
    """A verdict read from a file."""

    location: str
    """Location in the file, for messages."""
    review_id: int
    author: str
    verdict: PersonVerdict
    swapped: bool | None
    """Whether A is the second row of the pair; None for a single row."""


def swapped(review_id: int) -> bool:
    """Whether an export shows the second row of a pair as A: pseudo-random, and the same in each export."""
    # A multiplicative hash (Knuth), whose highest bit changes without a pattern from id to id.
    return bool(review_id * 2654435761 >> 31 & 1)


def write(reviews: Sequence[Mapping[str, Any]], run: str, form: str, only_ascii: bool = False) -> str:
    """Write reviews as JSON for label_studio or argilla.

    Args:
        only_ascii: Whether the output may be a terminal, which must not interpret control characters in
            texts.
    """
    shown = [_shown(review, run) for review in reviews]
    if form == "label_studio":
        made: list[dict[str, Any]] = [{"data": fields | about} for fields, about in shown]
    else:
        made = [
            {
                "id": f"review-{about['review']}",
                "fields": fields,
                "metadata": about,
                "suggestions": {},
                "responses": {},
                "vectors": {},
            }
            for fields, about in shown
        ]
    text = json.dumps(made, ensure_ascii=only_ascii, indent=1)
    return text.replace("\x7f", "\\u007f") if only_ascii else text


def _shown(review: Mapping[str, Any], run: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the displayed texts of a review, and metadata that identifies it in the import."""
    about: dict[str, Any] = {"review": review["review_id"], "run": run, "name": review["name"]}
    prompt, first = review["prompt"] or "", review["response"] or ""
    if review["other_id"] is None:
        return {"prompt": prompt, "response": first}, about
    pair = [first, review["other_response"] or ""]
    if swapped(review["review_id"]):
        pair.reverse()
    # Text, since Argilla's metadata has no booleans.
    about["order"] = "swapped" if swapped(review["review_id"]) else "as stored"
    return {"prompt": prompt, "response_a": pair[0], "response_b": pair[1]}, about


def read(path: Path) -> list[FileVerdict]:
    """Read the verdicts in a file of either program; the last one per person and review.

    Raises:
        ImportFileError: if it cannot be read, belongs to neither program, or has an invalid verdict; with its
            location.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ImportFileError(f"{path}: cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ImportFileError(f"{path}: is not JSON: {error}.") from None
    if not isinstance(content, list) or not content or not all(isinstance(entry, dict) for entry in content):
        raise ImportFileError(f"{path}: give a list of tasks of Label Studio or of records of Argilla.")
    try:
        verdicts = [verdict for number, entry in enumerate(content) for verdict in _entry(number, entry)]
    except _Unfit as error:
        raise ImportFileError(f"{path}: {error}.") from None
    return list({(verdict.review_id, verdict.author): verdict for verdict in verdicts}.values())


class _Unfit(Exception):
    """The mistake in an entry, with its location."""


def _entry(number: int, entry: Mapping[str, Any]) -> Iterator[FileVerdict]:
    read: Callable[[str, Mapping[str, Any], Words], Iterator[tuple[str, str, PersonVerdict]]]
    if "annotations" in entry:
        location, about, read = f"task {number}", entry.get("data"), _of_label_studio
    elif "responses" in entry:
        location, about, read = f"record {number}", entry.get("metadata"), _of_argilla
    else:
        raise _Unfit(
            f"entry {number} has no 'annotations' as a task of Label Studio has, and no 'responses' as a "
            "record of Argilla has"
        )
    if not isinstance(about, dict) or type(about.get("review")) is not int:
        raise _Unfit(f"{location} does not name its review: export it with trinity-db label RUN --export")
    order = about.get("order")
    if order not in (None, "swapped", "as stored"):
        raise _Unfit(f"{location} has the order {order!r:.80}; an export has swapped or as stored")
    side = None if order is None else order == "swapped"
    words = GOOD_OR_BAD if side is None else BETTER
    for where, author, verdict in read(location, entry, words):
        yield FileVerdict(where, about["review"], author, verdict, side)


def _of_label_studio(
    location: str, task: Mapping[str, Any], words: Words
) -> Iterator[tuple[str, str, PersonVerdict]]:
    for number, annotation in enumerate(_list(task["annotations"], location, "annotations")):
        where = f"{location}, annotation {number}"
        seconds = annotation.get("lead_time")
        if not (seconds is None or (isinstance(seconds, int | float) and 0 <= seconds < 1e9)):
            raise _Unfit(f"{where} has the lead_time {seconds!r:.80}, which is not a number of seconds")
        by = annotation.get("completed_by")
        by = by.get("email") or by.get("id") if isinstance(by, dict) else by
        if isinstance(by, bool) or not isinstance(by, int | str) or not str(by).strip():
            raise _Unfit(f"{where} does not name its annotator (completed_by)")
        author = by.strip() if isinstance(by, str) else f"label_studio:{by}"
        if annotation.get("was_cancelled"):
            yield where, author, PersonVerdict(LabelState.DISCARDED, seconds=seconds)
            continue
        values = [
            value
            for item in _list(annotation.get("result"), where, "result")
            for value in _values(item.get("value"))
        ]
        if len(values) != 1:
            raise _Unfit(f"{where} has {len(values)} verdicts in place of one")
        yield where, author, PersonVerdict(LabelState.SUBMITTED, _number(values[0], words, where), seconds)


def _values(value: Any) -> Iterator[Any]:
    """Yield the values of a Label Studio control with the tag Choices, Pairwise, Rating or Number."""
    if isinstance(value, dict):
        choices = value.get("choices")
        yield from choices if isinstance(choices, list) else ()
        yield from (value[key] for key in ("selected", "rating", "number") if key in value)


def _of_argilla(
    location: str, record: Mapping[str, Any], words: Words
) -> Iterator[tuple[str, str, PersonVerdict]]:
    responses = record["responses"]
    if not isinstance(responses, dict) or len(responses) > 1:
        raise _Unfit(f"{location} has responses to {len(responses)} questions in place of one")
    for question, answers in responses.items():
        for number, answer in enumerate(_list(answers, location, f"responses to {question!r:.80}")):
            where = f"{location}, response {number}"
            user = answer.get("user_id")
            if not isinstance(user, str) or not user.strip() or user == "None":
                raise _Unfit(f"{where} does not name its annotator (user_id)")
            # Argilla's own export omits the status
            state = STATES.get(answer.get("status", "submitted"))
            if state is None:  # a draft
                continue
            value = None
            if state == LabelState.SUBMITTED:
                value = _number(answer.get("value"), words, where)
            yield where, f"argilla:{user.strip()}", PersonVerdict(state, value)


def _list(value: Any, location: str, key: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise _Unfit(f"{location} has no list of objects under {key}")
    return value


def _number(answer: Any, words: Words, location: str) -> int:
    """Return the value of a verdict: a word, or an integer grade, also as text."""
    if isinstance(answer, str) and answer in words:
        return words[answer]
    try:
        grade = float(answer) if isinstance(answer, str | int | float) else None
    except (ValueError, OverflowError):
        grade = None
    if grade is None or not -100 <= grade <= 100 or grade != int(grade):
        raise _Unfit(f"{location} has the verdict {answer!r:.80}; take {', '.join(words)} or a whole grade")
    return int(grade)
