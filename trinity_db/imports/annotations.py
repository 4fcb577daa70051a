"""Verdicts that people give in Label Studio or Argilla: open reviews go out as JSON, and verdicts come back.

Label Studio: the JSON of annotated tasks, as its page "Label Studio JSON format of annotated tasks" has it.
Argilla 2: the records of `dataset.records.to_json`, and those of `from_json`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity_db.errors import ImportFileError
from trinity_db.schema.states import LabelState
from trinity_db.store.verdicts import Verdict

GOOD_OR_BAD = {"good": 1, "bad": 0}
BETTER = {"A": 1, "B": -1, "tie": 0, "left": 1, "right": -1}
"""What is said of a pair. The tag Pairwise of Label Studio says left for A, which stands first, and right."""
Words = Mapping[str, int]
STATES = {"submitted": LabelState.SUBMITTED, "discarded": LabelState.DISCARDED}


@dataclass(frozen=True)
class Given:
    """A verdict in a file."""

    place: str
    """Where it stands, for messages."""
    review_id: int
    author: str
    verdict: Verdict
    swapped: bool | None
    """Whether A is the second row of the pair; None: it is one row."""


def swapped(review_id: int) -> bool:
    """Whether an export shows the second row of a pair as A: by lot, and the same in each export."""
    # A multiplicative hash (Knuth); its highest bit changes from one id to the next without a pattern.
    return bool(review_id * 2654435761 >> 31 & 1)


def write(reviews: Sequence[Mapping[str, Any]], run: str, form: str, only_ascii: bool = False) -> str:
    """Reviews as JSON that the other program imports: label_studio or argilla.

    Args:
        only_ascii: Whether a terminal may get it, which must not obey what the texts hold.
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
    """What people see of a review, and what tells it when it comes back."""
    about: dict[str, Any] = {"review": review["review_id"], "run": run, "name": review["name"]}
    prompt, first = review["prompt"] or "", review["response"] or ""
    if review["other_id"] is None:
        return {"prompt": prompt, "response": first}, about
    pair = [first, review["other_response"] or ""]
    if swapped(review["review_id"]):
        pair.reverse()
    # A text, since Argilla's metadata has no booleans.
    about["order"] = "swapped" if swapped(review["review_id"]) else "as stored"
    return {"prompt": prompt, "response_a": pair[0], "response_b": pair[1]}, about


def read(path: Path) -> list[Given]:
    """The verdicts in a file of either program; of a person and a review the last one.

    Raises:
        ImportFileError: it cannot be read, is of neither program, or has a verdict that says nothing; with
            its place.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ImportFileError(f"{path}: cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ImportFileError(f"{path}: is no JSON: {error}.") from None
    if not isinstance(content, list) or not content or not all(isinstance(one, dict) for one in content):
        raise ImportFileError(f"{path}: give a list of tasks of Label Studio or of records of Argilla.")
    try:
        found = [given for number, entry in enumerate(content) for given in _entry(number, entry)]
    except _Unfit as error:
        raise ImportFileError(f"{path}: {error}.") from None
    return list({(given.review_id, given.author): given for given in found}.values())


class _Unfit(Exception):
    """What is wrong with an entry, and where."""


def _entry(number: int, entry: Mapping[str, Any]) -> Iterator[Given]:
    read: Callable[[str, Mapping[str, Any], Words], Iterator[tuple[str, str, Verdict]]]
    if "annotations" in entry:
        place, about, read = f"task {number}", entry.get("data"), _of_label_studio
    elif "responses" in entry:
        place, about, read = f"record {number}", entry.get("metadata"), _of_argilla
    else:
        raise _Unfit(
            f"entry {number} has no 'annotations' as a task of Label Studio has, and no 'responses' as a "
            "record of Argilla has"
        )
    if not isinstance(about, dict) or type(about.get("review")) is not int:
        raise _Unfit(f"{place} does not say which review it is: export it by trinity-db label RUN --export")
    order = about.get("order")
    if order not in (None, "swapped", "as stored"):
        raise _Unfit(f"{place} has the order {order!r:.80}; an export says swapped, or as stored")
    side = None if order is None else order == "swapped"
    words = GOOD_OR_BAD if side is None else BETTER
    for where, author, verdict in read(place, entry, words):
        yield Given(where, about["review"], author, verdict, side)


def _of_label_studio(place: str, task: Mapping[str, Any], words: Words) -> Iterator[tuple[str, str, Verdict]]:
    for number, annotation in enumerate(_list(task["annotations"], place, "annotations")):
        where = f"{place}, annotation {number}"
        seconds = annotation.get("lead_time")
        if not (seconds is None or (isinstance(seconds, int | float) and 0 <= seconds < 1e9)):
            raise _Unfit(f"{where} has the lead_time {seconds!r:.80}, which is no number of seconds")
        by = annotation.get("completed_by")
        by = by.get("email") or by.get("id") if isinstance(by, dict) else by
        if isinstance(by, bool) or not isinstance(by, int | str) or not str(by).strip():
            raise _Unfit(f"{where} does not say who completed it (completed_by)")
        author = by.strip() if isinstance(by, str) else f"label_studio:{by}"
        if annotation.get("was_cancelled"):
            yield where, author, Verdict(LabelState.DISCARDED, seconds=seconds)
            continue
        values = [
            value
            for item in _list(annotation.get("result"), where, "result")
            for value in _values(item.get("value"))
        ]
        if len(values) != 1:
            raise _Unfit(f"{where} has {len(values)} verdicts in place of one")
        yield where, author, Verdict(LabelState.SUBMITTED, _number(values[0], words, where), seconds)


def _values(value: Any) -> Iterator[Any]:
    """What one control of Label Studio says: of the tags Choices, Pairwise, Rating or Number."""
    if isinstance(value, dict):
        choices = value.get("choices")
        yield from choices if isinstance(choices, list) else ()
        yield from (value[key] for key in ("selected", "rating", "number") if key in value)


def _of_argilla(place: str, record: Mapping[str, Any], words: Words) -> Iterator[tuple[str, str, Verdict]]:
    responses = record["responses"]
    if not isinstance(responses, dict) or len(responses) > 1:
        raise _Unfit(f"{place} has responses to {len(responses)} questions in place of one")
    for question, answers in responses.items():
        for number, answer in enumerate(_list(answers, place, f"responses to {question!r:.80}")):
            where = f"{place}, response {number}"
            user = answer.get("user_id")
            if not isinstance(user, str) or not user.strip() or user == "None":
                raise _Unfit(f"{where} does not say whose it is (user_id)")
            # Its own export leaves the status out.
            state = STATES.get(answer.get("status", "submitted"))
            if state is None:  # a draft
                continue
            value = None
            if state == LabelState.SUBMITTED:
                value = _number(answer.get("value"), words, where)
            yield where, f"argilla:{user.strip()}", Verdict(state, value)


def _list(value: Any, place: str, what: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise _Unfit(f"{place} has no list of objects under {what}")
    return value


def _number(said: Any, words: Words, place: str) -> int:
    """The value of a verdict: a word, or a grade that is a whole number, also as text."""
    if isinstance(said, str) and said in words:
        return words[said]
    try:
        grade = float(said) if isinstance(said, str | int | float) else None
    except (ValueError, OverflowError):
        grade = None
    if grade is None or not -100 <= grade <= 100 or grade != int(grade):
        raise _Unfit(f"{place} says {said!r:.80}; take {', '.join(words)} or a whole grade")
    return int(grade)
