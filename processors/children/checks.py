"""Judges a model's code with the text of a test, or its output with a checker, in a process of its own.

Texts and checkers contain expected results, which the model's code must not see. So the code runs in another
process, which gets neither. There `serve` answers operations on the names of the code; here `Code` sends
them, and `Remote` stands for its functions, classes and objects. Results arrive as values of built-in types.
"""

import ast
import builtins
import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from trinity_db.processors.children.values import as_builtin, decode, encode, is_equal

MAX_ITEMS = 100_000  # of an iterator
FILES = ("input.txt", "correct_output.txt", "solution_output.txt")  # arguments of a checker
ACCEPTED = (1.0, 100.0)  # verdicts of a checker; smaller ones reject


class Fault(BaseException):
    """The test is wrong, not the code. A test's `except Exception` does not catch it."""


class Ended(BaseException):
    """The process of the model's code ended before its answer."""


def own_name(names: Mapping[str, Any], name: str) -> Any:
    """Return what the code defines by a name: a method of its class Solution, or a name at the top level.

    Raises:
        NameError: if it defines neither.
    """
    solution = names.get("Solution")
    if isinstance(solution, type) and any(name in vars(base) for base in solution.__mro__[:-1]):
        return getattr(solution(), name)
    if name not in names:
        raise NameError(f"the response does not define {name}")
    return names[name]


def serve(names: Mapping[str, Any], requests: int, answers: int) -> None:
    """Answer operations on the code's names until the judging process closes its pipe."""
    objects: list[Any] = []
    numbers: dict[int, int] = {}  # by identity

    def reference(value: Any) -> Any:
        if (converted := as_builtin(value)) is not value:
            return encode(converted, reference)
        if id(value) not in numbers:
            numbers[id(value)] = len(objects)
            objects.append(value)
        return {"reference": numbers[id(value)]}

    def referenced(kind: str, number: int) -> Any:
        return objects[number]

    with os.fdopen(requests, encoding="utf-8") as lines, os.fdopen(answers, "w", encoding="utf-8") as out:
        for line in lines:
            operation, *arguments = decode(json.loads(line), referenced)
            try:
                before = encode(arguments[1:], reference)
                answer = {"value": encode(_operate(names, operation, *arguments), reference)}
                if operation == "call" and (after := encode(arguments[1:], reference)) != before:
                    answer["changed"] = after
            except BaseException as error:
                answer = {"raised": [[kind.__name__ for kind in type(error).__mro__], str(error)]}
            out.write(json.dumps(answer) + "\n")
            out.flush()


def _operate(names: Mapping[str, Any], operation: str, *arguments: Any) -> Any:
    if operation == "name":
        return own_name(names, *arguments)
    if operation == "call":
        function, positional, named = arguments
        return function(*positional, **named)
    if operation == "iterate":
        return [item for item, _ in zip(arguments[0], range(MAX_ITEMS), strict=False)]
    known: dict[str, Callable[..., Any]] = {"get": getattr, "set": setattr, "isinstance": isinstance}
    return known[operation](*arguments)


