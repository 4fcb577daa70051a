"""Unit tests of a model's code: what passes, and what code can do that wants to pass, or to do harm."""

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.processors.children import sandboxes
from trinity_db.processors.children.pool import Pool
from trinity_db.processors.lists.step import Answer
from trinity_db.processors.steps.code import CodeTests

ADD = "def add(a, b):\n    return a + b"
NEEDS_BWRAP = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
SANDBOXES = ["landlock", pytest.param("bubblewrap", marks=NEEDS_BWRAP)]

MODEL = ModelConfig(path=Path("model"))

Grade = Callable[..., Answer]


def make(**options: Any) -> CodeTests:
    given: dict[str, Any] = {"seconds": 20.0, "processes": 1, **options}
    return CodeTests(None, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=SANDBOXES)
def grade(request: pytest.FixtureRequest) -> Grade:
    """What one row is worth, in each sandbox."""
    patient, hasty = (make(sandbox=request.param, seconds=seconds) for seconds in (20.0, 0.5))

    def judge(code: str, *tests: Any, is_hasty: bool = False) -> Answer:
        [(_, said)] = (hasty if is_hasty else patient)(
            [f"```python\n{code}\n```"], [{"tests": list(tests)}], [""]
        )
        assert isinstance(said, Answer), said
        return said

    return judge


def attempt(grade: Grade, *body: str) -> str:
    """What becomes of code that tries something: done, or the name of the error."""
    lines = "\n".join(f"        {line}" for line in body)
    caught = "    except BaseException as error:\n        return type(error).__name__"
    code = f"def f():\n    try:\n{lines}\n{caught}"
    said = grade(code + "\n    return 'done'", {"call": "f()", "result": "done"})
    if said.value == 1.0:
        return "done"
    for name in ("PermissionError", "OSError", "BlockingIOError", "MemoryError", "FileNotFoundError"):
        if grade(code + "\n    return 'done'", {"call": "f()", "result": name}).value == 1.0:
            return name
    return str(said.detail)


@pytest.mark.parametrize(
    ("code", "tests", "share"),
    [
        (ADD, ["assert add(1, 2) == 3", "assert add(0.1, 0.2) == 0.3", "assert add('a', 'b') == 'ab'"], 1.0),
        (ADD, [{"call": "add(1, 2)", "result": 3}, {"call": "add(1, 2)", "result": 4}], 0.5),
        (ADD, ["assert add(1, 2)", "assert not add(1, -1)", "assert add([1], [2]) == [1, 2]"], 1.0),
        (ADD, ["assert add((1,), (2,)) == (1, 2)", "assert set(add([1], [2])) == set([2, 1])"], 1.0),
        (ADD, {"inputs": [[1, 2], [3, 4]], "outputs": [3, 8], "fn_name": "add"}, 0.5),
        (
            "def f(x):\n    return {x: {1, 2}}",
            ["assert f('a') == {'a': {2, 1}}", "assert f(1) == {1: {1}}"],
            0.5,
        ),
        ("def f(x):\n    return x * 1j", ["assert f(2) == 2j"], 1.0),
        ("def f():\n    return 1", ["assert f() == True", "assert f() == '1'"], 0.5),
        (
            "def f():\n    return 10**300 * 10",
            ["assert f() == 1e301", {"call": "f()", "result": 10**301}],
            1.0,
        ),
        ("print(sum(map(int, input().split())))", [{"input": "1 2\n", "output": "3"}], 1.0),
        ("import sys\nprint(sys.stdin.read().upper())", {"inputs": ["a\nb\n"], "outputs": ["A\nB"]}, 1.0),
        ("print(1)\nraise ValueError", [{"input": "", "output": "1"}], 0.0),
        ("print(1)\nexit(3)", [{"input": "", "output": "1"}], 0.0),
        ("print(1)\nexit()", [{"input": "", "output": "1"}], 1.0),
        (
            "print(int(input()) // int(input()))",
            [{"input": "4\n2", "output": "2"}, {"input": "4", "output": "2"}],
            0.5,
        ),
        ("def f(:", ["assert f() == 1"], 0.0),
        ("import numpy\ndef f():\n    return float(numpy.ones(3).sum())", ["assert f() == 3.0"], 1.0),
    ],
)
def test_the_share_of_passed_tests(code: str, tests: Any, share: float) -> None:
    [(_, said)] = make()([code], [{"tests": tests}], [""])
    assert isinstance(said, Answer), said
    assert said.value == share, said.detail


def test_the_last_block_of_python_counts_and_the_sandbox_is_said() -> None:
    response = f"first\n```python\nadd = 1\n```\nthen\n```py\n{ADD}\n```\nand\n"
    [(_, said)] = make()([response], [{"tests": ["assert add(1, 2) == 3", "assert add(1, 2) == 4"]}], [""])
    assert isinstance(said, Answer)
    assert (said.value, said.detail) == (
        0.5,
        {
            "sandbox": said.detail["sandbox"],  # type: ignore[index]
            "tests": 2,
            "passed": 1,
            "first_failure": "test 2: an assertion is false",
        },
    )
    assert str((said.detail or {})["sandbox"]).startswith("landlock ")


