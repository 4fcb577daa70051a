"""Digests of folders of models and checkpoints, with which roles detect corrupted or replaced files."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Protocol

PART = "part-"
"""Prefix of the folder that a rank writes in a checkpoint; the rank's number follows."""
BLOCK_BYTES = 1 << 24  # bytes of a file in memory at a time; an optimizer's state may be larger than memory


class Unwritten(Protocol):
    """A file of known size that is written block by block."""

    size: int

    def blocks(self) -> Iterator[memoryview]:
        """Yield its bytes, in order."""


def digest(folder: Path) -> str:
    """Return the SHA-256 of the names, sizes and contents of the folder's files.

    Raises:
        OSError: if a file cannot be read.
    """
    return complete(folder, {})


def complete(folder: Path, unwritten: Mapping[Path, Unwritten]) -> str:
    """Write the missing files of a folder, and return its `digest`.

    These files are hashed while they are written, and not read again.

    Args:
        unwritten: the files by their paths in the folder.

    Raises:
        OSError: if a file cannot be read or written.
    """
    sha = hashlib.sha256()
    written = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    for path in sorted(written | unwritten.keys()):
        if path in unwritten:
            _begin(sha, path, unwritten[path].size)
            with (folder / path).open("xb", buffering=0) as file:
                for block in unwritten[path].blocks():
                    sha.update(block)
                    _write(file, block)
            continue
        with (folder / path).open("rb") as file:
            _begin(sha, path, os.fstat(file.fileno()).st_size)
            while content := file.read(BLOCK_BYTES):
                sha.update(content)
    return sha.hexdigest()


def of(files: Mapping[Path, Unwritten]) -> str:
    """Return the `digest` of a folder with these files, without writing them.

    Raises:
        OSError: if a file cannot be read.
    """
    sha = hashlib.sha256()
    for path, file in sorted(files.items()):
        _begin(sha, path, file.size)
        for block in file.blocks():
            sha.update(block)
    return sha.hexdigest()


def verify(folder: Path, expected: str) -> bool:
    """Whether the folder exists and its files have exactly the expected digest."""
    try:
        return folder.is_dir() and digest(folder) == expected
    except OSError:  # the disk cannot be read, or the folder is being deleted
        return False


def parts_of(checkpoint: Path) -> list[Path]:
    """Return the folders written by ranks, in order. A single rank writes no parts."""
    return sorted(checkpoint.glob(f"{PART}*")) or [checkpoint]


def together(digests: Sequence[str]) -> str:
    """Return the hash of a checkpoint from the digests of its parts."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def verify_checkpoint(folder: Path, expected: str) -> bool:
    """Whether a checkpoint exists and its files have exactly the expected hash."""
    try:
        return folder.is_dir() and together([digest(part) for part in parts_of(folder)]) == expected
    except OSError:
        return False


def _begin(sha: "hashlib._Hash", path: Path, size: int) -> None:
    sha.update(f"{path}\0{size}\0".encode())


def _write(file: FileIO, block: memoryview) -> None:
    """Write a whole block: an unbuffered file may accept only part of it at a time."""
    while len(block):
        block = block[file.write(block) :]
