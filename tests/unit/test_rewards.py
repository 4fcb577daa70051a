"""Reward functions, against answers worked out by hand."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.steps import load, value, verdicts
from trinity_db.errors import ConfigError
from trinity_db.processors.answers.numbers import final_number
from trinity_db.processors.steps import rewards


def row(response: str, length: int = 0) -> dict[str, Any]:
    """What a step may read of a claimed row."""
    return {"prompt": "", "response": response, "task": {}, "response_length": length}


@pytest.mark.parametrize(
    ("response", "value"), [("21", 1.0), (" 21\n", 1.0), ("2 1", 0.0), ("", 0.0), ("21.", 0.0)]
)
def test_an_exact_match_ignores_only_surrounding_space(response: str, value: float) -> None:
    assert rewards.exact_match(response, {"answer": 21}) == value


REWARDS: dict[str, Callable[..., float]] = {
    "exact_match": rewards.exact_match,
    "position_match": rewards.position_match,
    "regex_match": partial(rewards.regex_match, pattern="^ *({answer})$"),
    "number_match": rewards.number_match,
}


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize(
    "answer",
    [
        ["17", "18"],
        ["18"],
        [["17"], ["18"]],
        {"target": ["18", "18.5"]},
        {"target": "18"},
        {"target": 18},
        {"value": "17", "aliases": ["18"], "type": "Number"},
        {"text": ["18", "17"], "answer_start": [3, 90]},
        18,
    ],
)
def test_each_accepted_answer_is_right(name: str, answer: Any) -> None:
    assert REWARDS[name]("18", {"answer": answer}) == 1.0
    assert REWARDS[name]("19", {"answer": answer}) < 1.0


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (True, ["true", "True"]),
        (False, ["false", "False"]),
        (0.00005, ["0.00005", "5e-05"]),
        (2**53 + 1, ["9007199254740993"]),
        (["York", "york"], ["York", "york"]),
    ],
)
def test_values_are_accepted_as_they_are_written(answer: Any, right: list[str]) -> None:
    for text in right:
        assert rewards.exact_match(text, {"answer": answer}) == 1.0
        assert rewards.regex_match(f"A: {text}", {"answer": answer}, pattern="A: {answer}$") == 1.0
    for wrong in ("", "yes", "9007199254740992", "Yor"):
        assert rewards.exact_match(wrong, {"answer": answer}) == 0.0


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("answer", [None, "", "  ", [], [""], {}, {"x": 1}, {"target": []}, [None]])
def test_an_answer_that_no_response_can_equal_is_an_error(name: str, answer: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^the task's 'answer' is (null|empty|an empty list|a mapping without)"
    ):
        REWARDS[name]("", {"answer": answer})


@pytest.mark.parametrize("name", ["exact_match", "position_match", "number_match"])
@pytest.mark.parametrize(
    ("response", "prompt", "value"),
    [
        ("<think>It is 3.</think>4", "", 1.0),
        ("It is 3.</think>\n\n4", "<|assistant|><think>\n", 1.0),
        ("It is 3.</think>\n\n4", "", 1.0),
        ("<think>3</think>5<think>6</think>4", "", 1.0),
        ("<think>4</think>3", "", 0.0),
        ("<think>4", "", 0.0),
        ("4", "<think>\n", 0.0),
        ("4", "<think>\n\n</think>\n\n", 1.0),
        ("4<think>", "", 0.0),
        ("<think>4</think>", "", 0.0),
    ],
)
def test_thoughts_are_not_compared(name: str, response: str, prompt: str, value: float) -> None:
    assert REWARDS[name](response, {"answer": "4"}, prompt) == value


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
        ("9007199254740993", "9007199254740993", 1.0),
        ("9007199254740992", "9007199254740993", 0.0),
        ("9,007,199,254,740,992", "9007199254740993", 0.0),
        ("0.1", "0.10", 1.0),
        ("0.30000000000000004", "0.3", 0.0),
        ("it is 3/4", "0.75", 1.0),
        ("it is 3/4", "4", 0.0),
        (r"it is \frac{3}{4}", "3/4", 1.0),
        (r"it is -\frac{3}{4}", "-0.75", 1.0),
        (r"it is -\frac{3}{4}", "0.75", 0.0),
        ("it is 3 1/2", "3.5", 1.0),
        (r"it is 3\frac12", "7/2", 1.0),
        ("it is 3/0", "3", 0.0),
        ("−7", "-7", 1.0),
        ("－７", "-7", 1.0),
        ("４２", "42", 1.0),
        ("it is -$5", "-5", 1.0),
        ("$-5", "-5", 1.0),
        ("10-4 = 6", "6", 1.0),
        ("pages 3-4", "4", 1.0),
        ("x=-4", "-4", 1.0),
        ("12 cm^2", "12", 1.0),
        ("12 cm2", "12", 1.0),
        (r"12\text{ cm}^2", "12", 1.0),
        ("5 molecules of CO2", "5", 1.0),
        ("USD5", "5", 1.0),
        ("Rs.5", "5", 1.0),
        (r"\boxed{1{,}234}", "1234", 1.0),
        (r"\boxed{1\,234}", "1234", 1.0),
        ("1\u202f234", "1234", 1.0),
        ("**18**", "18", 1.0),
        ("50%", "50", 1.0),
        ("1.5e3", "1500", 1.0),
        (r"1.5 \times 10^{3}", "1500", 1.0),
        ("2*10^5", "200000", 1.0),
        ("10^6", "10", 0.0),
        ("10^6", "6", 0.0),
        ("2^10", "2", 0.0),
        ("4 or 5", "5", 0.0),
        ("4 or 5", "4", 0.0),
        ("4, or maybe 5.", "5", 0.0),
        ("#### 4, 5", "5", 0.0),
        ("####  4|5", "5", 0.0),
        ("#### 4 and $5", "5", 0.0),
        ("#### 5; 5", "5", 1.0),
        ("on July 4, 2023", "2023", 1.0),
        ("1/2 or 0.5", "0.5", 1.0),
        ("#### 18\n\nQuestion: 5 apples", "18", 1.0),
        ("####\n18", "18", 1.0),
        ("9" * 5000, "9", 0.0),
        ("18", "18 dollars", 1.0),
        ("18", ["eighteen", "18"], 1.0),
        ("18", {"target": ["18"]}, 1.0),
    ],
)
def test_a_number_match_compares_the_final_numbers(response: str, answer: Any, value: float) -> None:
    assert rewards.number_match(response, {"answer": answer}) == value


@pytest.mark.parametrize(
    "answer", ["eighteen", True, "3 or 4", "(3, 4)", "2^10", "1/0", "9" * 5000, ["one", "two"], "5 ft 3 in"]
)
def test_an_answer_without_one_number_is_an_error(answer: Any) -> None:
    with pytest.raises(
        ValueError, match=r"the task's answer '.*' has (no plain number$|several numbers; set 'after')"
    ):
        rewards.number_match("3", {"answer": answer})


@given(st.text(max_size=80))
def test_any_text_has_a_final_number_or_none(text: str) -> None:
    assert final_number(text, "####") is None or any(character.isdecimal() for character in text)
    assert final_number(f"{text.replace('####', '')}; it is 7.", "####") == 7


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
        rf"mine.py:score' has the signature of a reward function for {trainer}.*"
        r" def reward\(response, task, \*\*options\) -> float"
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
