"""A digest of a model's folder, by which damaged or exchanged files are noticed."""

import hashlib
import os
from pathlib import Path

BLOCK_BYTES = 1 << 24  # how much of a file is in memory at a time; an optimizer's state may be larger than it


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
    """Whether the folder is there and its files are exactly those that the digest was made of."""
    try:
        return folder.is_dir() and digest(folder) == expected
    except OSError:  # a disk that cannot be read any more, or a folder that is deleted right now
        return False
