"""What is written survives a power cut."""

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_all(folder: Path) -> None:
    """Have everything in a folder on the disk, with the names in it and in the folders below."""
    for path in [*folder.rglob("*"), folder]:
        flush(path)
