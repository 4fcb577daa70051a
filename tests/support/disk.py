"""A disk of its own for a test: small enough to be filled, and one that can be made read-only."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SIZE_KIB = 2048


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount an empty disk of 2 MiB on a new folder; the test skips where that is not permitted."""
    folder.mkdir()
    mounted = _run("mount", "-t", "tmpfs", "-o", f"size={SIZE_KIB}k", "tmpfs", str(folder))
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a disk to fill: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        _run("umount", "--lazy", str(folder))


def fill(disk: Path) -> Path:
    """Write until nothing fits any more; the file that did it."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def make_read_only(disk: Path) -> None:
    """Let no process write to a small disk any more."""
    _run("mount", "-o", "remount,ro", str(disk)).check_returncode()


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"})
