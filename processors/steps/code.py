"""How many unit tests the model's code passes. It runs in a sandbox, which never learns what is expected."""

import ast
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import Field

from trinity_db.config import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.processors.children import sandboxes
from trinity_db.processors.children.code import MAX_OUTPUT, plain
from trinity_db.processors.children.pool import Pool
from trinity_db.processors.children.sandboxes import Sandbox
from trinity_db.processors.step import Answer, Context, step

FENCE = "```"
_LINE = re.compile(r"[^`\n]*+")
_LANGUAGE = re.compile(r"[ \t]*([^\s`]*)")
PYTHON = {"python", "python3", "py"}
TOLERANCE = 1e-6  # between floating-point results, relative and absolute
MAX_TESTS = 1000  # of one row
MAX_DEPTH = 100  # of results that are compared
# Of literals, where a test compares with them, as in assert set(f(1)) == set([1, 2]).
BUILT_IN: dict[str, Callable[[Any], Any]] = {
    "set": set,
    "frozenset": frozenset,
    "list": list,
    "tuple": tuple,
    "sorted": sorted,
    "dict": dict,
}


@step(batch=64)
class CodeTests:
    """The share of the task's unit tests that the last Python block of the response passes.

    A block without a language counts where none says that it is Python, and else the whole response.

    The tests are a column of the task: a list of {"input": …, "output": …}, which compares what the program
    prints; of {"call": "f(1, 2)", "result": 3}; or of texts such as "assert f(1, 2) == 3". A mapping of the
    lists inputs and outputs will do, with fn_name for calls.

    Each test runs in a process of its own, without network, files to write, other processes, or more memory
    and time than allowed. It gets input or call; what is expected stays with the processor. If the sandbox
    cannot be made as configured, no code runs and the row fails. `reward_event.detail` has the sandbox, the
    tests, those passed, and the first failure.

    Args:
        tests: Column of the task with the tests.
        sandbox: landlock: Landlock, seccomp and limits, which need no rights. bubblewrap: namespaces of the
            program bwrap, seccomp and limits, for kernels without Landlock.
        seconds: Longest time of one test.
        row_seconds: Longest time of all tests of a row. Tests for which no time is left are not passed.
        memory_mb: Addresses that one test may use.
        processes: How many rows are tested at the same time.
    """

    def __init__(
        self,
        run: Context,
        *,
        tests: str = "tests",
        sandbox: Sandbox = "landlock",
        seconds: Annotated[float, Field(gt=0, le=3600)] = 5.0,
        row_seconds: Annotated[float, Field(gt=0, le=86_400)] = 60.0,
        memory_mb: Annotated[int, Field(ge=64, le=1 << 20)] = 1024,
        processes: Annotated[int, Field(ge=1, le=256)] = 2,
    ) -> None:
        self._column = tests
        self._sandbox = sandbox
        self._limits = (seconds, row_seconds, memory_mb)
        self._pool = Pool(sandboxes.command(sandbox), processes, row_seconds + seconds + 10.0)

    @staticmethod
    def check(model: ModelConfig, *, sandbox: Sandbox, **options: Any) -> None:
        """Find out before the run is created that the sandbox does not work here.

        Raises:
            ConfigError: it does not.
        """
        if why := sandboxes.fault(sandbox):
            working = [name for name in get_args(Sandbox) if sandboxes.fault(name) is None]
            remedy = f"set sandbox: {working[0]}" if working else "process on a machine where one does"
            raise ConfigError(f"code_tests: the sandbox {sandbox} does not work here: {why}; {remedy}.")

    def __call__(
        self, response: Sequence[str], task: Sequence[Mapping[str, Any]]
    ) -> Iterator[tuple[int, Answer | Exception]]:
        """The share of each row, or why it is not known."""
        rows: list[tuple[int, list[_Test]]] = []
        requests = []
        for place, (text, columns) in enumerate(zip(response, task, strict=True)):
            try:
                tests = _tests(columns, self._column)
            except ValueError as error:
                yield place, error
                continue
            rows.append((place, tests))
            asked = [test.asked for test in tests]
            requests.append(sandboxes.request(self._sandbox, _code(text), asked, *self._limits))
        for number, said in self._pool.ask(requests):
            place, tests = rows[number]
            is_error = isinstance(said, Exception)
            yield place, RuntimeError(f"code_tests: {said}") if is_error else _share(tests, said)


@dataclass(frozen=True)
class _Test:
    """What goes into the sandbox, and what stays outside."""

    asked: Mapping[str, str]
    expected: Any

    def failure(self, said: Mapping[str, Any]) -> str | None:
        """Why it is not passed; None if it is."""
        if "error" in said:
            return str(said["error"])
        if "input" in self.asked:
            found = said["output"]
            return None if _lines(found) == _lines(self.expected) else "it printed something else"
        try:
            found = json.loads(said["result"])
            return None if _is_equal(found, self.expected) else "its result is another"
        except (ValueError, RecursionError, OverflowError):
            return "its result cannot be compared"


