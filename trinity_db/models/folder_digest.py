"""Computes a digest of a model's folder. With it, roles notice damaged or exchanged files."""

import hashlib
import os
from pathlib import Path

BLOCK_BYTES = 1 << 24  # of a file in memory at a time; an optimizer's state may be larger than memory


def digest(folder: Path) -> str:
    """SHA-256 over the names, sizes and contents of the folder's files.

    Raises:
        OSError: a file cannot be read.
    """
    sha = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            sha.update(f"{path.relative_to(folder)}\0{os.fstat(file.fileno()).st_size}\0".encode())
            while block := file.read(BLOCK_BYTES):
                sha.update(block)
    return sha.hexdigest()


def verify(folder: Path, expected: str) -> bool:
    """Whether the folder exists and its files have exactly the expected digest."""
    try:
        return folder.is_dir() and digest(folder) == expected
    except OSError:  # the disk cannot be read, or the folder is being deleted
        return False