@pytest.mark.parametrize(
    "response",
    [
        f"```python\n{ADD}\n```\nIt prints:\n```text\n3\n```\nDone.",
        f"```bash\nls\n```\nThen:\n```python\n{ADD}\n```\nIt prints:\n```\n3\n```\n",
        f"As ```add``` says:\n``` Python\n{ADD}\n```\nand ```json\n[3]\n```",
        f"```text\nadd\n```\nThis is it:\n```\n{ADD}\n",
    ],
)
def test_blocks_of_other_languages_and_what_stands_between_blocks_are_no_code(response: str) -> None:
    [(_, said)] = make()([response], [{"tests": ["assert add(1, 2) == 3"]}], [""])
    assert isinstance(said, Answer)
    assert said.value == 1.0, said.detail


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({}, "no unit tests in 'tests'; import tasks with --map tests=COLUMN"),
        ({"tests": []}, "no unit tests"),
        ({"tests": [1]}, "is none of"),
        ({"tests": [{"input": "", "output": "x" * 300_000}]}, "expects more than"),
    ],
)
def test_a_row_without_tests_that_are_understood_fails(task: dict[str, Any], said: str) -> None:
    [(place, error)] = make()([ADD], [task], [""])
    assert (place, isinstance(error, ValueError)) == (0, True)
    assert said in str(error)


def test_an_exit_or_a_forged_result_passes_no_test(grade: Grade) -> None:
    test = {"call": "f()", "result": 7}
    assert grade("import os\nos._exit(0)", test).value == 0.0
    assert grade("import os\ndef f():\n    os._exit(0)", test).value == 0.0
    forged = "import os\nos.write(3, b'result 6\\nlate\\nconfined nothing\\n')\nos._exit(0)"
    assert grade(forged, test).value == 0.0
    assert "nothing" not in str((grade(forged, test).detail or {})["sandbox"])
    assert (
        grade("class All:\n    def __eq__(self, other): return True\ndef f(): return All()", test).value
        == 0.0
    )


def test_what_is_expected_is_nowhere_in_the_process(grade: Grade) -> None:
    search = (
        "import gc, sys\ndef f():\n"
        "    texts = [str(one) for one in gc.get_objects() if isinstance(one, (dict, list))]\n"
        "    frame = sys._getframe()\n    while frame:\n        texts.append(str(frame.f_locals))\n"
        "        frame = frame.f_back\n    return any(''.join(['nee', 'dle']) in text for text in texts)"
    )
    needle = {"call": "f()", "result": "needle"}
    assert grade("def f():\n    return 'needle'", needle).value == 1.0, "a neighbour that knows it"
    assert grade(search, needle, {"call": "f()", "result": False}).value == 0.5
    assert grade(search, {"call": "f() or 'needle'", "result": True}).value == 1.0, "it finds what is there"


def test_a_fork_bomb_makes_no_process(grade: Grade) -> None:
    assert attempt(grade, "import os", "while True: os.fork()") == "PermissionError"
    assert attempt(grade, "import subprocess", "subprocess.run(['/bin/true'])") == "PermissionError"
    assert attempt(grade, "import os", "os.execv('/bin/true', ['true'])") == "PermissionError"
    assert attempt(grade, "import os", "os.posix_spawn('/bin/true', ['true'], {})") == "PermissionError"
    thread = ["import threading", "one = threading.Thread(target=print)", "one.start()", "one.join()"]
    assert attempt(grade, *thread) == "done"


def test_endless_output_endless_work_and_endless_memory_end(grade: Grade) -> None:
    test = {"input": "", "output": "1"}
    start = time.monotonic()
    assert "more than 256000 bytes" in str(grade("while True: print('x' * 1000)", test).detail)
    assert "took more than 0.5 s" in str(grade("while True: pass", test, is_hasty=True).detail)
    assert "took more than 0.5 s" in str(grade("import time\ntime.sleep(1000)", test, is_hasty=True).detail)
    ignore = (
        "import signal, os\nsignal.signal(2, lambda *_: None)\nos.close(1)\nos.close(3)\nwhile True: pass"
    )
    assert grade(ignore, test, is_hasty=True).value == 0.0
    assert "MemoryError" in str(grade("x = bytearray(10**10)", test).detail)
    deep = "def f(): f()\nimport sys\nsys.setrecursionlimit(10**9)\nf()"
    assert grade(deep, test, is_hasty=True).value == 0.0
    assert time.monotonic() - start < 60


