"""Reads the unit tests of a task, in the forms of public data sets.

| form | data sets |
| --- | --- |
| {"inputs": […], "outputs": […]}, with fn_name for calls | APPS, TACO, PRIME Eurus |
| [{"input", "output", "testtype"}, …] and metadata.func_name | LiveCodeBench |
| [{"input", "output"}, …] and generated_checker | Codeforces |
| check(candidate) and entry_point | HumanEval |
| assertions, test_imports and test_setup_code | MBPP |

A form that is not understood is an error, so that its row fails instead of scoring 0.
"""

import ast
import base64
import binascii
import json
import textwrap
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trinity_db.data.formats import plain_pickle
from trinity_db.processors.children.code import MAX_OUTPUT
from trinity_db.processors.children.values import as_json, decode, encode, is_equal
from trinity_db.processors.unit_tests.names import free_names, omitted_imports, parsed
from trinity_db.processors.unit_tests.outputs import is_printed

MAX_TESTS = 1000  # per row
MAX_UNPACKED = 1 << 26  # bytes of compressed tests
CALLED, PRINTED = {"functional", "function_call"}, {"stdin", "stdin_stdout"}
FORMS = '{"input", "output"}, {"call", "result"}, "assert f(x) == 1"'


@dataclass(frozen=True)
class UnitTest:
    """A unit test: the part that the code's process receives, and the expected result."""

    request: Mapping[str, Any]
    names: frozenset[str] = frozenset()
    """Functions and classes that it needs; empty for a program."""
    expected: Any = None
    """Output of a program, or the JSON values of which a call returns one. It stays in the processor."""
    judged_by: Mapping[str, Any] | None = None
    """Text or checker with the expected result. Only judging processes of the sandbox receive it."""

    def failure(self, outcome: Mapping[str, Any]) -> str | None:
        """Return why the test failed; None if it passed."""
        if "error" in outcome:
            return str(outcome["error"])
        if "passed" in outcome:
            return None
        if "output" in outcome:
            return None if is_printed(outcome["output"], self.expected) else "it printed something else"
        try:
            result = as_json(decode(json.loads(outcome["result"])))
            passes = any(is_equal(result, expected) for expected in self.expected)
            return None if passes else "its result is another"
        except Exception:  # the code may have written anything in place of its result
            return "its result cannot be compared"


def of_task(task: Mapping[str, Any], column: str) -> list[UnitTest]:
    """Return the unit tests of a task.

    Raises:
        ValueError: if it has none, or a test is not understood.
    """
    if task.get("interaction_format"):
        raise ValueError("the task is interactive ('interaction_format'), which unit tests cannot judge")
    if task.get("input_mode") == "file":
        raise ValueError("the task's programs read files ('input_mode'), which the sandbox does not offer")
    value = _unpacked(task.get(column))
    if isinstance(value, Mapping) and "test_cases" in value:
        value = value["test_cases"]
    if isinstance(value, Mapping) and {"inputs", "outputs"} <= value.keys():
        tests = _of_lists(value, task)
    else:
        items = [value] if isinstance(value, str | Mapping) and value else value
        if not isinstance(items, list) or not items:
            raise ValueError(
                f"the task has no unit tests in '{column}'; import tasks with --map {column}=COLUMN"
            )
        tests = [test for item in items for test in _of_item(_unpacked(item), task)]
    if not tests:
        raise ValueError(f"the task has no unit tests in '{column}'")
    if len(tests) > MAX_TESTS:
        raise ValueError(f"the task has {len(tests)} unit tests, more than {MAX_TESTS}")
    return tests


def prompt_of(task: Mapping[str, Any]) -> str:
    """Return the task's prompt, or the last message of a conversation. HumanEval's begins the code."""
    messages = task.get("messages")
    last = messages[-1].get("content") if isinstance(messages, list) and messages else None
    prompt = task.get("prompt") or last
    return prompt if isinstance(prompt, str) else ""


