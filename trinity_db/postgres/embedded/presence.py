"""Checks whether a home's server is running, and holds the two locks of a home.

The kernel releases both locks when their holders die. A process holds `postgres.lock` while it creates,
starts or stops the server. The server's processes hold a lock on `PG_VERSION` in the data, which they
inherit. The fast path, when the server answers, needs neither.
"""

import fcntl
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping

from trinity_db.errors import DatabaseUnavailable
from trinity_db.postgres.embedded.binaries import START_SECONDS, Binaries
from trinity_db.postgres.embedded.home_paths import HomePaths

CONNECT_SECONDS = 5  # a local server answers in milliseconds, unless the machine is swapping
POLL_SECONDS = 0.02  # while another process starts the server, which takes about 100 ms


def serves(paths: HomePaths) -> bool:
    """Whether the database is usable: the path that every process takes, a few milliseconds."""
    if not owns_socket(paths):
        return False
    try:
        psycopg.connect(paths.url(), connect_timeout=CONNECT_SECONDS).close()
    except psycopg.OperationalError:
        return False
    return True


def ping(paths: HomePaths) -> Ping:
    """Return OK even if all connections are taken, REJECT while the server starts up or shuts down."""
    return _ping(paths) if owns_socket(paths) else Ping.NO_RESPONSE


def answers(paths: HomePaths) -> bool:
    """Whether a server answers at the socket, including one whose data were moved away."""
    return _ping(paths) in (Ping.OK, Ping.REJECT)


def _ping(paths: HomePaths) -> Ping:
    address = make_conninfo(paths.url("postgres"), connect_timeout=CONNECT_SECONDS)
    return Ping(PGconn.ping(address.encode()))


def owns_socket(paths: HomePaths) -> bool:
    """Whether the socket's folder belongs to the server's user: in /tmp any user could have created it."""
    try:
        folder, data = paths.socket.lstat(), paths.data.stat()
    except OSError:
        return False
    return stat.S_ISDIR(folder.st_mode) and folder.st_uid == data.st_uid


@contextmanager
def locked(paths: HomePaths) -> Iterator[int]:
    """Hold `postgres.lock`, yielding its descriptor, and turn system errors into one-line errors."""
    try:
        paths.home.mkdir(parents=True, exist_ok=True)
        with paths.lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock.fileno()
    except OSError as error:
        raise DatabaseUnavailable(
            f"The embedded database cannot use {error.filename or paths.home}: {error.strerror}; "
            "set TRINITY_DB_HOME to another folder."
        ) from error


def claim(paths: HomePaths, binaries: Binaries) -> IO[str] | None:
    """Wait until the server accepts connections (returns None), or none of its processes is left.

    In the latter case, returns the locked file, which the next server inherits. PostgreSQL alone would trust
    the process id in postmaster.pid, and not start if another of our processes now has that id.
    """
    claimed = (paths.data / "PG_VERSION").open("r+")
    deadline = time.monotonic() + START_SECONDS
    try:
        while (answer := ping(paths)) is not Ping.OK:
            if answer is Ping.NO_RESPONSE and _try_lock(claimed):
                return claimed
            if answer is Ping.NO_RESPONSE and _lost_its_socket(paths):
                # The socket was deleted, such as by a cleanup of /tmp: clients can no longer reach this
                # server.
                binaries.stop(paths.data)
            if time.monotonic() > deadline:
                raise DatabaseUnavailable(
                    f"The embedded database has not answered for {START_SECONDS} s (see {paths.log})"
                )
            time.sleep(POLL_SECONDS)
    except BaseException:
        claimed.close()
        raise
    claimed.close()
    return None


def _lost_its_socket(paths: HomePaths) -> bool:
    """Whether the server reports that it is ready, but its socket is missing."""
    try:
        ready = paths.pid_file.read_text().rstrip().endswith("ready")
    except FileNotFoundError:
        return False
    return ready and not (paths.socket / f".s.PGSQL.{paths.port}").exists()


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
