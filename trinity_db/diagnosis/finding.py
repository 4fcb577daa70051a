"""What a check returns: how bad it is, what it is about, what was found, what to do."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from trinity_db.database import Transaction

Connection = Transaction


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"  #: works, but slower than it should, or not for ever
    FAIL = "fail"  #: does not work, or may lose what was promised to last


@dataclass(frozen=True)
class Finding:
    """One line of a report."""

    level: Level
    what: str
    """What was looked at, in two words; the first is the part it belongs to."""
    found: str
    remedy: str | None = None
    """What to do, as a command where there is one; None where there is nothing to do."""
    run: str | None = None
    """The run that it is about; None where it is about none, or about several."""
    shown: Mapping[str, Any] | None = None
    """What shows it: a metric, a group, or else a filter of the run's experiences, {} for all of them."""

    def __str__(self) -> str:
        return f"{self.found}; remedy: {self.remedy}" if self.remedy else self.found

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Check = Callable[[Connection], list[Finding]]


def ok(what: str, found: str) -> Finding:
    return Finding(Level.OK, what, found)


def warn(
    what: str,
    found: str,
    remedy: str | None = None,
    run: str | None = None,
    shown: Mapping[str, Any] | None = None,
) -> Finding:
    return Finding(Level.WARN, what, found, remedy, run, shown)


def fail(what: str, found: str, remedy: str | None = None) -> Finding:
    return Finding(Level.FAIL, what, found, remedy)


def size(num_bytes: float) -> str:
    """Bytes as people read them."""
    for unit in ("bytes", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"


def span(seconds: float) -> str:
    """A time as people read it."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