def _unpacked(value: Any) -> Any:
    """Return the value of JSON or of LiveCodeBench's compressed private tests; another value unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        packed = zlib.decompressobj().decompress(base64.b64decode(value, validate=True), MAX_UNPACKED)
        return json.loads(plain_pickle.loads(packed))
    except (binascii.Error, zlib.error, ValueError, TypeError):
        return value


def _of_lists(lists: Mapping[str, Any], task: Mapping[str, Any]) -> list[UnitTest]:
    inputs, outputs = lists["inputs"], lists["outputs"]
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("the lists 'inputs' and 'outputs' of the unit tests have different lengths")
    name = lists.get("fn_name") or task.get("fn_name")
    if not name:
        return [_of_program(input, output, task) for input, output in zip(inputs, outputs, strict=True)]
    expected = [_expected(input, output) for input, output in zip(inputs, outputs, strict=True)]
    # In APPS and TACO most results are in a list of their own: [[3], [7]] are the results 3 and 7.
    is_wrapped = all(isinstance(value, list) and len(value) == 1 for value in expected)
    return [
        _of_call(name, _with_integer_keys(_arguments(input)), [value, *(value if is_wrapped else [])])
        for input, value in zip(inputs, expected, strict=True)
    ]


def _of_item(item: Any, task: Mapping[str, Any]) -> list[UnitTest]:
    if isinstance(item, str):
        return [*_of_text(item, task)]
    if isinstance(item, Mapping) and {"input", "output"} <= item.keys():
        kind = item.get("testtype") or item.get("type") or ("functional" if item.get("fn_name") else "stdin")
        if kind in PRINTED:
            return [_of_program(item["input"], item["output"], task)]
        if kind in CALLED:
            name = item.get("fn_name") or _function_name(item) or _function_name(task)
            if not name:
                raise ValueError(
                    "a unit test is functional, but neither fn_name nor metadata.func_name names a function"
                )
            return [_of_call(name, _arguments(item["input"]), [_expected(item["input"], item["output"])])]
        raise ValueError(f"the unit tests have the unknown type {kind!r}")
    if isinstance(item, Mapping) and {"call", "result"} <= item.keys():
        call = str(item["call"])
        names = free_names(parsed(call, "eval").body)
        return [UnitTest({"call": call, "names": sorted(names)}, names, expected=[item["result"]])]
    shown = json.dumps(item, default=str)[:100]
    if isinstance(item, Mapping) and item.keys() & {"input", "call"}:
        missing = "output" if "input" in item else "result"
        raise ValueError(f"the unit test {shown} has no '{missing}'")
    raise ValueError(f"the unit test {shown} is none of {FORMS}")


def _function_name(holder: Mapping[str, Any]) -> Any:
    metadata = _unpacked(holder.get("metadata"))
    name = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    return name or holder.get("fn_name") or holder.get("entry_point")


def _of_call(name: Any, arguments: Sequence[Any], expected: list[Any]) -> UnitTest:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"the unit tests call {name!r}, which is no name of a function")
    return UnitTest(
        {"function": name, "arguments": encode([*arguments])}, frozenset({name}), expected=expected
    )


def _arguments(value: Any) -> list[Any]:
    """Return the arguments of a call: a list, or text with one JSON value per line."""
    if isinstance(value, list):
        return value
    if not isinstance(value, str):
        raise ValueError(f"the input of a call is neither a list of arguments nor text: {str(value)[:100]}")
    return [_json(line) for line in value.split("\n") if line.strip()]


def _expected(input: Any, output: Any) -> Any:
    return _json(output) if isinstance(input, str) and isinstance(output, str) else output


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"the input or output of a call is not JSON: {text[:100]}") from None


def _with_integer_keys(arguments: list[Any]) -> list[Any]:
    """Undo JSON's conversion of integer keys to text, in the first argument, like APPS and TACO do."""
    if (
        arguments
        and isinstance(arguments[0], dict)
        and all(key.lstrip("-").isdecimal() for key in arguments[0])
    ):
        return [{int(key): value for key, value in arguments[0].items()}, *arguments[1:]]
    return arguments


def _of_program(input: Any, output: Any, task: Mapping[str, Any]) -> UnitTest:
    expected = output if isinstance(output, bool) else _lines(output, "output")
    if len(str(expected)) > MAX_OUTPUT:
        raise ValueError(f"a unit test expects more than {MAX_OUTPUT} characters of output")
    request = {"input": _lines(input, "input")}
    if checker := _checker(task):
        return UnitTest(request, judged_by={"checker": checker, "expected": str(expected)})
    return UnitTest(request, expected=expected)


def _lines(value: Any, field: str) -> str:
    """Return text; numbers are written as text, and a list is joined to lines."""
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | int | float) for item in items):
        raise ValueError(f"the {field} of a program is neither text nor lines of text: {str(value)[:100]}")
    return "\n".join(map(str, items))


