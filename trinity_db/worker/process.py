"""A role of a run as a local process, supervised by the process that starts it."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trinity_db.worker.service import SUPERVISOR


@dataclass
class Process:
    """Process of one role. Before its start it can be sent to another machine."""

    name: str
    arguments: Sequence[str]
    """Arguments of the machine's Python interpreter."""
    log: Path
    once: Sequence[str] = ()
    """Arguments for the first start only: permission given once does not extend to restarts after a crash."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that override the machine's own."""
    folder: Path | None = None
    """Working directory. None: that of the starting process."""
    _process: "subprocess.Popen[bytes] | None" = field(init=False, default=None)
    _log_begin: int = field(init=False, default=0)
    """Size of the log at the last start, in bytes."""

    def start(self) -> None:
        """Start it in its own session, so that only the supervisor receives Ctrl-C and forwards it."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_begin = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, *self.arguments, *self.once],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment, SUPERVISOR: str(os.getpid())},
                cwd=self.folder,
                start_new_session=True,
            )
        self.once = ()

    @property
    def pid(self) -> int:
        """Process id on its machine, after the start."""
        assert self._process is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code; None while it runs, and before the start."""
        return self._process.poll() if self._process is not None else None

    @property
    def is_alive(self) -> bool:
        """Whether it is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for resources; never on this machine."""
        return False

    @property
    def words(self) -> str:
        """Return the last error in its log since its start, or else the last line.

        Another supervisor's role of the same run, which this one cannot replace, may write to the same log.
        """
        try:
            with self.log.open("rb") as log:
                log.seek(self._log_begin)
                lines = log.read().decode(errors="replace").strip().splitlines()
        except FileNotFoundError:
            return "its log was removed"
        errors = [line for line in lines if line.startswith("error: ")]
        return (errors or lines or ["it wrote nothing"])[-1]

    def end(self) -> None:
        """Ask it to exit: it finishes its current work and releases its leases."""
        assert self._process is not None
        self._process.terminate()

    def kill(self) -> None:
        """Kill it."""
        assert self._process is not None
        self._process.kill()
