"""Reward functions, against answers worked out by hand."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.steps import load, value, verdicts
from trinity_db.errors import ConfigError
from trinity_db.processors.steps import rewards


def row(response: str, length: int = 0) -> dict[str, Any]:
    """What a step may read of a claimed row."""
    return {"response": response, "task": {}, "response_length": length}


@pytest.mark.parametrize(
    ("response", "value"), [("21", 1.0), (" 21\n", 1.0), ("2 1", 0.0), ("", 0.0), ("21.", 0.0)]
)
def test_an_exact_match_ignores_only_surrounding_space(response: str, value: float) -> None:
    assert rewards.exact_match(response, {"answer": 21}) == value


@pytest.mark.parametrize(
    ("response", "value"),
    [("321", 1.0), ("320", 2 / 3), ("32", 2 / 3), ("3210", 3 / 4), ("", 0.0), ("123", 1 / 3)],
)
def test_a_position_match_counts_characters_in_their_place(response: str, value: float) -> None:
    assert rewards.position_match(response, {"answer": "321"}) == pytest.approx(value)


@pytest.mark.parametrize(
    ("response", "answer", "value"),
    [
        ("She makes 9 * 2 = 18\nA: 18", "so 9 * 2 = 18\n#### 18", 1.0),
        ("#### 1,800", "1800", 1.0),
        ("it is -3.50 in all", "-3.5", 1.0),
        ("12 #### 7", "#### 12", 0.0),
        ("no number at all", "3", 0.0),
        ("", "3", 0.0),
        ("the answer is .5", "0.5", 1.0),
        ("5 apples, 7.", "7", 1.0),
    ],
)
def test_a_number_match_compares_the_final_numbers(response: str, answer: str, value: float) -> None:
    assert rewards.number_match(response, {"answer": answer}) == value


@given(st.text(max_size=80))
def test_any_text_has_a_final_number_or_none(text: str) -> None:
    found = rewards.final_number(text, "####")
    has_digit = any(character in "0123456789" for character in text.rsplit("####", 1)[-1])
    assert (found is not None) == has_digit


def test_a_regex_match_compares_its_group_with_the_answer() -> None:
    assert rewards.regex_match("so A: 18 it is", {"answer": "18"}, pattern=r"A: (\d+)") == 1.0
    assert rewards.regex_match("so A: 19 it is", {"answer": "18"}, pattern=r"A: (\d+)") == 0.0
    assert rewards.regex_match("a+b", {"answer": "a+b"}, pattern="^{answer}$") == 1.0
    assert rewards.regex_match("aab", {"answer": "a+b"}, pattern="^{answer}$") == 0.0


@pytest.mark.parametrize("name", ["exact_match", "position_match", "regex_match", "number_match"])
def test_a_task_without_an_answer_is_told_how_to_have_one(name: str) -> None:
    options = {"pattern": "{answer}"} if name == "regex_match" else {}
    with pytest.raises(AssertionError, match=r"no 'answer'; .*--map answer=COLUMN"):
        value(name, row("3"), **options)


@pytest.mark.parametrize(
    ("length", "value"),
    [(0, 0.0), (12, 0.0), (13, -0.125), (16, -0.5), (19, -0.875), (20, -1.0), (21, -1.0), (999, -1.0)],
)
def test_an_overlong_response_is_punished_from_the_buffer_on(length: int, value: float) -> None:
    given = rewards.overlong_penalty(length, max_response_length=20, buffer_length=8)
    assert (given, str(given)) == (value, str(value)), "and never by minus nothing"


@pytest.mark.parametrize("buffer_length", [0, -8, 21])
def test_a_buffer_that_is_none_punishes_no_row(buffer_length: int) -> None:
    with pytest.raises(ValueError, match="not between 1 and 20 tokens"):
        rewards.overlong_penalty(3, max_response_length=20, buffer_length=buffer_length)


def test_an_unknown_function_names_the_nearest() -> None:
    with pytest.raises(ValidationError, match="did you mean 'exact_match'"):
        load("score", "exactmatch")


def test_options_that_a_function_does_not_take_are_refused_before_the_first_row() -> None:
    with pytest.raises(ValidationError, match=r"regex_match.*pattern"):
        load("score", "regex_match")
    with pytest.raises(ValidationError, match=r"exact_match.*colour"):
        load("score", {"name": "exact_match", "colour": "red"})
    with pytest.raises(ValidationError, match=r"overlong_penalty.*buffer_length"):
        load("score", {"name": "overlong_penalty", "max_response_length": 20})


def test_a_function_of_the_users_own_imports_what_lies_beside_its_file(tmp_path: Path) -> None:
    (tmp_path / "length_of_text.py").write_text("def measure(text): return len(text)")
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from length_of_text import measure\n\ndef length(response, task): return measure(response)"
    )
    assert value(f"{mine}:length", row("four")) == 4


def test_a_function_of_the_users_own_is_given_the_length_where_it_asks_for_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def share(response, task, response_length, of):\n    return response_length / of\n")
    assert value(f"{path}:share", row("", 6), of=8) == 0.75


def test_a_function_of_the_users_own_is_loaded_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def short(response, task, limit=3):\n    return float(len(response) <= limit)\n")
    assert [value(f"{path}:short", row(text), limit=5) for text in ("12345", "123456")] == [1.0, 0.0]
    with pytest.raises(ConfigError, match="no function 'long'"):
        load("score", f"{path}:long")
    with pytest.raises(ConfigError, match="no file"):
        load("score", f"{tmp_path}/other.py:short")


@pytest.mark.parametrize(
    ("signature", "trainer"),
    [
        ("completions, prompts, **kwargs", "TRL"),
        ("prompts, completions, answer, **kwargs", "TRL"),
        ("data_source, solution_str, ground_truth, extra_info=None", "verl"),
    ],
)
def test_a_function_that_was_written_for_another_trainer_is_told_how_ours_look(
    tmp_path: Path, signature: str, trainer: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"def score({signature}):\n    return 1.0\n")
    ours = (
        rf"mine.py:score' has a signature of {trainer}'s.* def reward\(response, task, \*\*options\) -> float"
    )
    with pytest.raises(ConfigError, match=ours) as error:
        load("score", f"{path}:score")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return [0.5, 1.0]", r"returned \[0.5, 1.0\], not one number$"),
        ("return None", "returned None, not one number$"),
        ("return task['answer']", r"raised KeyError: 'answer' \(.*mine.py, line 5, in score\)$"),
        ("return json.loads(response)", r"raised JSONDecodeError: .* \(.*mine.py, line 5, in score\)$"),
        ("return helper(response)", r"raised ValueError: two lines \(.*mine.py, line 3, in helper\)$"),
    ],
)
def test_what_is_wrong_with_a_function_of_the_users_own_is_said_with_its_place(
    tmp_path: Path, body: str, said: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import json\ndef helper(response):\n    raise ValueError('two\\nlines')\n"
        f"def score(response, task):\n    {body}\n"
    )
    [verdict] = verdicts("score", load("score", f"{path}:score"), row("text"))
    assert verdict.error is not None
    assert re.search(said, verdict.error)


def test_an_error_in_a_function_of_ours_names_no_place() -> None:
    [verdict] = verdicts("score", load("score", "defaults"), row("text"))
    assert str(verdict.error).endswith("under another --name")


def test_a_file_that_cannot_be_loaded_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import json\nlimit = json.loads('{')\n")
    with pytest.raises(
        ConfigError, match=r"cannot be loaded: JSONDecodeError: .*mine.py, line 2, in <module>"
    ):
        load("score", f"{path}:score")
    path.write_text("import json\ndef score(:\n")
    with pytest.raises(ConfigError, match=r"cannot be loaded: SyntaxError: .*mine.py, line 2"):
        load("score", f"{path}:score")
