"""What all readers of files share: what a reader is, packed files, and how a file that breaks off is told."""

import gzip
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from trinity_db.errors import ImportFileError
from trinity_db.imports.rejects import Rejected

Reader = Callable[[Path], Iterator[tuple[int, int, dict[str, Any] | Rejected]]]
"""Yields the line (or row), counted from 1, the bytes of the file that are read, and the row."""


def decompressed(path: Path, raw: BinaryIO) -> BinaryIO:
    """The file itself, or what is packed in it; it reads `raw`, so that `raw.tell()` is the progress."""
    packed: Any = gzip.GzipFile(fileobj=raw) if path.suffix.lower() == ".gz" else raw
    return io.BufferedReader(packed, 2**16) if packed is not raw else raw


def break_off(path: Path, place: str | None, error: Exception) -> NoReturn:
    """Say behind which place a file cannot be read on; None: from its beginning.

    Raises:
        ImportFileError: always.
    """
    what = f"breaks off after {place}" if place else "cannot be read"
    raise ImportFileError(f"{path}: {what}: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """The message of an error, as one line."""
    return " ".join(str(error).split())
