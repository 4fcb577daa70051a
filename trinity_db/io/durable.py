"""Flushing of files to disk, so that they survive a power cut."""

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_all(folder: Path) -> None:
    """Flush all files and names in a folder and its subfolders to disk."""
    for path in [*folder.rglob("*"), folder]:
        flush(path)
