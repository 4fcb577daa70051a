"""The process that runs a model's code on unit tests, confined, and reports the results.

`pool.py` starts it with an empty environment. It does not read requests itself, but forks a child for each
row. The child reads the row and forks a process for each test, which confines itself and runs the code, so
that no code finds other rows in its memory. The processor compares most results. Expected results that only
the sandbox can judge with are kept in a file in memory: the row's child does not read it, the processes of
the code do not have it, and only a judging process does (`checks.py`). Code that exits, forges output or
crashes only fails its test.
"""

import atexit
import builtins
import contextlib
import fcntl
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from trinity_db.processors.children.blocks import code_of
from trinity_db.processors.children.checks import (
    Code,
    Fault,
    judge_with_checker,
    judge_with_text,
    own_name,
    serve,
)
from trinity_db.processors.children.lines import GRACE_SECONDS
from trinity_db.processors.children.prelude import prelude
from trinity_db.processors.children.values import decode, encode
from trinity_db.sandbox.confine import CannotConfine, confine

MAX_OUTPUT = 256_000  # bytes per test
HEADER = "{:011d} {:011d}\n"  # bytes of the request, and bytes of what only judging processes read
HEADER_BYTES = 24
RECURSION = 50_000  # LiveCodeBench's limit of calls within calls
STACK_BYTES = 100 << 20  # for as many calls through C, such as those of functools.lru_cache
# File descriptors of a test's processes.
RESULT = 3  # its confinement and result
REQUESTS, ANSWERS, KEPT = 4, 5, 6  # of `checks.py`


class CannotJudge(Exception):
    """A test cannot be judged, so the row fails; the message has the reason."""


def main() -> None:
    """Fork for each request until standard input is closed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    stack = STACK_BYTES if most == resource.RLIM_INFINITY else min(STACK_BYTES, most)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, most))
    sys.set_int_max_str_digits(0)
    prelude()
    os.write(1, b"\n")
    while True:
        select.select([0], [], [])
        if (child := os.fork()) == 0:
            os._exit(_answer())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:  # 1: standard input is closed, because the pool is gone or has closed it
            os._exit(0 if status == 1 else 2)


def _answer() -> int:
    """Answer one request: a header, JSON, and JSON for the judging processes."""
    header = _read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return 1
    num_bytes, num_kept = map(int, header.split())
    request = json.loads(_read(num_bytes))
    signal.setitimer(signal.ITIMER_REAL, request["seconds"] + GRACE_SECONDS)
    answer = json.dumps(_run(request["asked"], _keep(num_kept))).encode() + b"\n"
    while answer:
        answer = answer[os.write(1, answer) :]
    return 0


def _read(num_bytes: int) -> bytes:
    """Read from standard input, at most to its end."""
    data = b""
    while len(data) < num_bytes and (chunk := os.read(0, num_bytes - len(data))):
        data += chunk
    return data


def _keep(num_bytes: int) -> int:
    """Move the rest of the request to a file in memory, without having it in this process's memory."""
    file = os.memfd_create("kept")
    if (child := os.fork()) == 0:
        os.write(file, _read(num_bytes))
        os._exit(0)
    os.waitpid(child, 0)
    return file


def _run(request: Mapping[str, Any], kept_file: int) -> Mapping[str, Any]:
    """Return the result of each test and its confinement; or an error, if it cannot be judged."""
    results: list[Mapping[str, Any]] = []
    deadline = time.monotonic() + request["row_seconds"]
    row = _Row(request, kept_file)
    try:
        parts = row.choose()
        for test in request["tests"]:
            seconds = min(request["seconds"], deadline - time.monotonic())
            if seconds <= 0:
                results.append({"error": f"no time is left of {request['row_seconds']:g} s for all tests"})
            else:
                results.append(row.result(parts, test, seconds))
    except CannotJudge as error:
        return {"error": str(error)}
    return {"answer": {"results": results, "sandbox": row.confinement}}


