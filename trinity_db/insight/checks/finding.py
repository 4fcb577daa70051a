"""Result of a check: its level, its subject, the finding, and a remedy."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from trinity_db.postgres.connection import Transaction

Connection = Transaction


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"  #: works, but is slow or will cause a problem later
    FAIL = "fail"  #: does not work, or may lose committed data


@dataclass(frozen=True)
class Finding:
    """One line of a report."""

    level: Level
    what: str
    """Subject of the check, in two words; the first names its part."""
    found: str
    remedy: str | None = None
    """Remedy, as a command if possible; None if nothing has to be done."""
    run: str | None = None
    """Run that the finding is about; None for no run or several."""
    shown: Mapping[str, Any] | None = None
    """Evidence: a metric, a group, or a filter of the run's experiences, {} for all of them."""

    def __str__(self) -> str:
        return f"{self.found}; remedy: {self.remedy}" if self.remedy else self.found

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Check = Callable[[Connection], list[Finding]]


def ok(subject: str, text: str) -> Finding:
    return Finding(Level.OK, subject, text)


def warn(
    subject: str,
    text: str,
    remedy: str | None = None,
    run: str | None = None,
    shown: Mapping[str, Any] | None = None,
) -> Finding:
    return Finding(Level.WARN, subject, text, remedy, run, shown)


def fail(subject: str, text: str, remedy: str | None = None) -> Finding:
    return Finding(Level.FAIL, subject, text, remedy)


def size(num_bytes: float) -> str:
    """Format a number of bytes."""
    for unit in ("bytes", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"


def span(seconds: float) -> str:
    """Format a duration."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
