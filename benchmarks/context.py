"""The context of a measure: how often to repeat, where to put files, which peers to compare with."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import server


@dataclass(frozen=True)
class Context:
    """One run of `python -m benchmarks`."""

    repetitions: int
    quick: bool
    """A tenth of the rows: shows that everything runs, its figures mean little."""
    scratch: Path
    """A folder on a disk."""
    peers_python: Path | None
    """The interpreter of the peers' environment; None: it was not made."""
    full: bool = False
    """The largest sizes too, which take many minutes and gigabytes."""

    def rows(self, count: int) -> int:
        """A number of rows, fewer in a quick run; always a multiple of 4 × 64."""
        return max(count // 10, 256) // 256 * 256 if self.quick else count

    def say(self, progress: str) -> None:
        print(f"    {progress}", file=sys.stderr, flush=True)

    @contextmanager
    def server(self) -> Iterator[server.Server]:
        """A new PostgreSQL for one measure."""
        with server.running(self.scratch) as running:
            yield running