class _Row:
    """Runs the processes of a row's tests.

    Args:
        kept_file: File of what only judging processes read.
    """

    def __init__(self, request: Mapping[str, Any], kept_file: int) -> None:
        self._request = request
        self._kept_file = kept_file
        self.confinement = ""

    def choose(self) -> list[str] | None:
        """Return the parts of the response's code; None if the text cannot be parsed in time."""
        output, lines = self._process("", self._request["seconds"], lambda: _write_code(self._request))
        return None if lines else list(json.loads(output))

    def result(self, parts: list[str] | None, test: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Return the outcome of one test.

        Raises:
            CannotJudge: if the test is wrong, or the sandbox cannot be set up.
        """
        if parts is None:
            return {"error": "its code cannot be parsed"}
        if "text" in test:
            return self._judged_by_text(parts, test, seconds)
        output, lines = self._process(test.get("input", ""), seconds, lambda: _run_code(parts, test))
        last = lines[-1] if lines else ""
        if len(output) > MAX_OUTPUT or sum(map(len, lines)) > MAX_OUTPUT:
            return {"error": f"it wrote more than {MAX_OUTPUT} bytes"}
        if last == "late":
            return {"error": f"it took more than {seconds:.3g} s"}
        if last.startswith("error "):
            return {"error": last.removeprefix("error ")[:500]}
        if "input" not in test:
            values = [line for line in lines if line.startswith("result ")]
            return (
                {"result": values[0].removeprefix("result ")}
                if values
                else {"error": "it ended before its result"}
            )
        text = output.decode("utf-8", "replace")
        return self._judged_by_checker(test, text) if "checker" in test else {"output": text}

    def _judged_by_text(self, parts: list[str], test: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Run the code in one process and the text of the test in another, connected by two pipes."""
        requests, requests_end = os.pipe()
        answers, answers_end = os.pipe()
        nothing = os.open(os.devnull, os.O_RDWR)
        code = self._start([nothing, nothing, nothing, answers_end, requests], lambda: _serve_code(parts))
        _close(answers_end, requests)
        try:
            _, lines = self._process(
                "", seconds, lambda: _judge_text(test["text"]), [requests_end, answers, self._kept_file]
            )
        finally:
            _close(requests_end, answers, nothing)
            _kill(code)
        return _verdict(lines, f"it took more than {seconds:.3g} s")

    def _judged_by_checker(self, test: Mapping[str, Any], output: str) -> Mapping[str, Any]:
        seconds = self._request["seconds"]
        if (lines := self._checked(test, output))[-1:] != ["late"]:
            return _verdict(lines, "")
        if self._checked(test, None) != ["passed"]:
            raise CannotJudge(f"the checker took more than {seconds:g} s")
        return {"error": f"the checker took more than {seconds:g} s for its output"}

    def _checked(self, test: Mapping[str, Any], output: str | None) -> list[str]:
        """Return what the checker's process reports about an output; None: the expected output."""
        copies = [self._kept_file] * (KEPT - RESULT)
        return self._process("", self._request["seconds"], lambda: _judge_output(test, output), copies)[1]

    def _process(
        self, program_input: str, seconds: float, act: Callable[[], None], further: Sequence[int] = ()
    ) -> tuple[bytes, list[str]]:
        """Run a function in a confined process; return its output, and the lines that it wrote to RESULT.

        The last line is "late" after the time limit, and "error …" if the process ended with a status.

        Raises:
            CannotJudge: if the process could not be confined.
        """
        file = os.memfd_create("input")
        os.write(file, program_input.encode("utf-8", "replace"))
        os.lseek(file, 0, os.SEEK_SET)
        nothing = os.open(os.devnull, os.O_RDWR)
        output, output_end = os.pipe()
        result, result_end = os.pipe()
        child = self._start([file, output_end, nothing, result_end, *further], act)
        _close(file, nothing, output_end, result_end)
        received = _collect(output, result, time.monotonic() + seconds)
        status = _kill(child)
        last = received[result].rstrip(b"\n").rpartition(b"\n")[2]
        if status and last != b"late" and not last.startswith(b"error "):
            received[result] += f"\nerror it ended with {status}".encode() if received[result] else b""
        lines = received[result].decode("utf-8", "replace").splitlines()
        if not lines or not lines[0].startswith("confined "):
            raise CannotJudge(lines[0] if lines else "the sandbox ended before the code began")
        self.confinement = lines[0].removeprefix("confined ")
        return received[output], lines[1:]

    def _start(self, descriptors: Sequence[int], act: Callable[[], None]) -> int:
        """Fork a process with these descriptors, from 0, which confines itself and calls a function."""
        if child := os.fork():
            return child
        try:
            _become(descriptors)
            try:
                how = confine(
                    self._request["memory_bytes"],
                    int(self._request["seconds"]) + 2,
                    self._request["with_landlock"],
                )
            except (CannotConfine, OSError, ValueError) as error:
                os.write(RESULT, f"the sandbox cannot be set up: {error}".encode())
                os._exit(0)
            os.write(RESULT, f"confined {how}\n".encode())
            act()
        finally:
            os._exit(1)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _kill(child: int) -> int:
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _collect(output: int, result: int, deadline: float) -> dict[int, bytes]:
    """Read until both pipes are closed, the time is over, or the output is too long."""
    received = {output: b"", result: b""}
    open_pipes = [output, result]
    while open_pipes:
        ready, _, _ = select.select(open_pipes, [], [], max(deadline - time.monotonic(), 0.0))
        if not ready:
            received[result] += b"\nlate" if received[result] else b""
            break
        for pipe in ready:
            chunk = os.read(pipe, 1 << 16)
            received[pipe] += chunk
            if not chunk:
                open_pipes.remove(pipe)
        if len(received[output]) > MAX_OUTPUT or len(received[result]) > 2 * MAX_OUTPUT:
            break
    _close(output, result)
    return received


def _become(descriptors: Sequence[int]) -> None:
    """Make these the process's only descriptors."""
    os.setsid()
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, len(descriptors)) for descriptor in descriptors]
    for number, descriptor in enumerate(moved):
        os.dup2(descriptor, number)
    os.closerange(len(descriptors), 1024)
    os.chdir("/")


