"""The sandboxes in which code of a model may run: how each starts its process, and whether it works here."""

import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import trinity_db
from trinity_db import processors, sandbox
from trinity_db.processors.children.pool import Pool, python
from trinity_db.sandbox.confine import readable

Sandbox = Literal["landlock", "bubblewrap"]

MODULE = "trinity_db.processors.children.code"
PROBE_SECONDS = 10.0


def command(name: Sandbox) -> list[str]:
    """How its process is started. With `bubblewrap` it has file system, network and processes of its own."""
    return python(MODULE) if name == "landlock" else [*_bubblewrap(), *python(MODULE)]


def request(
    name: Sandbox, code: str, tests: Sequence[Any], seconds: float, row_seconds: float, memory_mb: int
) -> dict[str, Any]:
    """What `children/code.py` is asked."""
    return {
        "code": code,
        "tests": list(tests),
        "seconds": seconds,
        "row_seconds": row_seconds,
        "memory_bytes": memory_mb << 20,
        "with_landlock": name == "landlock",
    }


@cache
def fault(name: Sandbox) -> str | None:
    """Why it does not work on this machine; None if it does."""
    if name == "bubblewrap" and shutil.which("bwrap") is None:
        return "the program bwrap is not installed"
    asked = request(name, "", [{"call": "6 * 7"}], PROBE_SECONDS, PROBE_SECONDS, 1024)
    [(_, said)] = Pool(command(name), 1, 2 * PROBE_SECONDS).ask([asked])
    if isinstance(said, Exception):
        return str(said)
    return None if said["results"] == [{"result": "42"}] else f"a test gave {said['results']}"


def _bubblewrap() -> list[str]:
    """An own file system with what Python reads, and these two folders of the project, all read-only."""
    files: list[str] = []
    for path in readable():
        files += ["--dev-bind" if path.startswith("/dev/") else "--ro-bind", path, path]
    own = {
        "trinity_db/__init__.py": Path(trinity_db.__file__),
        "trinity_db/processors/__init__.py": Path(processors.__file__ or ""),
        "trinity_db/processors/children": Path(__file__).parent,
        "trinity_db/sandbox": Path(sandbox.__file__ or "").parent,
    }
    for place, there in own.items():
        files += ["--ro-bind", str(there.resolve()), f"/program/{place}"]
    return [
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
        *files,
        *("--remount-ro", "/", "--setenv", "PYTHONPATH", "/program", "--chdir", "/", "--"),
    ]
