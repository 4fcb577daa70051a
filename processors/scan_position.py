"""Where a processor looks for its next rows: just ahead of those it has taken, seldom from the beginning.

Every claim leaves a dead entry at the beginning of an index, for as long as an old transaction could still
see it; a look from there passes all of them. The position is only a shortcut: the next look from
the beginning finds rows behind it, which were given back, or committed late by a slow explorer.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from psycopg.rows import DictRow

from trinity_db.service import LEASE_SECONDS

# A look from the beginning is due again after so many times its duration: half a percent of the time.
SHARE = 200
NEAR = 128  # ids: explorers that write at the same time commit out of the order of their ids
FAR = 8192  # ids: so do processors that judge some hundred rows each; to pass by so many takes about 2 ms


class Sweep:
    """When to look at all rows again."""

    def __init__(self) -> None:
        self._due_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._due_at

    def hasten(self) -> None:
        """Look at once: there is a row to find."""
        self._due_at = time.monotonic()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Around a look. The longer it takes, the later the next is due, at most after a lease's time."""
        start = time.monotonic()
        yield
        end = time.monotonic()
        self._due_at = end + min(SHARE * (end - start), LEASE_SECONDS)


class ScanPosition:
    """The lowest id of a stage's rows that is worth looking at, as far as this process knows."""

    def __init__(self) -> None:
        self._sweep = Sweep()
        self._next = 0

    def hasten(self) -> None:
        """Begin from the beginning the next time: a row was given back."""
        self._sweep.hasten()

    def look(self, claim: Callable[[int], Sequence[DictRow]]) -> Sequence[DictRow]:
        """What `claim` finds from an id on, 0 when it is time to look at everything."""
        if self._sweep.is_due:
            with self._sweep.timed():
                found = claim(0)
        else:
            found = claim(max(self._next - NEAR, 0)) or claim(max(self._next - FAR, 0))
        self.advance(found)
        return found

    def advance(self, found: Sequence[DictRow]) -> None:
        """Look just ahead of these rows the next time."""
        if found:
            self._next = max(row["id"] for row in found) + 1
