"""Creates, starts, restarts after a crash, and stops a home's server."""

import os
import shlex
import shutil
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from psycopg.pq import Ping

from trinity_db.errors import DatabaseUnavailable
from trinity_db.io import durable
from trinity_db.postgres.embedded import logins, presence
from trinity_db.postgres.embedded.accounts import Account, hand_over, let_through, server_account
from trinity_db.postgres.embedded.binaries import Binaries, reason
from trinity_db.postgres.embedded.home_paths import LOOPBACK, HomePaths

HOME_SETTING = "trinity_db.home"
SILENCE_SECONDS = 2  # a server that was just killed may still answer

# After a crash the server flushes all files before it replays its WAL: with one call for the file system if
# supported, as one call for each of a thousand files takes seconds.
QUICK_RECOVERY = ("-c", "recovery_init_sync_method=syncfs") if sys.platform == "linux" else ()


@dataclass(frozen=True)
class Cluster(HomePaths):
    """One data directory and its server. All methods are safe to call from many processes at once."""

    binaries: Binaries
    settings: tuple[str, ...] = ()
    """Additional settings for the server, as name=value."""

    def listen(self, port: int | None) -> None:
        """Make the server listen on a TCP port of the loopback interface, from its next start; None: no port.

        Raises:
            DatabaseUnavailable: if the port is in use, or the server is running with another one.
        """
        if port == self.tcp_port:
            return
        if self.running():
            raise DatabaseUnavailable(
                "The embedded database is running, and changes its port only when it starts: "
                "trinity-db db stop"
            )
        with presence.locked(self):
            if port is None:
                self.port_file.unlink()
            else:
                _require_free(port)
                self.port_file.write_text(f"{port}\n")

    def running(self) -> bool:
        """Whether the server accepts connections."""
        return presence.ping(self) is Ping.OK

    def ensure_running(self) -> str:
        """Create and start whatever is missing, and return the URL of the database.

        Raises:
            DatabaseUnavailable: with the reason and, if the server wrote a log, its path.
        """
        if not presence.serves(self):
            with presence.locked(self) as lock:
                if self.data.exists():
                    self._check_version()
                else:
                    self._initialise(lock)
                self._start()
                logins.make_database(self)
        return self.url()

    def revive(self) -> bool:
        """Start a server that has crashed; False if it is running, or was stopped on purpose.

        Raises:
            DatabaseUnavailable: if it does not start.
        """
        if not self.pid_file.exists() or presence.ping(self) is not Ping.NO_RESPONSE:
            return False
        with presence.locked(self):
            if not self.pid_file.exists():  # it was stopped meanwhile
                return False
            self._start()
        return True

    def stop(self) -> bool:
        """Disconnect all clients and stop the server; False if none was running.

        Raises:
            DatabaseUnavailable: if the server does not stop.
        """
        if not self.data.is_dir():
            return False
        with presence.locked(self):
            claim = presence.claim(self, self.binaries)
            if claim:
                claim.close()
                return False
            if refusal := self.binaries.stop(self.data):
                raise DatabaseUnavailable(f"The embedded database does not stop: {refusal}")
            with suppress(OSError):  # the next start creates it again, or reuses it
                self.socket.rmdir()
            return True

    def _initialise(self, lock: int) -> None:
        """Create the data directory under another name, and rename it once it is complete and durable.

        initdb inherits the lock: if this process is killed, the next one waits for the orphan to end.
        """
        self.make_way()
        account = server_account(self.data)
        fresh = self.home / "postgres.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        if account:
            os.chown(fresh, account.uid, account.gid)
            let_through((fresh, self.binaries.folder / "initdb"), account)
        self.binaries.make(fresh, inherited=[lock])
        fresh.rename(self.data)
        durable.flush(self.home)

    def make_way(self) -> None:
        """Ensure that no server without its data directory is still running here.

        It would answer instead of the server on new data, and overwrite the new control file.

        Raises:
            DatabaseUnavailable: if the data of a running server were moved away.
        """
        self._end_orphans()
        deadline = time.monotonic() + SILENCE_SECONDS
        while presence.answers(self):
            if time.monotonic() > deadline:
                raise DatabaseUnavailable(
                    f"The embedded database is running, but its data are no longer in {self.data}: move them "
                    "back, and stop it first: trinity-db db stop"
                )
            time.sleep(presence.POLL_SECONDS)

    def _end_orphans(self) -> None:
        """Kill servers whose data directory was here and has been deleted (detected on Linux only).

        They would notice a minute later, and remove the new server's socket when exiting.
        """
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.readlink(process / "cwd") == f"{self.data} (deleted)":
                    os.kill(int(process.name), signal.SIGKILL)

    def _check_version(self) -> None:
        installed = self.binaries.major
        try:
            created = (self.data / "PG_VERSION").read_text().strip()
        except (FileNotFoundError, NotADirectoryError):
            raise DatabaseUnavailable(
                f"{self.data} is not a PostgreSQL data directory; move it away, and a new one is created."
            ) from None
        if created != str(installed):
            raise DatabaseUnavailable(
                f"{self.data} was created by PostgreSQL {created}, this installation has {installed}; dump "
                f"it with PostgreSQL {created} and restore it here, or set TRINITY_DB_HOME to another folder."
            )

    def _start(self) -> None:
        """Start the server in a separate session unless it is running, and wait for its connections."""
        claim = presence.claim(self, self.binaries)
        if claim is None:
            return
        with claim, self.log.open("a") as log:
            self._prepare(server_account(self.data))
            if self.tcp_port is not None:
                _require_free(self.tcp_port)
            offset = log.tell()
            runs = self.binaries.start(self.data, self._options(), log, inherited=[claim.fileno()])
        if not runs:
            with self.log.open(errors="replace") as written:
                written.seek(offset)
                why = reason(written.read())
            raise DatabaseUnavailable(f"The embedded database did not start: {why} (see {self.log})")

    def _options(self) -> str:
        """Return the server's options, quoted for a shell."""
        listen = f"listen_addresses={LOOPBACK if self.tcp_port else ''}"
        address = ("-k", str(self.socket), "-p", str(self.port), "-c", listen)
        # Visible to all clients, so that a copied home can be distinguished from its original
        # (schema/tables/stores.py).
        named = ("-c", f"{HOME_SETTING}={self.home}")
        added = [part for setting in self.settings for part in ("-c", setting)]
        return shlex.join([*address, "-c", "unix_socket_permissions=0700", *named, *QUICK_RECOVERY, *added])

    def _prepare(self, account: Account | None) -> None:
        """Create the folders that the server needs, and remove leftovers of a killed one."""
        owner = account.uid if account else os.geteuid()
        self.socket.mkdir(mode=0o700, exist_ok=True)
        if account:
            for folder in (self.data, self.socket):
                hand_over(folder, account)
            let_through((self.data, self.socket, self.binaries.folder / "postgres"), account)
        if self.socket.lstat().st_uid != owner or not presence.owns_socket(self):
            raise DatabaseUnavailable(f"{self.socket} and {self.data} must be folders of the same user.")
        self.pid_file.unlink(missing_ok=True)
        for stale in self.socket.glob(".s.PGSQL.*"):
            stale.unlink()


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise DatabaseUnavailable(
                f"Port {port} cannot be used ({error.strerror}): choose another one with "
                "trinity-db db start --port N, or none with --port 0."
            ) from error
