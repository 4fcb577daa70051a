"""The process that runs a model's code with the inputs of unit tests, confined, and says what came out.

`pool.py` starts it, with an empty environment. It never reads a request: it forks a child for each row. The
child reads the row, and forks a grandchild for each test, which confines itself and runs the code. So no code
can find other rows in its memory. What the tests expect never comes here: the processor compares. Code may
thus exit, lie or crash as it likes, and is only wrong.
"""

import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from trinity_db.processors.children.lines import GRACE_SECONDS
from trinity_db.sandbox.confine import CannotConfine, confine

MAX_OUTPUT = 256_000  # bytes of one test
RESULT = 3  # the descriptor on which a test says how it was confined and how it ended


def main() -> None:
    """Fork for each request until standard input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.write(1, b"\n")
    while True:
        select.select([0], [], [])
        if (child := os.fork()) == 0:
            os._exit(_answer())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:  # 1: standard input has ended, so the pool is gone or has closed it
            os._exit(0 if status == 1 else 2)


def _answer() -> int:
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1 << 20)
        if not chunk:
            return 1
        line += chunk
    request = json.loads(line)
    signal.setitimer(signal.ITIMER_REAL, request["seconds"] + GRACE_SECONDS)
    said = json.dumps(_run(request["asked"])).encode() + b"\n"
    while said:
        said = said[os.write(1, said) :]
    return 0


def _run(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """What each test gave, and how it was confined; or an error, if it could not be."""
    results: list[Mapping[str, Any]] = []
    confined = ""
    deadline = time.monotonic() + asked["row_seconds"]
    for test in asked["tests"]:
        seconds = min(asked["seconds"], deadline - time.monotonic())
        if seconds <= 0:
            results.append({"error": f"no time is left of {asked['row_seconds']:g} s for all tests"})
            continue
        output, result = _run_test(asked, test, seconds)
        lines = result.decode("utf-8", "replace").splitlines()
        if not lines or not lines[0].startswith("confined "):
            return {"error": lines[0] if lines else "the sandbox ended before the code began"}
        confined = lines[0].removeprefix("confined ")
        results.append(_said(lines[1:], output, test, seconds))
    return {"answer": {"results": results, "sandbox": confined}}


def _said(lines: list[str], output: bytes, test: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
    """What came out of one test."""
    last = lines[-1] if lines else ""
    if len(output) > MAX_OUTPUT or sum(map(len, lines)) > MAX_OUTPUT:
        return {"error": f"it wrote more than {MAX_OUTPUT} bytes"}
    if last == "late":
        return {"error": f"it took more than {seconds:.3g} s"}
    if last.startswith("error "):
        return {"error": last.removeprefix("error ")[:500]}
    if "call" in test:
        found = [line for line in lines if line.startswith("result ")]
        return (
            {"result": found[0].removeprefix("result ")} if found else {"error": "it ended before its result"}
        )
    return {"output": output.decode("utf-8", "replace")}


def _run_test(asked: Mapping[str, Any], test: Mapping[str, Any], seconds: float) -> tuple[bytes, bytes]:
    """What a grandchild wrote on its standard output, and on RESULT."""
    given = os.memfd_create("input")
    os.write(given, test.get("input", "").encode())
    os.lseek(given, 0, os.SEEK_SET)
    output, output_end = os.pipe()
    result, result_end = os.pipe()
    child = os.fork()
    if child == 0:
        _become(given, output_end, result_end)
        _grandchild(asked, test)
    for descriptor in (given, output_end, result_end):
        os.close(descriptor)
    received = _collect(output, result, time.monotonic() + seconds)
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status and not received[result].endswith(b"late") and b"\nerror " not in received[result]:
        received[result] += f"\nerror it ended with {status}".encode() if received[result] else b""
    return received[output], received[result]


def _collect(output: int, result: int, deadline: float) -> dict[int, bytes]:
    """All that is written until both ends are closed, the time is over, or it is too much."""
    received = {output: b"", result: b""}
    open_ones = [output, result]
    while open_ones:
        ready, _, _ = select.select(open_ones, [], [], max(deadline - time.monotonic(), 0.0))
        if not ready:
            received[result] += b"\nlate" if received[result] else b""
            break
        for one in ready:
            chunk = os.read(one, 1 << 16)
            received[one] += chunk
            if not chunk:
                open_ones.remove(one)
        if len(received[output]) > MAX_OUTPUT or len(received[result]) > 2 * MAX_OUTPUT:
            break
    os.close(output)
    os.close(result)
    return received


def _become(given: int, output: int, result: int) -> None:
    """The grandchild's only descriptors: input, output, nothing for errors, and RESULT."""
    os.setsid()
    moved = [os.dup(one) for one in (given, output, result)]
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(moved[0], 0)
    os.dup2(moved[1], 1)
    os.dup2(nothing, 2)
    result = os.dup(moved[2])
    os.dup2(result, RESULT)
    os.closerange(RESULT + 1, 1024)
    os.chdir("/")


def _grandchild(asked: Mapping[str, Any], test: Mapping[str, Any]) -> None:
    """Confine this process, run the code, say how it ended. It never returns."""
    try:
        how = confine(asked["memory_bytes"], int(asked["seconds"]) + 2, asked["with_landlock"])
    except (CannotConfine, OSError, ValueError) as error:
        os.write(RESULT, f"the sandbox cannot be made: {error}".encode())
        os._exit(0)
    os.write(RESULT, f"confined {how}\n".encode())
    sys.stdin, sys.stdout = os.fdopen(0, encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8")
    sys.argv = ["answer.py"]
    status = 0
    try:
        names: dict[str, Any] = {"__name__": "answer" if "call" in test else "__main__"}
        exec(compile(asked["code"], "answer.py", "exec"), names)
        if "call" in test:
            value = eval(compile(test["call"], "test", "eval"), names)
            _write(f"result {json.dumps(plain(value))}\n")
        sys.stdout.flush()
    except SystemExit as error:
        sys.stdout.flush()
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        _write("error " + " ".join(f"{type(error).__name__}: {error}".split()) + "\n")
    os._exit(status & 0xFF)


def _write(text: str) -> None:
    data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(RESULT, data) :]


def plain(value: Any) -> Any:
    """A value as JSON has it, so that the processor can compare it without running anything of it.

    The processor gives the expected value the same form.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, set | frozenset):
        return {"set": sorted((plain(one) for one in value), key=repr)}
    if isinstance(value, dict):
        return {"dict": sorted(([plain(key), plain(one)] for key, one in value.items()), key=repr)}
    return {"repr": repr(value)}


if __name__ == "__main__":
    main()
