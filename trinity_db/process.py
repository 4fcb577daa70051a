"""A role of a run as a process of this machine, which the process that starts it looks after."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trinity_db.service import SUPERVISOR


@dataclass
class Process:
    """One role's process. Before its start it can be sent to another machine."""

    name: str
    arguments: Sequence[str]
    """What the Python interpreter of the machine is started with."""
    log: Path
    once: Sequence[str] = ()
    """Arguments for its first start only: what a person allowed once is not allowed again after a crash."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that count even where the machine has others of that name."""
    folder: Path | None = None
    """The folder that it works in. None: that of the process which starts it."""
    _process: "subprocess.Popen[bytes] | None" = field(init=False, default=None)
    _log_begin: int = field(init=False, default=0)
    """Bytes of the log when it was last started."""

    def start(self) -> None:
        """Start it in its own session, so that only its supervisor gets a Ctrl-C, and passes it on."""
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
        """Its number on its machine, after its start."""
        assert self._process is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code; None while it lives, and before its start."""
        return self._process.poll() if self._process is not None else None

    @property
    def is_alive(self) -> bool:
        """Whether it was started and lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_waiting(self) -> bool:
        """Whether it has no place yet: this machine has room at once."""
        return False

    @property
    def words(self) -> str:
        """The last error of its log since its start, or else the last line.

        The role of another supervisor of the run, which this one cannot replace, may write to the same log.
        """
        try:
            with self.log.open("rb") as log:
                log.seek(self._log_begin)
                lines = log.read().decode(errors="replace").strip().splitlines()
        except FileNotFoundError:
            return "its log was removed"
        errors = [line for line in lines if line.startswith("error: ")]
        return (errors or lines or ["it said nothing"])[-1]

    def end(self) -> None:
        """Ask it to end: it finishes what it has in hand, and gives its leases back."""
        assert self._process is not None
        self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        assert self._process is not None
        self._process.kill()
