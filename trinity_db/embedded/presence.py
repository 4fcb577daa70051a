"""Who is there: whether a home's server answers, and the two locks that processes hold on it.

The kernel frees both locks when their holders die. A process holds `postgres.lock` while it makes, starts or
stops the server. The server's own processes hold `PG_VERSION` in the data, which they inherit. A server that
answers is the fast path and needs neither.
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

from trinity_db.embedded.binaries import START_SECONDS, Binaries
from trinity_db.embedded.place import Place
from trinity_db.errors import DatabaseUnavailable

CONNECT_SECONDS = 5  # a local server answers in milliseconds, unless the machine swaps
POLL_SECONDS = 0.02  # while another process starts the server, which takes about 100 ms


def serves(place: Place) -> bool:
    """Whether the database itself can be used: the path that every process takes, a few milliseconds."""
    if not owns_socket(place):
        return False
    try:
        psycopg.connect(place.url(), connect_timeout=CONNECT_SECONDS).close()
    except psycopg.OperationalError:
        return False
    return True


def ping(place: Place) -> Ping:
    """OK also where all connections are taken, REJECT while starting up or shutting down."""
    return _ping(place) if owns_socket(place) else Ping.NO_RESPONSE


def answers(place: Place) -> bool:
    """Whether a server answers at the socket, also one whose data are not in their place any more."""
    return _ping(place) in (Ping.OK, Ping.REJECT)


def _ping(place: Place) -> Ping:
    address = make_conninfo(place.url("postgres"), connect_timeout=CONNECT_SECONDS)
    return Ping(PGconn.ping(address.encode()))


def owns_socket(place: Place) -> bool:
    """Whether the socket's folder is the server's: in /tmp any user could have put one there."""
    try:
        folder, data = place.socket.lstat(), place.data.stat()
    except OSError:
        return False
    return stat.S_ISDIR(folder.st_mode) and folder.st_uid == data.st_uid


@contextmanager
def locked(place: Place) -> Iterator[int]:
    """Hold `postgres.lock`, whose descriptor is yielded, and say in one line what the system refuses."""
    try:
        place.home.mkdir(parents=True, exist_ok=True)
        with place.lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock.fileno()
    except OSError as error:
        raise DatabaseUnavailable(
            f"The embedded database cannot use {error.filename or place.home}: {error.strerror}; "
            "TRINITY_DB_HOME names another folder."
        ) from error


def claim(place: Place, binaries: Binaries) -> IO[str] | None:
    """Wait until the server accepts connections (None) or none of its processes is left.

    In the latter case returns the file whose lock the next server is to inherit. PostgreSQL would look
    at the process id in postmaster.pid, and not start where another process of ours now has it.
    """
    claimed = (place.data / "PG_VERSION").open("r+")
    deadline = time.monotonic() + START_SECONDS
    try:
        while (answer := ping(place)) is not Ping.OK:
            if answer is Ping.NO_RESPONSE and _try_lock(claimed):
                return claimed
            if answer is Ping.NO_RESPONSE and _lost_its_socket(place):
                # A program tidied up the socket's folder: no client will ever reach this server again.
                binaries.stop(place.data)
            if time.monotonic() > deadline:
                raise DatabaseUnavailable(
                    f"The embedded database has not answered for {START_SECONDS} s (see {place.log})"
                )
            time.sleep(POLL_SECONDS)
    except BaseException:
        claimed.close()
        raise
    claimed.close()
    return None


def _lost_its_socket(place: Place) -> bool:
    """Whether the server says that it is ready while its socket is not there."""
    try:
        ready = place.pid_file.read_text().rstrip().endswith("ready")
    except FileNotFoundError:
        return False
    return ready and not (place.socket / f".s.PGSQL.{place.port}").exists()


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
