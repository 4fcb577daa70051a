"""A home's server: made where it is missing, started, revived after a crash, and stopped."""

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

from trinity_db import durable
from trinity_db.embedded import logins, presence
from trinity_db.embedded.accounts import Account, hand_over, let_through, server_account
from trinity_db.embedded.binaries import Binaries, reason
from trinity_db.embedded.place import LOOPBACK, Place
from trinity_db.errors import DatabaseUnavailable

HOME_SETTING = "trinity_db.home"
SILENCE_SECONDS = 2  # a server that was killed just now may still answer

# After a crash the server flushes all that it may have written, before it replays its log: by one call for
# the file system where there is one, as one for each of its thousand files takes seconds.
QUICK_RECOVERY = ("-c", "recovery_init_sync_method=syncfs") if sys.platform == "linux" else ()


@dataclass(frozen=True)
class Cluster(Place):
    """One data directory and the server on it. Every method may be called by many processes at once."""

    binaries: Binaries
    settings: tuple[str, ...] = ()
    """More settings that the server is started with, as name=value."""

    def listen(self, port: int | None) -> None:
        """Let the server hear a TCP port of the loopback interface from its next start on; None: none.

        Raises:
            DatabaseUnavailable: the port is in use, or the server runs with another one.
        """
        if port == self.tcp_port:
            return
        if self.running():
            raise DatabaseUnavailable(
                "The embedded database runs, and takes another port only when it starts: trinity-db db stop"
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
        """Make and start what is missing; the URL of the database.

        Raises:
            DatabaseUnavailable: with the reason and, where the server has spoken, its log's path.
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
        """Start a server that crashed; False if it runs, or was stopped on purpose.

        Raises:
            DatabaseUnavailable: it does not start.
        """
        if not self.pid_file.exists() or presence.ping(self) is not Ping.NO_RESPONSE:
            return False
        with presence.locked(self):
            if not self.pid_file.exists():  # it was being stopped
                return False
            self._start()
        return True

    def stop(self) -> bool:
        """Disconnect all clients and stop the server; False if none was running.

        Raises:
            DatabaseUnavailable: the server does not stop.
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
            with suppress(OSError):  # the next start makes it again, or takes it as it is
                self.socket.rmdir()
            return True

    def _initialise(self, lock: int) -> None:
        """Make the data directory aside, and rename it when it is whole and on disk.

        initdb inherits the lock: should this process be killed, the next one waits for the orphan to end.
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
        """See to it that no server runs here any more whose data are gone.

        It would answer in place of the server on new data, and write its control file over theirs.

        Raises:
            DatabaseUnavailable: the data of a server that runs were moved away.
        """
        self._end_orphans()
        deadline = time.monotonic() + SILENCE_SECONDS
        while presence.answers(self):
            if time.monotonic() > deadline:
                raise DatabaseUnavailable(
                    f"The embedded database runs, but its data are not in {self.data} any more: move them "
                    "back, and stop it first: trinity-db db stop"
                )
            time.sleep(presence.POLL_SECONDS)

    def _end_orphans(self) -> None:
        """Kill servers whose data directory stood here and was deleted under them (known on Linux only).

        A minute later they would notice, and on their way out remove the new server's socket.
        """
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.readlink(process / "cwd") == f"{self.data} (deleted)":
                    os.kill(int(process.name), signal.SIGKILL)

    def _check_version(self) -> None:
        ours = self.binaries.major
        try:
            found = (self.data / "PG_VERSION").read_text().strip()
        except (FileNotFoundError, NotADirectoryError):
            raise DatabaseUnavailable(
                f"{self.data} is no PostgreSQL data directory; move it away, and a new one is made."
            ) from None
        if found != str(ours):
            raise DatabaseUnavailable(
                f"{self.data} was made by PostgreSQL {found}, this installation has {ours}; dump it "
                f"with PostgreSQL {found} and restore it here, or name another folder in TRINITY_DB_HOME."
            )

    def _start(self) -> None:
        """Start the server unless it runs, in a session of its own, and wait until it accepts connections."""
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
        """The server's own options, as a shell reads them."""
        heard = f"listen_addresses={LOOPBACK if self.tcp_port else ''}"
        place = ("-k", str(self.socket), "-p", str(self.port), "-c", heard)
        # Told to all clients, so that a copied home can be told from its original (schema/stores.py).
        named = ("-c", f"{HOME_SETTING}={self.home}")
        added = [part for setting in self.settings for part in ("-c", setting)]
        return shlex.join([*place, "-c", "unix_socket_permissions=0700", *named, *QUICK_RECOVERY, *added])

    def _prepare(self, account: Account | None) -> None:
        """Give the server the folders it needs, and remove what a killed one left."""
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
                f"Port {port} cannot be used ({error.strerror}): trinity-db db start --port N names another, "
                "--port 0 none."
            ) from error
