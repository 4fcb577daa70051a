"""Comparing mathematics: a table of answers written by hand, and comparisons that hang or die."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from trinity_db.processors.children import pool
from trinity_db.processors.children.mathematics import is_equal
from trinity_db.processors.children.pool import Pool
from trinity_db.processors.lists.lists import LISTS
from trinity_db.processors.steps.mathematics import MathMatch

COMMAND = pool.python("trinity_db.processors.children.mathematics")
TABLE = Path(__file__).with_suffix("").with_name("mathematics.tsv")
CASES = [
    line.replace("⏎", "\n").split("\t")
    for line in TABLE.read_text().split("\n")
    if line and not line.startswith("# ")
]
"""Responses with ⏎ for line breaks, answers, whether they are equal, and the reason of surprising ones."""
ENDLESS = {"response": r"\boxed{9^{9^{9^{9}}}}", "answer": "7"}


@pytest.fixture(scope="module")
def pooled() -> Pool:
    return Pool(COMMAND, size=1, seconds=60.0)


@pytest.fixture(scope="module")
def match() -> MathMatch:
    return MathMatch(None, seconds=60.0, processes=1)  # type: ignore[arg-type]


def test_each_case_of_the_table_has_the_right_value(pooled: Pool) -> None:
    assert len(CASES) >= 400
    asked = [{"response": response, "answers": [answer]} for response, answer, *_ in CASES]
    said = dict(pooled.ask(asked))
    wrong = [(*case, said[place]) for place, case in enumerate(CASES) if said[place] is not (case[2] == "1")]
    assert wrong == []


@pytest.mark.parametrize(
    ("response", "answer", "value"),
    [
        (r"\boxed{York}", ["Leeds", "york"], 1.0),
        (r"\boxed{York}", {"target": ["York"]}, 1.0),
        (r"\boxed{0.5}", ["1/3", "1/2"], 1.0),
        (r"\boxed{0.25}", ["1/3", "1/2"], 0.0),
        (r"\boxed{7}", 7, 1.0),
        (r"\boxed{0.00005}", 0.00005, 1.0),
        (r"\boxed{9007199254740992}", 2**53 + 1, 0.0),
        ("The answer is true.", True, 1.0),
        ("The answer is False.", True, 0.0),
    ],
)
def test_each_accepted_answer_is_compared(match: MathMatch, response: str, answer: Any, value: float) -> None:
    assert list(match([response], [{"answer": answer}], [""])) == [(0, value)]


@pytest.mark.parametrize(
    ("response", "prompt", "value"),
    [
        (r"<think>maybe \boxed{4}", "", 0.0),
        (r"maybe \boxed{4}", "<think>\n", 0.0),
        (r"<think>\boxed{4}</think> I am not sure.", "", 0.0),
        (r"<think>first \boxed{3}</think>The answer is 4.", "", 1.0),
        (r"first \boxed{3}</think>The answer is 4.", "<think>\n", 1.0),
        (r"<think>first \boxed{4}</think>The answer is 3.", "", 0.0),
        (r"<think>first</think>\boxed{3}<think>no</think>\boxed{4}", "", 1.0),
        (r"<think>\boxed{4}</think>", "", 0.0),
        (r"\boxed{4}", "<think>\n\n</think>\n\n", 1.0),
    ],
)
def test_thoughts_are_not_compared(match: MathMatch, response: str, prompt: str, value: float) -> None:
    assert list(match([response], [{"answer": "4"}], [prompt])) == [(0, value)]


@pytest.mark.parametrize("answer", ["?", "3 = 7", r"\boxed{}", r"\frac{1}", ["?", "!"]])
def test_an_answer_that_cannot_be_read_fails_the_row(match: MathMatch, answer: Any) -> None:
    [(_, error)] = match([r"\boxed{7}"], [{"answer": answer}], [""])
    assert "cannot be read as mathematics" in str(error)


def test_an_answer_that_cannot_be_read_does_not_hide_another_one(match: MathMatch) -> None:
    columns = {"answer": ["?", "7"]}
    (_, right), (_, error) = sorted(match([r"\boxed{7}", r"\boxed{8}"], [columns] * 2, [""] * 2))
    assert right == 1.0
    assert "cannot be read as mathematics" in str(error)


def test_a_comparison_that_hangs_fails_alone_and_in_time() -> None:
    match = MathMatch(None, seconds=1.0, processes=1)  # type: ignore[arg-type]
    list(match(["1"], [{"answer": "1"}], [""]))  # starts the process
    start = time.monotonic()
    tasks = [{"answer": ENDLESS["answer"]}, {"answer": "2"}]
    said = dict(match([ENDLESS["response"], r"\boxed{2}"], tasks, [""] * 2))
    assert (str(said[0]), said[1]) == ("math_match: it took more than 1 s", 1.0)
    assert time.monotonic() - start < 60


def test_a_task_whose_answer_cannot_be_read_fails_and_is_no_zero(pooled: Pool) -> None:
    match = LISTS["score"].known["math_match"](None)
    said = dict(match([r"\boxed{2}"] * 2, [{}, {"answer": "2"}], [""] * 2))
    assert isinstance(said[0], ValueError)
    assert "--map answer=COLUMN" in str(said[0])
    assert said[1] == 1.0
    [(_, unread)] = pooled.ask([{"response": "2", "answers": ["?"]}])
    assert "the task's answer cannot be read as mathematics" in str(unread)


def test_a_process_that_is_killed_fails_its_row_and_the_next_one_is_answered(
    pooled: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(_, said)] = pooled.ask([{"response": "2", "answers": ["2"]}])
    assert said is True
    [child] = pooled._idle
    os.kill(child._process.pid, signal.SIGKILL)
    [(_, said)] = pooled.ask([{"response": "2", "answers": ["2"]}])
    assert str(said) == "its process ended with -9"
    monkeypatch.setattr(pool, "START_SECONDS", 0.0)
    [(_, said)] = pooled.ask([{"response": "2", "answers": ["2"]}])
    assert isinstance(said, TimeoutError)


def test_what_math_verify_cannot_tell_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import math_verify

    def fail(*args: object, **kwargs: object) -> bool:
        raise TypeError("cannot determine truth value of Relational")

    assert is_equal("2", "2")
    monkeypatch.setattr(math_verify, "verify", fail)
    with pytest.raises(TypeError, match="truth value"):
        is_equal("2", "2")
