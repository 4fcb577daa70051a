"""Options of a benchmark run: repetitions, scratch folder, peers."""

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
    """Use a tenth of the rows: tests that measures run; the figures mean little."""
    scratch: Path
    """Folder on a disk."""
    peers_python: Path | None
    """Interpreter of the peers' environment; None if it does not exist."""

    def rows(self, count: int) -> int:
        """Return `count`, or a tenth of it in a quick run, as a multiple of 4 × 64."""
        return max(count // 10, 256) // 256 * 256 if self.quick else count

    def say(self, progress: str) -> None:
        print(f"    {progress}", file=sys.stderr, flush=True)

    @contextmanager
    def server(self) -> Iterator[server.Server]:
        """Start a new PostgreSQL for one measure."""
        with server.running(self.scratch) as running:
            yield running
