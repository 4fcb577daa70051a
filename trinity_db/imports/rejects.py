"""Rejected rows: each with its line and reason in a file, and counted in one summary.

A reason is a sentence that many rows can share: it names columns but never a row's own values, so that the
summary stays short however bad a file is.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from trinity_db import settings

MAX_ROW_CHARACTERS = 2_000  # of a row in the rejects file: enough to know it again, however long it is


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row, or a part of one, that cannot be imported, with the beginning of its text."""

    reason: str
    row: str

    @classmethod
    def of(cls, reason: str, row: Any) -> Self:
        """Reject a row that was read already: a text, or JSON values."""
        text = row if isinstance(row, str) else _text_of(row)
        return cls(reason, text[:MAX_ROW_CHARACTERS])


def _text_of(row: Any) -> str:
    try:
        return json.dumps(row, default=repr)
    except Exception:  # nested too deeply, a number too long, or values that a user's format put into the row
        names = [name for name in row if isinstance(name, str)] if isinstance(row, dict) else []
        return f"cannot be written as JSON; its columns: {json.dumps(names)}"


@dataclass(slots=True)
class ReasonCount:
    """How often a reason was given, and the first line that it was given for."""

    count: int
    first_line: int


@dataclass(slots=True)
class Summary:
    """What became of the records of a file: `read == added + known + rejected`."""

    read: int = 0
    """Records found. A row is one record, but for a `*` in a mapping: there, each match is one."""
    added: int = 0
    known: int = 0
    """Already in the store, or a second time in the same file."""
    rejected: int = 0
    reasons: dict[str, ReasonCount] = field(default_factory=dict)
    rejects_path: Path | None = None
    """The file with every rejected row; None where no row was rejected."""

    def count_reject(self, line: int, rejected: Rejected) -> None:
        """Count one rejected record under its reason."""
        self.rejected += 1
        self.reasons.setdefault(rejected.reason, ReasonCount(0, line)).count += 1


class RejectsFile:
    """JSON lines of `line`, `reason` and `row`; it takes the place of an earlier import's file of that name.

    The file exists only where there is something in it.
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
    """Where an import of this name and kind keeps its rejected rows: below the store's home folder."""
    safe_name = re.sub(r"[^\w.-]+", "_", name)
    return settings.home() / "rejects" / f"{safe_name}-{kind}.jsonl"