class Code:
    """The model's code in the other process."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = os.fdopen(requests, "w", encoding="utf-8")
        self._answers = os.fdopen(answers, encoding="utf-8")
        self.num_operations = 0
        self.raised: BaseException | None = None
        """The last exception of the code."""

    def confinement(self) -> str:
        """Return the first line of the process, which describes its confinement."""
        return self._answers.readline().rstrip("\n")

    def load_error(self) -> str | None:
        """Return why the code did not run; None if it did. The line follows the confinement."""
        line = self._answers.readline().rstrip("\n")
        return None if line == "loaded" else line.removeprefix("error ") or "it ended before its result"

    def ask(self, *operation: Any) -> Any:
        """Do an operation on objects of the code, and return its result.

        Raises:
            Ended: if the process ended.
            Fault: if an argument is a function or object of the test.
            Exception: raised by the code.
        """
        try:
            self._requests.write(json.dumps(encode(list(operation), _reference)) + "\n")
            self._requests.flush()
        except BrokenPipeError:
            raise Ended from None
        self.num_operations += 1
        self.raised = None
        try:
            result = self._result(operation, json.loads(self._answers.readline()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Ended from None  # no answer, or not that of `serve`
        if self.raised is not None:
            raise self.raised
        return result

    def _result(self, operation: tuple[Any, ...], answer: Mapping[str, Any]) -> Any:
        if "raised" in answer:
            self.raised = _exception(*answer["raised"])
            return None
        if "changed" in answer:
            positional, named = decode(answer["changed"], self._remote)
            for argument, changed in zip(operation[2], positional, strict=True):
                _change(argument, changed)
            for name, changed in named.items():
                _change(operation[3][name], changed)
        return decode(answer["value"], self._remote)

    def _remote(self, kind: str, number: Any) -> "Remote":
        return Remote(self, number)


class Remote:
    """A function, class or object of the model's code. It equals itself, and no value of a built-in type.

    A comparison with an object of the test, such as a date, or with another one of the code raises Fault:
    only the model's code could tell the result.
    """

    def __init__(self, code: Code, number: int) -> None:
        object.__setattr__(self, "_code", code)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._code.ask("call", self, list(arguments), named)

    def __iter__(self) -> Any:
        return iter(self._code.ask("iterate", self))

    def __eq__(self, other: object) -> bool:
        encode(other, _reference)
        if not isinstance(other, Remote):
            return False
        if hash(self) != hash(other):
            raise Fault("it compares two objects of the code, whose class decides whether they are equal")
        return True

    def __hash__(self) -> int:
        return int(object.__getattribute__(self, "_number"))

    def __instancecheck__(self, instance: Any) -> Any:
        return self._code.ask("isinstance", instance, self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._code.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._code.ask("set", self, name, value)


def _reference(value: Any) -> dict[str, int]:
    if not isinstance(value, Remote):
        raise Fault(f"its objects of type {type(value).__name__} cannot be passed to the code or compared")
    return {"reference": object.__getattribute__(value, "_number")}


def _exception(names: list[str], message: str) -> BaseException:
    """Return an exception of the first built-in type among the names; but not StopIteration, which would end
    a loop of the test as if it had passed."""
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and kind is not StopIteration:
            with contextlib.suppress(TypeError):
                return kind(message)
    return RuntimeError(message)


def _change(argument: Any, changed: Any) -> None:
    """Change a list, dict or set in place, as the code did with its copy."""
    if type(argument) is not type(changed):
        return
    if isinstance(argument, list):
        argument[:] = changed
    elif isinstance(argument, dict | set):
        argument.clear()
        argument.update(changed)


def judge_with_text(test: Mapping[str, Any], code: Code) -> str:
    """Run the text of a test and return the verdict: "passed", or "error" with the reason.

    Raises:
        Fault: if the text is wrong.
    """
    names: dict[str, Any] = {"__name__": "test", "_is_equal": is_equal}
    for name in test["names"]:
        with contextlib.suppress(NameError):
            names[name] = code.ask("name", name)
    if not names.keys() & {*test["names"]}:
        return f"error NameError: the response does not define {' or '.join(test['names'])}"
    has_only_objects = all(isinstance(names.get(name), Remote | None) for name in test["names"])
    asked_before = code.num_operations
    tree = ast.fix_missing_locations(_Comparing().visit(ast.parse(test["text"])))
    try:
        exec(compile(tree, "test", "exec"), names)
    except Fault:
        raise
    except Ended:
        return "error it ended before its result"
    except AssertionError:
        return "error an assertion is false"
    except NameError as error:
        return f"error NameError: {error}"
    except BaseException as error:
        is_missing_module = isinstance(error, ImportError) and error is not code.raised
        if is_missing_module or (has_only_objects and code.num_operations == asked_before):
            raise Fault(f"{type(error).__name__}: {error}") from None
        return f"error {type(error).__name__}: {error}"
    return "passed"


class _Comparing(ast.NodeTransformer):
    """Compares numbers in `assert A == B` up to the tolerance."""

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        match node.test:
            case ast.Compare(left, [ast.Eq()], [right]):
                node.test = ast.Call(ast.Name("_is_equal", ast.Load()), [left, right], [])
        return node


def judge_with_checker(test: Mapping[str, Any], program_input: str, output: str | None) -> str:
    """Run a checker on the output of a program, or on the expected one, and return the verdict.

    An output on which the checker crashes is wrong if the checker accepts the expected output.

    Raises:
        Fault: if the checker gives no verdict.
    """
    output = test["expected"] if output is None else output
    verdict = _verdict(test["checker"], (program_input, test["expected"], output))
    if (
        verdict is None
        and _verdict(test["checker"], (program_input, test["expected"], test["expected"])) is not True
    ):
        raise Fault("the checker gives no verdict, and does not accept the expected output either")
    return "passed" if verdict else "error the checker rejects its output"


def _verdict(checker: str, texts: tuple[str, str, str]) -> bool | None:
    """Return whether a checker accepts: the last word that it prints is 1. None if it prints no number."""
    files = dict(zip(FILES, texts, strict=True))
    sys.argv = ["checker.py", *FILES]
    printed, status = io.StringIO(), 0
    with _opening(files), contextlib.redirect_stdout(printed):
        try:
            exec(compile(checker, "checker.py", "exec"), {"__name__": "__main__"})
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        except Exception:
            return None
    try:
        return float(printed.getvalue().split()[-1]) in ACCEPTED and status == 0
    except (IndexError, ValueError):
        return None


@contextlib.contextmanager
def _opening(files: Mapping[str, str]) -> Any:
    """Let `open` read these files, because a confined process can read no others."""
    original: Callable[..., Any] = builtins.open

    def opened(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        text = None if isinstance(path, int) else files.get(os.fspath(path))
        if text is None or set(mode) & set("wax+"):
            return original(path, mode, *arguments, **options)
        return io.BytesIO(text.encode()) if "b" in mode else io.StringIO(text)

    builtins.open = io.open = opened  # type: ignore[assignment]
    try:
        yield
    finally:
        builtins.open = io.open = original
