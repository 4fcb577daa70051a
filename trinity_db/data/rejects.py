"""Rejected rows: written to a file with line and reason, and counted in a summary.

Reasons are shared by many rows: they name columns but never a row's values, so that the summary stays short.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from trinity_db.config import base

MAX_ROW_CHARACTERS = 2_000  # longest row in the rejects file: enough to recognize it


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row, or part of one, that cannot be imported, with the start of its text."""

    reason: str
    row: str

    @classmethod
    def of(cls, reason: str, row: Any) -> Self:
        """Reject a row after reading it: a text, or JSON values."""
        text = row if isinstance(row, str) else _text_of(row)
        return cls(reason, text[:MAX_ROW_CHARACTERS])


def _text_of(row: Any) -> str:
    try:
        return json.dumps(row, default=repr)
    except Exception:  # nested too deeply, a number too long, or values from a user-defined format
        names = [name for name in row if isinstance(name, str)] if isinstance(row, dict) else []
        return f"cannot be written as JSON; its columns: {json.dumps(names)}"


@dataclass(slots=True)
class ReasonCount:
    """Number of rejections for a reason, and the first of them."""

    count: int
    first_line: int
    first_row: str


@dataclass(slots=True)
class Summary:
    """Counts of a file's records: `read == added + known + rejected`."""

    read: int = 0
    """Records read. A row is one record; with a `*` in a mapping, each match is one."""
    added: int = 0
    known: int = 0
    """Records already in the store, or repeated in the file."""
    rejected: int = 0
    reasons: dict[str, ReasonCount] = field(default_factory=dict)
    rejects_path: Path | None = None
    """File with all rejected rows; None if there are none."""
    example: str | None = None
    """The first record as text, with the trained parts marked; None if all rows are rejected."""

    def count_reject(self, line: int, rejected: Rejected) -> None:
        """Count one rejected record under its reason."""
        self.rejected += 1
        self.reasons.setdefault(rejected.reason, ReasonCount(0, line, rejected.row)).count += 1


class RejectsFile:
    """Writes JSON lines of `line`, `reason` and `row`, replacing an earlier import's file of that name.

    The file exists only if a row was rejected.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        self.path.unlink(missing_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, line: int, rejected: Rejected) -> None:
        """Write one rejected row."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8")
        entry = {"line": line, "reason": rejected.reason, "row": rejected.row}
        self._file.write(json.dumps(entry) + "\n")


def rejects_path(name: str, kind: str) -> Path:
    """Return the file for rejected rows of an import, below the store's home folder."""
    safe_name = re.sub(r"[^\w.-]+", "_", name)
    return base.home() / "rejects" / f"{safe_name}-{kind}.jsonl"
