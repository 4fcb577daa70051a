"""Verdicts in the files of Label Studio and Argilla, and texts that a terminal may be shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trinity_db.cli.label_screen import inert
from trinity_db.data import annotations
from trinity_db.errors import ImportFileError
from trinity_db.schema.states import LabelState

ROW = {
    "review_id": 7,
    "other_id": None,
    "name": "human",
    "prompt": "why?",
    "response": "so",
    "other_response": None,
}
PAIR = ROW | {"other_id": 4, "other_response": "thus"}

# A task as the documentation of Label Studio has it, with the tags of docs/guides/people.md.
TASK: dict[str, Any] = {
    "id": 1,
    "created_at": "2021-03-09T21:52:49.513742Z",
    "project": 83,
    "data": {"prompt": "why?", "response": "so", "review": 7, "run": "run", "name": "human"},
    "annotations": [
        {
            "id": "1001",
            "result": [
                {
                    "from_name": "verdict",
                    "id": "Dx_aB91ISN",
                    "source": "$response",
                    "to_name": "response",
                    "type": "choices",
                    "value": {"choices": ["good"]},
                }
            ],
            "was_cancelled": False,
            "ground_truth": False,
            "lead_time": 4.288,
            "task": 1,
            "completed_by": 10,
        }
    ],
    "predictions": [],
}
# A record as Argilla's Record.to_dict writes it.
RECORD: dict[str, Any] = {
    "id": "review-7",
    "fields": {"prompt": "why?", "response": "so"},
    "metadata": {"review": 7, "run": "run", "name": "human"},
    "suggestions": {},
    "responses": {"verdict": [{"value": "bad", "user_id": "6f0c"}, {"value": "good", "user_id": "7a1d"}]},
    "vectors": {},
    "_server_id": None,
}

Read = Callable[..., list[annotations.FileVerdict]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(*entries: Any) -> list[annotations.FileVerdict]:
        file = tmp_path / "said.json"
        file.write_text(json.dumps(list(entries)))
        return annotations.read(file)

    return read


def task(by: Any = 10, order: str | None = None, cancelled: bool = False, **value: Any) -> dict[str, Any]:
    """A task with one annotation."""
    result = [{"value": value}] if value else []
    annotation = {"completed_by": by, "was_cancelled": cancelled, "result": result}
    data = {"review": 7} | ({"order": order} if order else {})
    return {"data": data, "annotations": [annotation]}


def test_a_task_of_label_studio_is_a_verdict(read: Read) -> None:
    [given] = read(TASK)
    assert (given.review_id, given.author, given.swapped) == (7, "label_studio:10", None)
    assert (given.verdict.state, given.verdict.value, given.verdict.seconds) == (
        LabelState.SUBMITTED,
        1,
        4.288,
    )


def test_a_record_of_argilla_has_a_verdict_of_each_person(read: Read) -> None:
    assert [(one.author, one.verdict.value) for one in read(RECORD)] == [
        ("argilla:6f0c", 0),
        ("argilla:7a1d", 1),
    ]


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        (task(rating=4), 4),
        (task(number=3.0), 3),
        (task(choices=["2"]), 2),
        (task(order="swapped", selected="left"), 1),
        (task(order="as stored", selected="right"), -1),
        (task(order="as stored", choices=["tie"]), 0),
        (task(order="as stored", choices=["B"]), -1),
    ],
)
def test_controls_of_label_studio_say_values(read: Read, entry: dict[str, Any], value: int) -> None:
    [given] = read(entry)
    assert given.verdict.value == value


def test_skipped_tasks_are_discarded_and_drafts_left_out(read: Read) -> None:
    states = [{"value": "good", "user_id": "a", "status": one} for one in ("draft", "submitted")]
    found = read(task(cancelled=True), RECORD | {"responses": {"verdict": states}})
    assert [one.verdict.state for one in found] == [LabelState.DISCARDED, LabelState.SUBMITTED]


def test_of_a_person_the_last_annotation_counts(read: Read) -> None:
    twice = task(choices=["good"])
    twice["annotations"] += task(choices=["bad"])["annotations"]
    [given] = read(twice)
    assert given.verdict.value == 0


def test_the_author_may_be_an_address(read: Read) -> None:
    [given] = read(task(by={"id": 3, "email": "ann@example.org"}, choices=["good"]))
    assert given.author == "ann@example.org"


def test_blanks_around_an_author_make_no_other_person(read: Read) -> None:
    [given] = read(task(by="  ann ", choices=["good"]), task(by="ann", choices=["bad"]))
    assert (given.author, given.verdict.value) == ("ann", 0)


def test_a_terminal_gets_an_export_that_it_only_shows() -> None:
    review = {
        "review_id": 7,
        "name": "human",
        "other_id": None,
        "prompt": "p\x9b31m\x7f",
        "response": "\u202e",
    }
    text = annotations.write([review], "run", "label_studio", only_ascii=True)
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    assert json.loads(text)[0]["data"]["prompt"] == "p\x9b31m\x7f"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"text": "x"}, "entry 0 has no 'annotations'"),
        (task(choices=["great"]), "annotation 0 has the verdict 'great'; take good, bad or a whole"),
        (task(choices=["A"]), "has the verdict 'A'"),
        (task(rating=2.5), "has the verdict 2.5"),
        (task(), "has 0 verdicts in place of one"),
        (task(choices=["good", "bad"]), "has 2 verdicts in place of one"),
        (task(number=10**400), "task 0, annotation 0 has the verdict 1000"),
        (task(by=None, choices=["good"]), "does not name its annotator (completed_by)"),
        (task(by=True, choices=["good"]), "does not name its annotator (completed_by)"),
        (task(order="other", choices=["A"]), "has the order 'other'"),
        ({"data": {}, "annotations": []}, "does not name its review"),
        ({"metadata": {"review": 7}, "responses": {"a": [], "b": []}}, "responses to 2 questions"),
    ],
)
def test_what_says_nothing_is_refused_with_its_place(read: Read, entry: dict[str, Any], says: str) -> None:
    with pytest.raises(ImportFileError, match=r"said\.json") as refused:
        read(entry)
    assert says in str(refused.value)


@pytest.mark.parametrize("form", ["label_studio", "argilla"])
def test_a_pair_goes_out_in_an_order_that_comes_back(read: Read, form: str) -> None:
    orders = set()
    for review_id in range(1, 30):
        [entry] = json.loads(annotations.write([PAIR | {"review_id": review_id}], "run", form))
        shown, about = (entry["fields"], entry["metadata"]) if form == "argilla" else (entry["data"],) * 2
        expected = ("thus", "so") if annotations.swapped(review_id) else ("so", "thus")
        assert (shown["response_a"], shown["response_b"]) == expected
        if form == "argilla":
            entry["responses"] = {"verdict": [{"value": "A", "user_id": "ann"}]}
        else:
            entry["annotations"] = task(choices=["A"])["annotations"]
        [given] = read(entry)
        assert (given.verdict.value, given.swapped) == (1, annotations.swapped(review_id))
        orders.add(about["order"])
    assert orders == {"swapped", "as stored"}


def test_a_row_goes_out_with_its_texts() -> None:
    [row] = json.loads(annotations.write([ROW], "run", "label_studio"))
    assert row == {"data": {"prompt": "why?", "response": "so", "review": 7, "run": "run", "name": "human"}}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a   b\nc"),
        ("\x1b[2J\r\x08\x7f", "\\x1b[2J\\x0d\\x08\\x7f"),
        ("\x9b1m\x85", "\\x9b1m\\x85"),
        ("\u202eabc\u2066\u2028\ufeff", "\\u202eabc\\u2066\\u2028\\ufeff"),
        ("\U000e0041\ud800", "\\U000e0041\\ud800"),
        ("größer 数 👩\u200d🔬 می\u200cخواهم", "größer 数 👩\u200d🔬 می\u200cخواهم"),
        ("a\u00a0b\u2003c", "a b c"),
    ],
)
def test_a_terminal_is_shown_no_character_that_it_obeys(text: str, shown: str) -> None:
    assert inert(text) == shown
