"""Position where a processor looks for its next rows: just after the rows it has taken, rarely from the
start.

Every claim leaves a dead entry at the start of an index until no old transaction can see it; a scan from
there passes all of them. The position is only an optimisation: the next full scan finds rows behind it, which
were released, or committed late by a slow explorer.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from psycopg.rows import DictRow

from trinity_db.worker.service import LEASE_SECONDS

# A full scan is due again after this many times its duration: half a percent of the time.
SHARE = 200
NEAR = 128  # ids: concurrent explorers commit out of the order of their ids
FAR = 8192  # ids: likewise for processors judging some hundred rows each; skipping that many takes about 2 ms


class Sweep:
    """Schedules full scans of all rows."""

    def __init__(self) -> None:
        self._due_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._due_at

    def hasten(self) -> None:
        """Scan at once: there is a row to find."""
        self._due_at = time.monotonic()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time a scan. The longer it takes, the later the next is due, at most after the duration of a
        lease."""
        start = time.monotonic()
        yield
        end = time.monotonic()
        self._due_at = end + min(SHARE * (end - start), LEASE_SECONDS)


class ScanPosition:
    """The lowest id of a stage's rows that this process still needs to scan."""

    def __init__(self) -> None:
        self._sweep = Sweep()
        self._next = 0

    def hasten(self) -> None:
        """Scan from the start next time: a row was released."""
        self._sweep.hasten()

    def look(self, claim: Callable[[int], Sequence[DictRow]]) -> Sequence[DictRow]:
        """Return what `claim` finds from an id on, which is 0 when a full scan is due."""
        if self._sweep.is_due:
            with self._sweep.timed():
                rows = claim(0)
        else:
            rows = claim(max(self._next - NEAR, 0)) or claim(max(self._next - FAR, 0))
        self.advance(rows)
        return rows

    def advance(self, rows: Sequence[DictRow]) -> None:
        """Continue just after these rows next time."""
        if rows:
            self._next = max(row["id"] for row in rows) + 1
