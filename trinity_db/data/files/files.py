"""Shared by all file readers: their type, compressed files, and the error for truncated files."""

import gzip
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from trinity_db.data.rejects import Rejected
from trinity_db.errors import ImportFileError

Reader = Callable[[Path], Iterator[tuple[int, int, dict[str, Any] | Rejected]]]
"""Yields the line (or row) number from 1, the bytes of the file read so far, and the row."""


def decompressed(path: Path, raw: BinaryIO) -> BinaryIO:
    """Return the file, decompressed if necessary; it reads `raw`, so that `raw.tell()` is the progress."""
    packed: Any = gzip.GzipFile(fileobj=raw) if path.suffix.lower() == ".gz" else raw
    return io.BufferedReader(packed, 2**16) if packed is not raw else raw


def break_off(path: Path, position: str | None, error: Exception) -> NoReturn:
    """Report after which place a file cannot be read further; None: from its start.

    Raises:
        ImportFileError: always.
    """
    problem = f"breaks off after {position}" if position else "cannot be read"
    raise ImportFileError(f"{path}: {problem}: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """Return the message of an error in one line."""
    return " ".join(str(error).split())
