"""How code and its tests may end and answer: right code scores 1 in each form, a trick 0, and a test that
cannot be judged fails the row. The tests take some eight seconds on two cores."""

from typing import Any

import pytest

from tests.unit.test_code_forms import reason, score, scores
from trinity_db.processors.lists.step import Answer

DOUBLE = {"tests": [{"input": "3", "output": "6"}]}
BUFFERED = (
    "import atexit, io, sys\nbuffer = io.StringIO()\nsys.stdout = buffer\n"
    "atexit.register(lambda: sys.__stdout__.write(buffer.getvalue()))\nprint(int(input()) * 2)"
)
THREAD = (
    "import threading\nthreading.stack_size(1 << 26)\n"
    "threading.Thread(target=lambda: print(2 * int(input()))).start()"
)
CLOSED = "import sys\nprint(int(input()) * 2)\nsys.stdout.close()"
DEEP = (
    "from functools import cache\n@cache\ndef f(n): return n and f(n - 1) + 1\nprint(2 * f(20_000) - 39_994)"
)


@pytest.mark.parametrize("program", [BUFFERED, THREAD, CLOSED, DEEP])
def test_a_program_ends_like_in_python(program: str) -> None:
    outcome = score(program, DOUBLE)
    assert outcome.value == 1.0, outcome.detail


@pytest.mark.parametrize("lines", ["\\nerror x\\nfoo", "not late"])
def test_lines_of_the_protocol_do_not_hide_an_exit_status(lines: str) -> None:
    code = f"import os\nprint(6, flush=True)\nos.write(3, b'{lines}')\nos._exit(3)"
    outcome = score(code, DOUBLE)
    assert (outcome.value, (outcome.detail or {})["first_failure"]) == (0.0, "test 1: it ended with 3")


@pytest.mark.parametrize("forged", ['{"set": [[1]]}', '{"int": 5}', '{"dict": 5}', "[", '{"a": 1, "b": 2}'])
def test_a_forged_result_fails_only_its_own_test(forged: str) -> None:
    code = f"import os\ndef f():\n    os.write(3, b'result {forged}\\n')\n    os._exit(0)"
    tests = {"tests": [{"call": "f()", "result": 1}]}
    outcomes = scores("tests", [(code, tests), ("def f(): return 1", tests)])
    assert [outcome.value for outcome in outcomes if isinstance(outcome, Answer)] == [0.0, 1.0]


def test_an_exception_ends_no_loop_of_a_test() -> None:
    tests = {"tests": ["assert all(map(f, [1, 2]))", "assert list(map(f, [1, 2])) == []"]}
    assert score("def f(x):\n    raise StopIteration", tests).value == 0.0


@pytest.mark.parametrize(
    ("code", "test"),
    [
        (
            "from fractions import Fraction as f",
            "import fractions\nassert f(1, 3) == fractions.Fraction(1, 3)",
        ),
        ("from decimal import Decimal as f", "import decimal\nassert f('0.1') == decimal.Decimal('0.1')"),
        ("class A:\n    pass\nf = A", "assert isinstance(f(), A) and not isinstance(3, A)"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass A:\n    v: int\n"
            "def f(items):\n    for item in items: item.v += 1",
            "items = [A(1), A(2)]\nf(items)\nassert items[1].v == 3",
        ),
    ],
)
def test_numbers_and_objects_of_the_code_are_judged(code: str, test: str) -> None:
    outcome = score(f"```python\n{code}\n```", {"tests": [test]})
    assert outcome.value == 1.0, outcome.detail


@pytest.mark.parametrize("test", ["assert f(1) == date(1, 1, 1)", "assert date(1, 1, 1) in [f(1)]"])
def test_a_comparison_with_an_object_of_the_test_fails_the_row(test: str) -> None:
    task = {"tests": [f"from datetime import date\n{test}"]}
    code = "from datetime import date\ndef f(year): return date(year, 1, 1)"
    assert (
        reason(task, code) == "code_tests: its objects of type date cannot be passed to the code or compared"
    )
    assert score("def f(year): return 0", task).value == 0.0


def test_a_comparison_of_two_objects_of_the_code_fails_the_row() -> None:
    code = (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    v: int\nSAME = A(0)\n"
        "def f(x): return A(x) if x else SAME"
    )
    for test in ("assert f(1) == A(1)", "assert f(1) != A(2)", "assert [f(1)] == [A(1)]"):
        assert reason({"tests": [test]}, code) == (
            "code_tests: it compares two objects of the code, whose class decides whether they are equal"
        )
    task = {"tests": ["assert f(0) == f(0)", "assert f(1) != 1", "assert f(1).v == A(1).v"]}
    assert score(code, task).value == 1.0


@pytest.mark.parametrize(
    ("prompt", "response", "value"),
    [
        ("Double.<think>\n", "print(2 * int(input()))", 0.0),
        ("Double.<think>\n", "Hm.</think>print(2 * int(input()))", 1.0),
        ("Double.", "print(2 * int(input()))", 1.0),
        ("Double.", "```python\nprint(2 * int(input()))\n```\n<think>", 0.0),
    ],
)
def test_a_thought_that_does_not_end_is_no_code(prompt: str, response: str, value: float) -> None:
    task: dict[str, Any] = {**DOUBLE, "prompt": prompt}
    assert score(response, task).value == value


def test_an_output_on_which_the_checker_does_not_end_is_wrong() -> None:
    counts = "import sys\nn = int(open(sys.argv[3]).read())\nwhile n > 6: pass\nprint(int(n == 6))"
    never = "import sys\nprint(open(sys.argv[3]).read())\nwhile True: pass"
    rows = [
        (f"print({n})", {**DOUBLE, "checker": checker})
        for n, checker in ((7, counts), (6, counts), (6, never))
    ]
    wrong, right, failed = scores("tests", rows, seconds=1.0)
    assert (wrong.value, wrong.detail["first_failure"]) == (
        0.0,
        "test 1: the checker took more than 1 s for its output",
    )
    assert right.value == 1.0
    assert str(failed) == "code_tests: the checker took more than 1 s"