def _share(tests: Sequence[_Test], said: Mapping[str, Any]) -> Answer:
    failures = [test.failure(one) for test, one in zip(tests, said["results"], strict=True)]
    passed = failures.count(None)
    detail: dict[str, Any] = {"sandbox": said["sandbox"], "tests": len(tests), "passed": passed}
    if passed < len(tests):
        number, why = next((number, why) for number, why in enumerate(failures, 1) if why is not None)
        detail["first_failure"] = f"test {number}: {why}"
    return Answer(passed / len(tests), detail)


def _code(response: str) -> str:
    """The last block of Python, or else the last block without a language, or else the whole response."""
    blocks = [*_blocks(response)]
    for languages in (PYTHON, {""}):
        if found := [code for language, code in blocks if language in languages]:
            return str(found[-1])
    return response


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Languages, in lower case, and codes. A fence that ends a block, or stands within a line, begins none.

    It reads the text once, however many fences begin nothing.
    """
    position = 0
    while (opened := text.find(FENCE, position)) >= 0:
        line = _LINE.match(text, opened + len(FENCE))
        assert line is not None
        if text.startswith(FENCE, line.end()):
            position = line.end() + len(FENCE)
        elif text.startswith("\n", line.end()):
            language = _LANGUAGE.match(line[0])
            assert language is not None
            closed = text.find(FENCE, line.end() + 1)
            closed = len(text) if closed < 0 else closed
            yield language[1].lower(), text[line.end() + 1 : closed]
            position = closed + len(FENCE)
        else:  # the regular language of a fence: no other fence that begins at a backtick of this one does
            position = opened + 1


def _tests(task: Mapping[str, Any], column: str) -> list[_Test]:
    """The unit tests of a task.

    Raises:
        ValueError: it has none, or one that cannot be read.
    """
    given = task.get(column)
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = [given]
    if isinstance(given, Mapping) and {"inputs", "outputs"} <= given.keys():
        given = _of_lists(given)
    if not isinstance(given, list) or not given:
        raise ValueError(f"the task has no unit tests in '{column}'; import tasks with --map {column}=COLUMN")
    if len(given) > MAX_TESTS:
        raise ValueError(f"the task has {len(given)} unit tests; {MAX_TESTS} are the most")
    return [_test(one) for one in given]


def _of_lists(given: Mapping[str, Any]) -> list[Any]:
    pairs = zip(given["inputs"], given["outputs"], strict=True)
    if name := given.get("fn_name"):
        return [{"call": f"{name}(*{arguments!r})", "result": result} for arguments, result in pairs]
    return [{"input": one, "output": other} for one, other in pairs]


def _test(given: Any) -> _Test:
    if isinstance(given, Mapping) and {"input", "output"} <= given.keys():
        if len(str(given["output"])) > MAX_OUTPUT:
            raise ValueError(f"a unit test expects more than {MAX_OUTPUT} characters of output")
        return _Test({"input": str(given["input"])}, str(given["output"]))
    if isinstance(given, Mapping) and {"call", "result"} <= given.keys():
        return _Test({"call": str(given["call"])}, plain(given["result"]))
    if isinstance(given, str) and (found := _of_assertion(given)):
        return found
    shown = json.dumps(given, default=str)[:100]
    forms = '{"input", "output"}, {"call", "result"}, "assert f(x) == 1"'
    raise ValueError(f"the unit test {shown} is none of {forms}")


def _of_assertion(text: str) -> _Test | None:
    """A test that is assert CALL == LITERAL, assert CALL or assert not CALL; others show their answer."""
    try:
        [statement] = ast.parse(text.strip()).body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(statement, ast.Assert):
        return None
    match statement.test:
        case ast.Compare(left, [ast.Eq() | ast.Is()], [right]):
            try:
                return _Test({"call": ast.unparse(left)}, plain(_literal(right)))
            except ValueError:
                return None
        case ast.UnaryOp(ast.Not(), ast.Call() as call):
            return _Test({"call": f"bool({ast.unparse(call)})"}, False)
        case ast.Call() as call:
            return _Test({"call": f"bool({ast.unparse(call)})"}, True)
    return None


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Call(ast.Name(name), [argument], []) if name in BUILT_IN:
            return BUILT_IN[name](ast.literal_eval(argument))
    return ast.literal_eval(node)


def _is_equal(found: Any, expected: Any, depth: int = 0) -> bool:
    if depth > MAX_DEPTH:
        return False
    if isinstance(found, list) and isinstance(expected, list):
        same = len(found) == len(expected)
        return same and all(_is_equal(*pair, depth + 1) for pair in zip(found, expected, strict=True))
    if isinstance(found, dict) and isinstance(expected, dict):
        same = found.keys() == expected.keys()
        return same and all(_is_equal(found[key], expected[key], depth + 1) for key in expected)
    if isinstance(found, float | int) and isinstance(expected, float | int):
        is_close = isinstance(found - expected, float) and math.isclose(
            found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE
        )
        return is_close or found == expected
    return type(found) is type(expected) and bool(found == expected)


def _lines(text: str) -> list[str]:
    """Lines without the white space at their ends, and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
