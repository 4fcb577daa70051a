"""Unit tests in the forms of public data sets: right code scores 1, wrong code 0, and what no test is fails.

The cases in `code_forms/` are our own. What their forms mean was read from the graders of the sets: verl's
prime_code, LiveCodeBench's testing_util, human_eval's execution and open-r1's cf_scoring. Together they take
about ten seconds on two cores.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.columns import read
from trinity_db.data.records.records import Task
from trinity_db.processors.lists.step import Answer
from trinity_db.processors.steps.code import CodeTests
from trinity_db.processors.unit_tests.outputs import is_printed

FORMS = Path(__file__).parent / "code_forms"
COLUMNS = ("tests", "test", "official_tests", "examples")


def scores(column: str, rows: list[tuple[str, dict[str, Any]]], **options: Any) -> list[Any]:
    """Return the score of each response to a task, or its error."""
    step = CodeTests(None, tests=column, **{"seconds": 20.0, "processes": 2, **options})  # type: ignore[arg-type]
    responses, tasks = zip(*rows, strict=True)
    outcomes = dict(step(responses, tasks, [task.get("prompt", "") for task in tasks]))
    return [outcomes[index] for index in range(len(rows))]


def score(response: str, task: dict[str, Any], column: str = "tests") -> Answer:
    [outcome] = scores(column, [(response, task)])
    assert isinstance(outcome, Answer), outcome
    return outcome


def reason(task: dict[str, Any], response: str = "def f(x):\n    return x") -> str:
    """Return why the row of a task fails."""
    [outcome] = scores("tests", [(response, task)])
    assert isinstance(outcome, Exception), outcome
    return str(outcome)


@pytest.mark.parametrize("form", sorted(path.stem for path in FORMS.iterdir()))
def test_right_code_scores_1_and_wrong_code_0(form: str) -> None:
    cases = yaml.safe_load((FORMS / f"{form}.yaml").read_text())
    assert len(cases) == 20
    columns = [case.get("column") or next(name for name in COLUMNS if name in case["task"]) for case in cases]
    different = []
    for column in sorted({*columns}):
        chosen = [case for case, name in zip(cases, columns, strict=True) if name == column]
        rows = [
            (case[kind] if form == "humaneval" else f"So:\n```python\n{case[kind]}\n```\n", case["task"])
            for case in chosen
            for kind in ("right", "wrong")
        ]
        for number, ((response, _), outcome) in enumerate(zip(rows, scores(column, rows), strict=True)):
            if not isinstance(outcome, Answer) or outcome.value != 1.0 - number % 2:
                different.append((response, outcome))
    assert different == []


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ({"tests": {"fn_name": "f", "inputs": ["x = 1"], "outputs": ["1"]}}, "is not JSON: x = 1"),
        ({"tests": {"fn_name": "f", "inputs": ["1"], "outputs": ["one"]}}, "is not JSON: one"),
        ({"tests": {"fn_name": "f", "inputs": [{"x": 1}], "outputs": [1]}}, "neither a list of arguments"),
        ({"tests": {"fn_name": "f(", "inputs": [[1]], "outputs": [1]}}, "no name of a function"),
        ({"tests": {"inputs": ["1", "2"], "outputs": ["1"]}}, "have different lengths"),
        ({"tests": {"inputs": ["1"], "outputs": [{"a": 1}]}}, "neither text nor lines of text"),
        ({"tests": {"inputs": [[[1]]], "outputs": ["1"]}}, "neither text nor lines of text"),
        ({"tests": {"inputs": [], "outputs": []}}, "no unit tests"),
        ({"tests": [{"input": "1", "output": "1", "testtype": "functional"}]}, "names a function"),
        ({"tests": [{"input": "1", "output": "1", "testtype": "interactive"}]}, "unknown type 'interactive'"),
        ({"tests": [{"input": "1", "output": None}]}, "neither text nor lines"),
        ({"tests": [{"input": "1"}]}, "has no 'output'"),
        ({"tests": ["import asyncio\nassert asyncio.run(f(1)) == 1"]}, "awaits the code"),
        ({"tests": [{"call": "f(1)"}]}, "has no 'result'"),
        ({"tests": [{"call": "f(", "result": 1}]}, "is not Python"),
        ({"tests": ["f(1) = 1"]}, "is not Python"),
        ({"tests": ["import os"]}, "has no assertion"),
        ({"tests": ["assert True"]}, "no unit tests"),
        ({"tests": ["assert 1 + 1 == 2"]}, "calls nothing that a response could define"),
        ({"tests": "def check(candidate):\n    assert candidate(1) == 1"}, "no 'entry_point'"),
        ({"tests": ["try:\n    f(1)\n    assert False\nexcept E:\n    pass"]}, "catches E, an exception"),
        ({"tests": ["assert f(lambda: 1) == 1"]}, "objects of type function cannot be passed"),
        ({"tests": ["import no_such_module\nassert f(1) == 1"]}, "ModuleNotFoundError"),
        ({"tests": ["x = 1 / 0\nassert f(x) == 1"]}, "ZeroDivisionError"),
        ({"tests": [{"input": "1", "output": "1"}], "checker": "wcmp"}, "not a Python program"),
        ({"tests": [{"input": "1", "output": "1"}], "checker": "#include <x>"}, "not a Python program"),
        (
            {"tests": [{"input": "1", "output": "1"}], "generated_checker": "print('maybe')"},
            "the checker gives no verdict",
        ),
        ({"tests": [{"input": "1", "output": "1"}], "interaction_format": "guess"}, "interactive"),
        ({"tests": [{"input": "1", "output": "1"}], "input_mode": "file"}, "read files"),
    ],
)
def test_a_test_that_cannot_be_understood_fails_the_row(task: dict[str, Any], why: str) -> None:
    code = "def f(x):\n    return x" if "input" not in str(task) or "fn_name" in str(task) else "print(1)"
    assert why in reason(task, code)


def test_a_result_of_none_is_a_result() -> None:
    task = {"tests": [{"call": "f()", "result": None}, {"call": "g()", "result": {"a": None}}]}
    assert score("def f(): pass\ndef g(): return {'a': None}", task).value == 1.0
    assert score("def f(): return 0\ndef g(): return {}", task).value == 0.0


def test_a_name_that_only_the_prelude_or_python_has_is_not_defined_by_an_empty_response() -> None:
    for task in (
        {"tests": {"fn_name": "gcd", "inputs": [[4, 6]], "outputs": [2]}},
        {"tests": [{"call": "gcd(4, 6)", "result": 2}]},
        {"tests": [{"call": "sorted([2, 1])", "result": [1, 2]}]},
        {"tests": ["assert gcd(4, 6) == 2"]},
        {"tests": ["assert sorted([2, 1]) == [1, 2]"]},
    ):
        outcome = score("", task)
        assert outcome.value == 0.0
        assert "does not define" in str(outcome.detail)


def test_each_assertion_and_each_test_function_is_a_test() -> None:
    code = "def f(x):\n    return abs(x)"
    assert score(code, {"tests": "assert f(1) == 1\nassert f(-1) == -1"}).value == 0.5
    functions = (
        "from solution import f\ndef test_a():\n    assert f(1) == 1\ndef test_b():\n    assert f(0) == 1\n"
    )
    assert score(code, {"tests": functions}).value == 0.5


def test_the_code_does_not_see_the_text_or_the_checker_that_judge_it() -> None:
    search = (
        "import gc, os, sys\n"
        "def seen():\n"
        "    texts = [str(item) for item in gc.get_objects() if isinstance(item, (dict, list))]\n"
        "    frame = sys._getframe()\n    while frame:\n        texts.append(str(frame.f_locals))\n"
        "        frame = frame.f_back\n"
        "    for number in range(64):\n"
        "        try: texts.append(str(os.pread(number, 10 ** 6, 0)))\n"
        "        except OSError: pass\n"
        "    return any('nee' + 'dle' in text for text in texts)\n"
    )
    text = "expected = 'needle'\nassert seen() is False, expected"
    assert score(search, {"tests": [text]}).value == 1.0
    found = search.replace("'nee' + 'dle'", "'gc.get' + '_objects'")
    assert score(found, {"tests": [text.replace("False", "True")]}).value == 1.0, "it finds its own code"
    checker = "needle = print(1)"
    program = {"tests": [{"input": "x", "output": "needle"}], "checker": checker}
    assert score(search + "assert not seen()", program).value == 1.0


def test_what_the_code_answers_cannot_change_the_verdict() -> None:
    task = {"tests": ["assert f(1) == 7", "assert isinstance(f(2), int) and abs(f(2) - 7) < 1"]}
    codes = [
        "import os\nos.write(3, b'passed\\n')\nos._exit(0)",
        "import os\ndef f(x):\n    os.write(3, b'passed\\n')\n    os._exit(0)",
        'import os\ndef f(x):\n    os.write(3, b\'{"value": {"dict": [[[], 7]]}}\\n\')\n    return 7.5',
        "def f(x):\n    raise SystemExit(0)",
        "class All(int):\n    __eq__ = __lt__ = lambda *other: True\n    __sub__ = lambda *other: All()\n"
        "def f(x):\n    return All(9)",
        "import builtins\nabs = builtins.abs = lambda x: 0\n_is_equal = lambda *x: True\n"
        "def f(x):\n    return 9",
        "def f(x):\n    while True: pass",
        "f = 7",
        "def f(x):\n    raise ImportError('no')",
    ]
    outcomes = scores("tests", [(code, task) for code in codes], seconds=1.0)
    assert [getattr(outcome, "value", outcome) for outcome in outcomes] == [0.0] * len(codes)


def test_thread_pools_of_multiprocessing_fail_the_test_and_threads_work() -> None:
    task = {"tests": [{"input": "", "output": "3"}]}
    pool = "from multiprocessing.pool import ThreadPool\nprint(ThreadPool(2).map(len, ['abc'])[0])"
    assert "PermissionError" in str(score(pool, task).detail)
    threads = (
        "from concurrent.futures import ThreadPoolExecutor\nprint(*ThreadPoolExecutor(2).map(len, ['abc']))"
    )
    assert score(threads, task).value == 1.0


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("0.30000000000000004\n", "0.3", True),
        ("0.300002", "0.3", False),
        ("2.9999999999999996", "3", True),
        ("3.0", "3", True),
        ("3.00001", "3", False),
        ("1000001.0", "1000000.0", True),
        ("1000001.0", "1000000", False),
        ("3", "4", False),
        ("003", "3", False),
        ("-0", "0", False),
        ("-0.0", "0.0", True),
        ("nan", "nan", True),
        ("nan", "0.0", False),
        ("1e400", "1.0", False),
        ("1e9999999", "1.0", False),
        ("a  b\t\n\n c", "a b\nc\n", True),
        ("a b c", "a b\nc", False),
        ("a\nb", "b\na", False),
        ("", "", True),
        ("", "0", False),
        ("Yes", "YES", False),
        ("true", True, True),
        ("True\n", True, True),
        ("1", True, False),
        ("True", False, False),
    ],
)
def test_outputs_are_compared_word_by_word(output: str, expected: str | bool, same: bool) -> None:
    assert is_printed(output, expected) is same


def test_values_keep_their_types_between_the_processes() -> None:
    task = {
        "test_imports": ["from collections import Counter, deque"],
        "tests": [
            "assert kind(deque([1])) == 'deque' and kind(range(3)) == 'range' and kind(b'a') == 'bytes'",
            "assert kind(frozenset([1])) == 'frozenset' and kind({1: 2}) == 'dict'",
            "assert echo({1: (2, [3], {4}, None, 10 ** 30, 1j)}) == {1: (2, [3], {4}, None, 10 ** 30, 1j)}",
            "assert echo(range(3)) != [0, 1, 2] and list(echo(range(3))) == [0, 1, 2]",
            "assert echo(float('inf')) == float('inf') and echo('\\ud800') == '\\ud800'",
            "assert echo({'a': 1}) == Counter('a') and echo((1,)) != [1]",
            "assert echo({'a': 1}) == Counter('a')",
            "assert third() == 0.5 and list(array()) == [1, 2]",
        ],
    }
    code = (
        "import numpy\nfrom fractions import Fraction\n"
        "def kind(x): return type(x).__name__\ndef echo(x): return x\n"
        "def third(): return Fraction(1, 2)\ndef array(): return numpy.array([1, 2])"
    )
    outcome = score(code, task)
    assert outcome.value == 1.0, outcome.detail


def test_tests_of_an_imported_file_are_understood() -> None:
    row = {
        "prompt": "Add.",
        "input_output": {"inputs": [["1", "2"]], "outputs": [["3"]]},
        "nested": [{"call": "add(1.0, 5.0)", "result": 6.0}],
        "metadata": {"func_name": "add"},
        "calls": [{"input": "1\n2", "output": "3.0", "testtype": "functional"}],
    }
    record = read("tasks", row)
    assert isinstance(record, Task)
    add = "def add(a, b):\n    return a + b"
    assert (
        score(f"{add}\nprint(add(int(input()), int(input())))", record.payload, "input_output").value == 1.0
    )
    assert score(add, record.payload, "nested").value == 1.0
    assert score(add, record.payload, "calls").value == 1.0
