"""`trinity-db search`: rows by words, and rows that are like a row, against counts by hand."""

import json
import random
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tests.support.rows import Scene, demonstration, import_records, rollout
from trinity_db.postgres.connection import Database

RESPONSES = [
    "first we add twelve apples and fifteen pears",
    "first we add twelve apples and fifteen plums",
    "the cat sat on the mat with an apple",
    "we add apples, apples and more apples",
    "42",
]


@pytest.fixture
def ids(scene: Scene, shared_database: Database, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows with these responses."""
    monkeypatch.setenv("TRINITY_DB_URL", shared_database.url)
    [group] = scene.claim(1, group_size=len(RESPONSES))
    scene.write([rollout(group, member, response) for member, response in enumerate(RESPONSES)])
    by_response = dict(scene.rows("SELECT response, experience_id FROM trinity.experience_text"))
    return [by_response[response] for response in RESPONSES]


def found(command_line: CommandLine, *arguments: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(command_line("search", *arguments, "--json").output)
    return listed


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("apples", {0, 1, 3}),
        ("APPLES add", {0, 1, 3}),
        ("apples -pears", {1, 3}),
        ('"twelve apples"', {0, 1}),
        ("plums or mat", {1, 2}),
        ('"42"', {4}),
        ("prompt apple", {2}),
        ("oranges", set()),
    ],
)
def test_rows_with_the_words_are_found(
    ids: list[int], command_line: CommandLine, wanted: str, expected: set[int]
) -> None:
    listed = found(command_line, wanted, "--run", "run")
    assert {one["experience"] for one in listed} == {ids[place] for place in expected}
    assert [one["score"] for one in listed] == sorted((one["score"] for one in listed), reverse=True)
    assert all(one["response"] == RESPONSES[ids.index(one["experience"])] for one in listed)


def test_the_row_with_most_of_the_word_comes_first(ids: list[int], command_line: CommandLine) -> None:
    assert [one["experience"] for one in found(command_line, "apples", "--limit", "1")] == [ids[3]]


def test_rows_like_a_row_are_found_by_the_runs_of_words_that_they_share(
    ids: list[int], command_line: CommandLine
) -> None:
    listed = found(command_line, str(ids[0]))
    # Of six runs of three words the first two share five; "we add apples" is in no other.
    assert [(one["experience"], one["score"]) for one in listed] == [(ids[1], 5 / 7)]
    assert found(command_line, str(ids[4])) == [], "no other response has this word"
    assert command_line("search", str(ids[4])).output == f"No row is similar to {ids[4]}.\n"


def test_rows_of_another_run_are_found_without_run_only(
    ids: list[int], scene: Scene, command_line: CommandLine
) -> None:
    import_records(scene.database, "shown", [demonstration(7)])
    assert [one["run"] for one in found(command_line, "response 7")] == ["shown"]
    assert found(command_line, "response 7", "--run", "run") == []
    table = command_line("search", "apples", "--run", "run").output
    assert all(response in table for response in RESPONSES[:2])


def test_a_text_whose_words_do_not_fit_a_tsvector_hides_no_other_text(
    scene: Scene, shared_database: Database, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", shared_database.url)
    rng = random.Random(1)
    letters = [chr(code) for code in range(0x4E00, 0x9FFF)]
    compound = ("-".join("".join(rng.choices(letters, k=20)) for _ in range(20)) for _ in range(475))
    responses = ["apples first " + " ".join(compound), "apples", "more words " * 18_000 + "apples"]
    [group] = scene.claim(1, group_size=3)
    scene.write([rollout(group, member, response) for member, response in enumerate(responses)])
    listed = found(command_line, "apples", "--run", "run")
    assert sorted(one["response"] for one in listed) == sorted(responses)


def test_words_that_are_no_text_are_refused(ids: list[int], command_line: CommandLine) -> None:
    result = command_line("search", "\udcff\udcfe")
    assert result.code == 2
    assert "give words in UTF-8" in result.stderr


def test_what_is_not_there_is_named_in_one_line(ids: list[int], command_line: CommandLine) -> None:
    for arguments, message in (
        (("apples", "--run", "rum"), "There is no run or data set 'rum'; did you mean 'run'?"),
        (("999999",), "There is no experience 999999."),
        (("+-*/",), "There is no word in '+-*/': give words from a prompt or a response."),
    ):
        assert command_line("search", *arguments).complaint == message
