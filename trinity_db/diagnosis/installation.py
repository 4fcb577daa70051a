"""Checks that need no store: the packages, and the folders that rows and checkpoints go to."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from trinity_db import __version__, cores
from trinity_db.diagnosis.finding import Finding, fail, ok, size, warn
from trinity_db.settings import home, lance_uri

EXTRAS = {
    "train": (
        "torch",
        "transformers",
        "accelerate",
        "safetensors",
        "tokenizers",
        "peft",
        "aiohttp",
        "gguf",
        "matplotlib",
        "zstandard",
    )
}
"""The packages that the roles, and commands that draw pictures, import. The doctor imports none of them: that
takes seconds."""

# The write-ahead log alone may grow to max_wal_size, 1 GB, between checkpoints, and a server whose disk is
# full stops. Then some checkpoints of a small model.
FREE_BYTES_LEAST = 1_000_000_000
FREE_BYTES_WANTED = 5_000_000_000


def findings() -> list[Finding]:
    """All of them."""
    found = [*packages(), *threads(), *sandboxes(), *folder("installation home", home(), "TRINITY_DB_HOME")]
    if "://" not in lance_uri():
        found += folder("installation archive", Path(lance_uri()), "TRINITY_DB_LANCE_URI")
    return found


def packages() -> list[Finding]:
    """Which Python this is, and which extras are there."""
    found = [ok("installation python", f"trinity-db {__version__}, Python {platform.python_version()}")]
    for extra, names in EXTRAS.items():
        missing = [name for name in names if importlib.util.find_spec(name) is None]
        if missing:
            found.append(
                warn(
                    f"installation {extra}",
                    f"not installed: {', '.join(missing)}; exploring and training need them",
                    f"pip install 'trinity-db[{extra}]'",
                )
            )
        else:
            versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
            found.append(ok(f"installation {extra}", versions))
    return found


def threads() -> list[Finding]:
    """How many threads each role that computes has here."""
    what, there = "installation cores", cores.available()
    threads = os.environ.get(cores.VARIABLE)
    if threads is None:
        return [ok(what, f"{there} to use; each role that computes has as many threads")]
    return [ok(what, f"{there} to use; each role has {cores.VARIABLE}={threads} threads")]


def sandboxes() -> list[Finding]:
    """How code of a model is confined here, in which `code_tests` runs it: tried out in a child process."""
    what = "installation sandbox"
    command = [sys.executable, "-P", "-m", "trinity_db.sandbox"]
    tried = subprocess.run(command, capture_output=True, text=True)
    has_bubblewrap = shutil.which("bwrap") is not None
    if tried.returncode == 0:
        others = ", and bubblewrap is there" if has_bubblewrap else ""
        return [ok(what, f"code_tests runs code within {tried.stdout.strip()}{others}")]
    found = f"no code_tests with the sandbox landlock: {tried.stderr.strip()}"
    remedy = "{name: code_tests, sandbox: bubblewrap}" if has_bubblewrap else "install bubblewrap (bwrap)"
    return [warn(what, found, remedy)]


def folder(what: str, path: Path, variable: str) -> list[Finding]:
    """Whether a folder, which may have to be made yet, can be written and has room."""
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    disk = shutil.disk_usage(there)
    # A disk of no size is none: /proc and the like, where root seems to be allowed everything.
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK) or disk.total == 0:
        return [fail(what, f"{there} cannot be written", f"name another folder in {variable}")]
    free = disk.free
    found = f"{path}: {size(free)} free"
    if free < FREE_BYTES_LEAST:
        return [fail(what, found, f"make room there, or name another disk in {variable}")]
    if free < FREE_BYTES_WANTED:
        return [warn(what, found, f"make room there, or name another disk in {variable}")]
    return [ok(what, found)]
