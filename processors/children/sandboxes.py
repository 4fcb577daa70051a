"""Sandboxes for a model's code: the command of each, and whether it works on this machine."""

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import trinity_db
from trinity_db import processors, sandbox
from trinity_db.processors.children.code import HEADER
from trinity_db.processors.children.pool import Pool, python
from trinity_db.sandbox.confine import readable

Sandbox = Literal["landlock", "bubblewrap"]

MODULE = "trinity_db.processors.children.code"
PROBE_SECONDS = 10.0


def command(name: Sandbox) -> list[str]:
    """Return the command of the sandboxed process. `bubblewrap` isolates its file system, network and
    processes."""
    return python(MODULE) if name == "landlock" else [*_bubblewrap(), *python(MODULE)]


def request(
    name: Sandbox,
    response: str,
    tests: Sequence[Mapping[str, Any]],
    seconds: float,
    row_seconds: float,
    memory_mb: int,
    *,
    judges: Sequence[Any] = (),
    names: Collection[str] = (),
    prompt: str = "",
) -> bytes:
    """Build the request for `children/code.py`.

    Args:
        judges: Texts and checkers, which tests name by index. Only judging processes read them.
        names: Functions and classes of which the code must define one; empty for a program.
        prompt: Prompt of the task, which may be the beginning of the code.
    """
    values = {
        "response": response,
        "names": list(names),
        "prompt": prompt,
        "has_input": any(test.get("input") for test in tests),
        "tests": list(tests),
        "seconds": seconds,
        "row_seconds": row_seconds,
        "memory_bytes": memory_mb << 20,
        "with_landlock": name == "landlock",
    }
    parts = [json.dumps({"seconds": row_seconds + 2 * seconds, "asked": values}), json.dumps(list(judges))]
    encoded = [part.encode() for part in parts]
    return HEADER.format(*map(len, encoded)).encode() + b"".join(encoded)


@cache
def fault(name: Sandbox) -> str | None:
    """Return why the sandbox does not work on this machine; None if it does."""
    if name == "bubblewrap" and shutil.which("bwrap") is None:
        return "the program bwrap is not installed"
    sent = request(name, "", [{"call": "6 * 7", "names": []}], PROBE_SECONDS, PROBE_SECONDS, 1024)
    [(_, answer)] = Pool(command(name), 1, 2 * PROBE_SECONDS).ask([sent])
    if isinstance(answer, Exception):
        return str(answer)
    return None if answer["results"] == [{"result": "42"}] else f"a test gave {answer['results']}"


def _bubblewrap() -> list[str]:
    """Return a bwrap command: a read-only file system with Python's files and two folders of the project."""
    files: list[str] = []
    for path in readable():
        files += ["--dev-bind" if path.startswith("/dev/") else "--ro-bind", path, path]
    own = {
        "trinity_db/__init__.py": Path(trinity_db.__file__),
        "trinity_db/processors/__init__.py": Path(processors.__file__ or ""),
        "trinity_db/processors/children": Path(__file__).parent,
        "trinity_db/sandbox": Path(sandbox.__file__ or "").parent,
    }
    for inside, outside in own.items():
        files += ["--ro-bind", str(outside.resolve()), f"/program/{inside}"]
    return [
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
        *files,
        *("--remount-ro", "/", "--setenv", "PYTHONPATH", "/program", "--chdir", "/", "--"),
    ]
