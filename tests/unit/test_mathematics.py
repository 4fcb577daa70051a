"""Comparing mathematics: a table of answers written by hand, and comparisons that hang or die."""

import os
import signal
import time
from pathlib import Path

import pytest

from trinity_db.processors.children import pool
from trinity_db.processors.children.mathematics import is_equal
from trinity_db.processors.children.pool import Pool
from trinity_db.processors.lists import LISTS
from trinity_db.processors.steps.mathematics import MathMatch

COMMAND = pool.python("trinity_db.processors.children.mathematics")
TABLE = Path(__file__).with_suffix("").with_name("mathematics.tsv")
CASES = [line.split("\t") for line in TABLE.read_text().splitlines() if not line.startswith("# ")]
ENDLESS = {"response": r"\boxed{9^{9^{9^{9}}}}", "answer": "9^{9^{9^{9}}}+1"}


@pytest.fixture(scope="module")
def pooled() -> Pool:
    return Pool(COMMAND, size=1, seconds=60.0)


def test_two_hundred_answers_are_judged_as_by_hand(pooled: Pool) -> None:
    assert len(CASES) >= 200
    said = dict(pooled.ask([{"response": response, "answer": answer} for response, answer, _ in CASES]))
    wrong = [
        (*case, said[place]) for place, case in enumerate(CASES) if said[place] is not bool(int(case[2]))
    ]
    assert wrong == []


def test_a_comparison_that_hangs_fails_alone_and_in_time() -> None:
    match = MathMatch(None, seconds=1.0, processes=1)  # type: ignore[arg-type]
    list(match(["1"], [{"answer": "1"}]))  # starts the process
    start = time.monotonic()
    said = dict(match([ENDLESS["response"], r"\boxed{2}"], [{"answer": ENDLESS["answer"]}, {"answer": "2"}]))
    assert (str(said[0]), said[1]) == ("math_match: it took more than 1 s", 1.0)
    assert time.monotonic() - start < 60


def test_a_task_whose_answer_cannot_be_read_fails_and_is_no_zero(pooled: Pool) -> None:
    match = LISTS["score"].known["math_match"](None)
    said = dict(match([r"\boxed{2}"] * 2, [{}, {"answer": "2"}]))
    assert isinstance(said[0], ValueError)
    assert "--map answer=COLUMN" in str(said[0])
    assert said[1] == 1.0
    [(_, unread)] = pooled.ask([{"response": "2", "answer": ""}])
    assert "the task's answer cannot be read as mathematics" in str(unread)


def test_a_process_that_is_killed_fails_its_row_and_the_next_one_is_answered(
    pooled: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(_, said)] = pooled.ask([{"response": "2", "answer": "2"}])
    assert said is True
    [child] = pooled._idle
    os.kill(child._process.pid, signal.SIGKILL)
    [(_, said)] = pooled.ask([{"response": "2", "answer": "2"}])
    assert str(said) == "its process ended with -9"
    monkeypatch.setattr(pool, "START_SECONDS", 0.0)
    [(_, said)] = pooled.ask([{"response": "2", "answer": "2"}])
    assert isinstance(said, TimeoutError)


def test_what_math_verify_cannot_tell_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import math_verify

    def fail(*args: object, **kwargs: object) -> bool:
        raise TypeError("cannot determine truth value of Relational")

    assert is_equal("2", "2")
    monkeypatch.setattr(math_verify, "verify", fail)
    with pytest.raises(TypeError, match="truth value"):
        is_equal("2", "2")