def test_it_changes_no_file(grade: Grade, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("as it was")
    mine.chmod(0o666)
    refused = {"PermissionError", "FileNotFoundError", "OSError"}
    for line in (
        f"open({str(mine)!r}, 'w')",
        f"os.remove({str(mine)!r})",
        f"os.chmod({str(mine)!r}, 0)",
        f"os.rename({str(mine)!r}, {str(mine)!r} + '2')",
        f"os.mkdir({str(tmp_path / 'folder')!r})",
        f"os.symlink('/etc', {str(tmp_path / 'link')!r})",
        f"os.truncate({str(mine)!r}, 0)",
        f"os.utime({str(mine)!r})",
        "open('/dev/shm/x', 'w').write('x')",
        "open('/tmp/x-of-trinity', 'w').write('x')",
        "open('x', 'w').write('x')",
    ):
        assert attempt(grade, "import os", line) in refused, line
    assert (mine.read_text(), mine.stat().st_mode & 0o777) == ("as it was", 0o666)
    assert os.listdir(tmp_path) == ["mine"]


def test_it_reads_no_file_but_pythons_own(grade: Grade, tmp_path: Path) -> None:
    (tmp_path / "answers").write_text("42")
    refused = {"PermissionError", "FileNotFoundError"}
    for path in (tmp_path / "answers", Path("/etc/passwd"), Path("/proc/self/environ"), Path(__file__)):
        assert attempt(grade, f"open({str(path)!r}).read()") in refused, path
    for process in (os.getpid(), 1):
        assert attempt(grade, f"open('/proc/{process}/environ', 'rb').read()") in refused
    assert attempt(grade, "import os", f"os.listdir({str(tmp_path)!r})") in refused
    assert attempt(grade, "import json, decimal, heapq, bisect, fractions, itertools, collections") == "done"


def test_it_reaches_no_network(grade: Grade) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = ["import socket", f"socket.create_connection(('127.0.0.1', {port}), 5)"]
        assert attempt(grade, *connect) == "PermissionError"
        for family in ("AF_UNIX", "AF_INET6"):
            assert attempt(grade, "import socket", f"socket.socket(socket.{family})") == "PermissionError"
        server.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_it_signals_no_process(grade: Grade) -> None:
    for line in (
        "os.kill(os.getppid(), 9)",
        "os.killpg(os.getpgid(os.getppid()), 9)",
        f"os.kill({os.getpid()}, 9)",
        "os.kill(-1, 9)",
        "__import__('fcntl').fcntl(1, 8, os.getppid())",
        "__import__('resource').prlimit(os.getppid(), __import__('resource').RLIMIT_CPU, (0, 0))",
        "os.pidfd_open(os.getppid())",
    ):
        assert attempt(grade, "import os", line) == "PermissionError", line
    assert grade(ADD, "assert add(1, 2) == 3").value == 1.0


def test_the_environment_is_empty(grade: Grade, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", "postgresql://me:secret@host/db")
    code = "import os\ndef f():\n    return 'TRINITY_DB_URL' in os.environ"
    [(_, said)] = make()([code], [{"tests": ["assert not f()"]}], [""])
    assert isinstance(said, Answer)
    assert said.value == 1.0


def test_a_sandbox_that_cannot_be_made_runs_no_code(tmp_path: Path) -> None:
    weaker = "from trinity_db.sandbox import confine as c; c._LANDLOCK_CREATE = 9999; "
    command = [sys.executable, "-c", f"{weaker}from trinity_db.processors.children.code import main; main()"]
    marked = tmp_path / "ran"
    asked = sandboxes.request("landlock", f"open({str(marked)!r}, 'w')", [{"input": ""}], 20.0, 20.0, 1024)
    [(_, said)] = Pool(command, 1, 60.0).ask([asked])
    assert str(said) == "the sandbox cannot be set up: Landlock is missing: Function not implemented"
    assert not marked.exists()


def test_a_configuration_whose_sandbox_does_not_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def only(working: str) -> Callable[[str], str | None]:
        return lambda name: None if name == working else "not here"

    monkeypatch.setattr(sandboxes, "fault", only("bubblewrap"))
    with pytest.raises(
        ConfigError, match=r"landlock does not work here: not here; set sandbox: bubblewrap\.$"
    ):
        CodeTests.check(MODEL, sandbox="landlock")
    CodeTests.check(MODEL, sandbox="bubblewrap")
    monkeypatch.setattr(sandboxes, "fault", only("none"))
    with pytest.raises(ConfigError, match=r"process on a machine where one does\.$"):
        CodeTests.check(MODEL, sandbox="bubblewrap")


def test_rows_are_tested_in_any_order_and_one_without_tests_fails_alone() -> None:
    said = dict(
        make(processes=2)(
            [ADD] * 3,
            [{"tests": ["assert add(1, 1) == 2"]}, {}, {"tests": ["assert add(1, 1) == 3"]}],
            [""] * 3,
        )
    )
    assert [one.value if isinstance(one, Answer) else type(one) for _, one in sorted(said.items())] == [
        1.0,
        ValueError,
        0.0,
    ]