def _checker(task: Mapping[str, Any]) -> str | None:
    """Return the program that judges outputs.

    Raises:
        ValueError: if it is no Python program.
    """
    for column in ("generated_checker", "checker"):
        if text := task.get(column):
            try:
                nodes = ast.walk(ast.parse(text))
                if any(isinstance(node, ast.Call) for node in nodes):
                    return str(text)
            except (SyntaxError, ValueError, TypeError, RecursionError):
                pass
            raise ValueError(
                f"the column '{column}' is not a Python program, the only kind of checker that runs"
            )
    return None


def _of_text(text: str, task: Mapping[str, Any]) -> Iterator[UnitTest]:
    """Yield a test for each assertion, or each test function; or one for the whole text, such as a check."""
    body = [node for node in parsed(textwrap.dedent(text)).body if not _is_import_of_solution(node)]
    imports = (ast.Import, ast.ImportFrom)
    setup = [*_setup(task), *(node for node in body if isinstance(node, imports))]
    statements = [node for node in body if not isinstance(node, imports)]
    if not any(isinstance(node, ast.Assert) for statement in statements for node in ast.walk(statement)):
        raise ValueError(f"the unit test {text.strip()[:100]!r} has no assertion")
    assertions = [node for node in statements if isinstance(node, ast.Assert)]
    if assertions == statements:
        for node in assertions:
            if not isinstance(node.test, ast.Constant):
                yield _judged([*setup, node])
        return
    functions = [node.name for node in statements if isinstance(node, ast.FunctionDef)]
    not_functions = [node for node in statements if not isinstance(node, ast.FunctionDef)]
    called = {
        node.id for statement in not_functions for node in ast.walk(statement) if isinstance(node, ast.Name)
    }
    calls = [f"{name}()" for name in functions if name.startswith("test")]
    if "check" in functions and "check" not in called:
        if not task.get("entry_point"):
            raise ValueError("the unit tests define check, but the task has no 'entry_point' to check")
        check = parsed(f"check({task['entry_point']})").body
        yield _judged([*_helpers(task), *setup, *statements, *check])
    elif (
        calls
        and not called & {*functions}
        and not any(isinstance(node, ast.Assert) for node in not_functions)
    ):
        for call in calls:
            yield _judged([*setup, *statements, *parsed(call).body])
    else:
        yield _judged([*setup, *statements])


def _setup(task: Mapping[str, Any]) -> list[ast.stmt]:
    """Return the statements of MBPP's columns for imports and other preparations."""
    imports, setup = task.get("test_imports") or [], task.get("test_setup_code") or ""
    lines = [*([imports] if isinstance(imports, str) else imports), setup]
    statements: list[ast.stmt] = parsed("\n".join(lines)).body
    return statements


def _helpers(task: Mapping[str, Any]) -> list[ast.stmt]:
    """Return what HumanEval's prompt defines besides the function that a response completes."""
    try:
        body = ast.parse(prompt_of(task)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef)
    return [
        node for node in body if isinstance(node, kinds) and getattr(node, "name", "") != task["entry_point"]
    ]


def _is_import_of_solution(node: ast.stmt) -> bool:
    """Whether it imports the code that is tested, like tests for pytest do: from solution import f."""
    return isinstance(node, ast.ImportFrom) and node.module == "solution"


def _is_import_of_asyncio(node: ast.AST) -> bool:
    return isinstance(node, ast.Import) and any(alias.name == "asyncio" for alias in node.names)


def _judged(statements: Sequence[ast.stmt]) -> UnitTest:
    module = ast.Module([*statements], [])
    module.body[:0] = omitted_imports(module)
    if any(isinstance(node, ast.Await) or _is_import_of_asyncio(node) for node in ast.walk(module)):
        raise ValueError("a unit test awaits the code, which runs in another process")
    names = free_names(module)
    if not names:
        raise ValueError("a unit test calls nothing that a response could define")
    handlers = [node.type for node in ast.walk(module) if isinstance(node, ast.ExceptHandler) and node.type]
    if caught := names & {
        node.id for kind in handlers for node in ast.walk(kind) if isinstance(node, ast.Name)
    }:
        raise ValueError(f"a unit test catches {min(caught)}, an exception class of the response")
    text = ast.unparse(ast.fix_missing_locations(module))
    return UnitTest({}, names, judged_by={"text": text, "names": sorted(names)})