def _verdict(lines: Sequence[str], late: str) -> Mapping[str, Any]:
    """Return the outcome that a judging process reported."""
    last = lines[-1] if lines else ""
    if last.startswith("fault "):
        raise CannotJudge(last.removeprefix("fault ")[:500] or "the sandbox ended before the code began")
    if last == "passed":
        return {"passed": True}
    return {
        "error": late if last == "late" else last.removeprefix("error ")[:500] or "it ended before its result"
    }


def _write_code(request: Mapping[str, Any]) -> None:
    """Write the parts of the response's code."""
    parts = code_of(request["response"], request["names"], request["has_input"], request["prompt"])
    data = json.dumps(parts).encode()
    while data:
        data = data[os.write(1, data) :]
    os._exit(0)


def _run_code(parts: Sequence[str], test: Mapping[str, Any]) -> None:
    """Run the code, and write the result of a call. Never returns."""
    status = 0
    try:
        names = _loaded("__main__" if "input" in test else "answer", parts)
        if "input" not in test:
            _write(f"result {json.dumps(encode(_call(names, test)))}\n")
            os._exit(0)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        _write_error(error)
        os._exit(0)
    _end_program()
    os._exit(status & 0xFF)


def _end_program() -> None:
    """Wait for threads, call the functions of atexit and flush the output, like Python at a program's end."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()


def _loaded(name: str, parts: Sequence[str]) -> dict[str, Any]:
    """Run the code as a module of this name; return its names."""
    sys.stdin, sys.stdout = os.fdopen(0, encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8")
    sys.__stdin__, sys.__stdout__ = sys.stdin, sys.stdout  # type: ignore[misc]
    sys.argv = ["answer.py"]
    sys.setrecursionlimit(RECURSION)
    module = sys.modules[name] = ModuleType(name)
    names = module.__dict__
    names["__builtins__"] = {**prelude(), "stdin": sys.stdin, "stdout": sys.stdout, "argv": sys.argv}
    for part in parts:
        exec(compile(part, "answer.py", "exec"), names)
    return names


def _call(names: dict[str, Any], test: Mapping[str, Any]) -> Any:
    """Evaluate the call of a test with functions that the code defines, not with those of the prelude."""
    if "function" in test:
        return own_name(names, test["function"])(*decode(test["arguments"]))
    own = {}
    for name in test["names"]:
        with contextlib.suppress(NameError):
            own[name] = own_name(names, name)
    if test["names"] and not own:
        raise NameError(f"the response does not define {' or '.join(test['names'])}")
    return eval(compile(test["call"], "test", "eval"), {**names, **own, "__builtins__": builtins})


def _serve_code(parts: Sequence[str]) -> None:
    """Run the code, then answer the judging process."""
    try:
        names = _loaded("answer", parts)
    except BaseException as error:
        _write_error(error)
    else:
        _write("loaded\n")
        serve(names, REQUESTS, RESULT)
    os._exit(0)


def _judge_text(index: int) -> None:
    """Write the verdict of a test's text on the code in the other process."""
    code = Code(REQUESTS, ANSWERS)
    if not (confinement := code.confinement()).startswith("confined "):
        _write(f"fault {confinement}\n")
    elif failure := code.load_error():
        _write(f"error {failure}\n")
    else:
        _write_verdict(lambda: judge_with_text(_kept()[index], code))


def _judge_output(test: Mapping[str, Any], output: str | None) -> None:
    """Write the verdict of a checker on the output of a program."""
    _write_verdict(lambda: judge_with_checker(_kept()[test["checker"]], test["input"], output))


def _write_verdict(judge: Callable[[], str]) -> None:
    try:
        verdict = judge()
    except Fault as fault:
        verdict = f"fault {fault}"
    except BaseException as error:
        verdict = f"error {type(error).__name__}: {error}"
    _write(" ".join(verdict.split()) + "\n")
    os._exit(0)


def _kept() -> Any:
    """Return what only judging processes read."""
    return json.loads(os.pread(KEPT, os.fstat(KEPT).st_size, 0))


def _write_error(error: BaseException) -> None:
    _write("error " + " ".join(f"{type(error).__name__}: {error}".split()) + "\n")


def _write(text: str) -> None:
    data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(RESULT, data) :]


if __name__ == "__main__":
    main()
