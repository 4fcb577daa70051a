"""Checks that need no store: packages, and the folders for rows and checkpoints."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from trinity_db import __version__
from trinity_db.config.base import home, lance_uri
from trinity_db.insight.checks.finding import Finding, fail, ok, size, warn
from trinity_db.worker import cores

EXTRAS = {
    "lance": ("lancedb", "pyarrow"),
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
    ),
}
"""Packages that the roles, and commands that draw pictures, import. The doctor does not import them, because
that takes seconds."""

NEEDED_BY = {"lance": "Parquet files, copies of runs and the archive", "train": "exploring and training"}

# The write-ahead log alone may grow to max_wal_size, 1 GB, between checkpoints, and a server stops when its
# disk is full. The rest is for some checkpoints of a small model.
FREE_BYTES_LEAST = 1_000_000_000
FREE_BYTES_WANTED = 5_000_000_000


def findings() -> list[Finding]:
    """Run all checks of the installation."""
    report = [*packages(), *threads(), *sandboxes(), *folder("installation home", home(), "TRINITY_DB_HOME")]
    if "://" not in lance_uri():
        report += folder("installation archive", Path(lance_uri()), "TRINITY_DB_LANCE_URI")
    return report


def packages() -> list[Finding]:
    """Report the Python version and the installed extras."""
    findings = [ok("installation python", f"trinity-db {__version__}, Python {platform.python_version()}")]
    for extra, names in EXTRAS.items():
        missing = [name for name in names if importlib.util.find_spec(name) is None]
        if missing:
            findings.append(
                warn(
                    f"installation {extra}",
                    f"not installed: {', '.join(missing)}; {NEEDED_BY[extra]} need them",
                    f"pip install 'trinity-db[{extra}]'",
                )
            )
        else:
            versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
            findings.append(ok(f"installation {extra}", versions))
    return findings


def threads() -> list[Finding]:
    """Report the number of threads of each computing role."""
    subject, there = "installation cores", cores.available()
    threads = os.environ.get(cores.VARIABLE)
    if threads is None:
        return [ok(subject, f"{there} available; each computing role uses as many threads")]
    return [ok(subject, f"{there} available; each role uses {cores.VARIABLE}={threads} threads")]


def sandboxes() -> list[Finding]:
    """Check the sandbox in which `code_tests` runs a model's code, by trying it in a child process."""
    subject = "installation sandbox"
    command = [sys.executable, "-P", "-m", "trinity_db.sandbox"]
    tried = subprocess.run(command, capture_output=True, text=True)
    has_bubblewrap = shutil.which("bwrap") is not None
    if tried.returncode == 0:
        others = ", and bubblewrap is available" if has_bubblewrap else ""
        return [ok(subject, f"code_tests runs code within {tried.stdout.strip()}{others}")]
    text = f"code_tests cannot use the sandbox landlock: {tried.stderr.strip()}"
    remedy = "{name: code_tests, sandbox: bubblewrap}" if has_bubblewrap else "install bubblewrap (bwrap)"
    return [warn(subject, text, remedy)]


def folder(subject: str, path: Path, variable: str) -> list[Finding]:
    """Check that a folder, which may not exist yet, is writable and has free space."""
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    disk = shutil.disk_usage(there)
    # A disk of size 0 is not a disk: /proc and the like, where root seems to have write access.
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK) or disk.total == 0:
        return [fail(subject, f"{there} cannot be written", f"set {variable} to another folder")]
    free = disk.free
    text = f"{path}: {size(free)} free"
    if free < FREE_BYTES_LEAST:
        return [fail(subject, text, f"free space there, or set {variable} to another disk")]
    if free < FREE_BYTES_WANTED:
        return [warn(subject, text, f"free space there, or set {variable} to another disk")]
    return [ok(subject, text)]
