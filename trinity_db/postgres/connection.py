"""Connections to the store: transactions, retries, and errors translated for the user.

A Database holds one connection per thread and reconnects when it breaks. It is unaware of tables; `opening`
checks that the schema fits this code. Only this module wraps driver errors: transient ones become
DatabaseUnavailable, and errors that need a person's action TrinityError.

Behind a pooler each transaction may get another server session, and session state leaks to other clients. So
no state is kept in a session then: statements are not prepared, and settings are repeated in each
transaction, for that transaction alone.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow, dict_row

from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.postgres import address
from trinity_db.schema.queries import query

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

IDLE = TransactionStatus.IDLE
BETWEEN = (IDLE, TransactionStatus.INTRANS, TransactionStatus.INERROR)  # no statement is in flight

CONNECT_SECONDS = 10  # a server on another continent answers faster
SILENT_SECONDS = 30.0  # a command gives up on an unresponsive network after this
RETRY_SECONDS = (0.1, 5.0)  # first and longest pause; a server restarts in about a second
GIVE_UP_SECONDS = 0.1  # how soon a pause ends once `give_up` returns true

# Prefixes of transient SQLSTATEs. Some end the session, maybe a moment later.
PASSING = (
    "08",  # the connection broke, or a pooler lost the server
    "40",  # deadlocks, serialization failures
    "57014",  # another session cancelled the statement
    "57P",  # the server shuts down
    "25P03",  # a transaction idled for too long
)
ANNOUNCE_SECONDS = 0.1  # longest wait for other senders of notifications: one may send gigabytes
QUIET_SECONDS = 2.0  # pause in notifications after one failed; roles poll this often
REMEDIES = {
    "42501": "let its owner give the login what its role needs (trinity-db db roles), or use another login",
    "53100": "its disk is full; make room there, and start again",
    "53200": "it has no memory left; give it more, or start fewer processes, and start again",
    "53400": "one of its own limits is reached; raise it, and start again",
    "58030": "it cannot use its files; repair its disk, and start again",
    "25006": "it is read-only; name the primary server in TRINITY_DB_URL and a login that may write, or let "
    "it take writes again",
}


class Transaction(psycopg.Connection[DictRow]):
    """A connection, or within `Database.transaction` a transaction on it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.announcements: set[tuple[str, str]] = set()
        """Channels and payloads of the notifications to send after the commit."""

    def announce(self, channel: str, payload: str) -> None:
        """Send a notification once the transaction of `Database.transaction` has committed.

        The notification may be lost: see `Database`.
        """
        self.announcements.add((channel, payload))


class Database:
    """A store that exists and whose schema fits this code.

    Notifications are sent after the commit, in a separate statement. Any login can fill the server's
    notification queue, and while it is full, commits that notify fail. So no transaction depends on the
    queue: a notification that cannot be sent within `ANNOUNCE_SECONDS` is dropped and counted, and listeners
    see the change when they next poll.
    """

    def __init__(
        self,
        url: str,
        silence_seconds: float | None = None,
        embedded_home: Path | None = None,
        statement_seconds: float | None = None,
    ) -> None:
        self.url = url
        self._statement_seconds = statement_seconds
        """Statement timeout, in a process that answers people."""
        self._silence_seconds = silence_seconds
        """Longest idle time of a role's transaction, and longest network silence, before the server ends the
        session. So a frozen process holds no lock for longer."""
        self._embedded_home = embedded_home
        """Folder of the embedded server, which this process restarts after a crash."""
        self._local = threading.local()
        self.session_name = "trinity-db"
        """The application_name of sessions opened from now on."""
        self.lost_announcements = 0
        """Number of transactions with dropped notifications since the last successful notification."""
        self._quiet_until = -math.inf

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs, which opens connections of its own."""
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _local=threading.local())

    @contextmanager
    def transaction(self, read_only: bool = False) -> Iterator[Transaction]:
        """Run one transaction: commit at the end, roll back on an error. Never hold it across model work.

        Raises:
            DatabaseUnavailable: if the server is gone, or aborted the transaction in favour of another; the
                block is rolled back, or whether it committed is unknown.
            TrinityError: if the server accepts no writes, for example because its disk is full; the message
                names the remedy.
        """
        with self.transaction_on(self.connection()) as connection:
            if read_only:
                connection.execute("SET TRANSACTION READ ONLY")
            if self._statement_seconds is not None:
                limit_statements(connection, self._statement_seconds)
            yield connection

    @contextmanager
    def transaction_on(self, connection: Transaction) -> Iterator[Transaction]:
        """Run a transaction on a connection returned by `listen`."""
        needs_settings = is_pooled(connection) and self._silence_seconds is not None
        begun = self._begun(connection) if needs_settings else connection.transaction()
        closed = _closed_if_interrupted(connection, IDLE)
        connection.announcements.clear()
        with closed:
            with in_our_words(connection), begun, _closed_if_interrupted(connection, *BETWEEN):
                yield connection
            if connection.announcements:
                self._send_announcements(connection)

    def retry(self, decide: Callable[[], Result], give_up: Callable[[], bool] = lambda: False) -> Result:
        """Retry until the database answers; a method, so that roles need not import this module."""
        return retry(decide, give_up)

    def listen(self, channel: str) -> Transaction:
        """Open a separate connection, in autocommit, that listens on a channel; no notifications pass a
        pooler."""
        connection = self._connect()
        if not is_pooled(connection):
            with in_our_words(connection):
                connection.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(channel)))
        return connection

    def close(self) -> None:
        """Close this thread's connection, if it has one."""
        connection = self._own()
        if connection is not None:
            connection.close()
            self._local.connection = None

    def connection(self) -> Transaction:
        """Return this thread's connection, reconnecting if necessary.

        Raises:
            DatabaseUnavailable: if no database answers.
        """
        connection = self._own()
        if connection is None or connection.closed or connection.broken:
            self.close()
            connection = self._connect()
            self._local.connection, self._local.process = connection, os.getpid()
        return connection

    def _own(self) -> Transaction | None:
        """Return this thread's connection. After a fork it is the parent's, which the child must not use."""
        is_own = getattr(self._local, "process", None) == os.getpid()
        connection: Transaction | None = self._local.connection if is_own else None
        return connection

    def _send_announcements(self, connection: Transaction) -> None:
        """Send the notifications of the transaction just committed. Raises no database error."""
        if time.monotonic() < self._quiet_until:
            self.lost_announcements += 1
            return
        channels, payloads = zip(*sorted(connection.announcements), strict=True)
        values = {"seconds": ANNOUNCE_SECONDS, "channels": list(channels), "payloads": list(payloads)}
        try:
            connection.execute(query("announce"), values)
        except psycopg.Error as error:
            if not self.lost_announcements:
                logger.warning(
                    "Other processes are not notified of new work, and find it when they poll (%s); "
                    "trinity-db doctor names the session that fills the server's queue of notifications.",
                    first_line(error),
                )
            self.lost_announcements += 1
            self._quiet_until = time.monotonic() + QUIET_SECONDS
        else:
            if self.lost_announcements:
                logger.warning(
                    "Notifications are sent again; those of %d transactions were not.",
                    self.lost_announcements,
                )
            self.lost_announcements = 0

    def _connect(self, **options: Any) -> Transaction:
        """Connect. An embedded server that crashed is restarted first; a stopped one is not."""
        options["application_name"] = self.session_name
        if self._silence_seconds is not None:
            # TCP doubles its retransmission timeout: after a cut of 10 s a connection may stay silent for
            # another 15 s, and the heartbeat would come too late. A new connection does not wait.
            options |= _notice_silence(self._silence_seconds / 3)
        try:
            connection = connect(self.url, autocommit=True, **options)
        except DatabaseUnavailable:
            if self._embedded_home is None or not _revive(self._embedded_home):
                raise
            connection = connect(self.url, autocommit=True, **options)
        # Behind a pooler each transaction sets them.
        if self._silence_seconds is not None and not is_pooled(connection):
            with in_our_words(connection), connection.transaction():
                connection.execute("; ".join(self._settings(connection)).encode())
        return connection

    @contextmanager
    def _begun(self, connection: Transaction) -> Iterator[None]:
        """Begin a transaction with a role's settings, in one round trip."""
        connection.execute("; ".join(["BEGIN", *self._settings(connection)]).encode())
        try:
            yield
            connection.commit()
        except BaseException:
            try:
                connection.rollback()
            except psycopg.Error:
                connection.close()
            raise

    def _settings(self, connection: Transaction) -> list[str]:
        """Return the SET statements of a role: for the session, or behind a pooler for the transaction."""
        values = {"seconds": self._silence_seconds, "name": self.session_name}
        values["is_local"] = is_pooled(connection)
        names = ["name_session", "limit_silence", "plan_for_growth"]
        with psycopg.ClientCursor(connection) as cursor:
            return [cursor.mogrify(query(name), values) for name in names]


_absence = threading.local()  # since when this thread has been without the database


def retry(decide: Callable[[], Result], give_up: Callable[[], bool] = lambda: False) -> Result:
    """Retry until the database answers, with exponential backoff; `give_up` ends it early with the error.

    `decide` must be idempotent: the outcome of a failed commit may be unknown. Logs one line when the wait
    begins; `connect` logs one when it reconnects.
    """
    pause, longest = RETRY_SECONDS
    is_reported = False
    while True:
        try:
            result = decide()
        except DatabaseUnavailable as error:
            if give_up():
                raise
            if not is_reported:
                logger.warning("%s; trying again until it works", error)
                is_reported, _absence.since = True, time.monotonic()
            deadline = time.monotonic() + pause
            while time.monotonic() < deadline and not give_up():
                time.sleep(min(pause, GIVE_UP_SECONDS))
            pause = min(2 * pause, longest)
        else:
            _absence.since = None
            return result


def connect(url: str, autocommit: bool = False, **options: Any) -> Transaction:
    """Open a connection and detect a pooler.

    The connection breaks when the network is silent for `SILENT_SECONDS`. TCP itself would wait for a quarter
    of an hour, or for two hours if the server received the query and its answer is lost.

    Raises:
        DatabaseUnavailable: if no database answers.
        TrinityError: if the address is invalid, or the pooler does not keep a transaction on one session.
    """
    try:
        connection = Transaction.connect(
            url,
            row_factory=dict_row,
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            **{"application_name": "trinity-db"} | _notice_silence(SILENT_SECONDS) | options,
        )
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(
            f"No database answers at {address.shown(url)}: {address.reason(error, url)} "
            "(TRINITY_DB_URL names the server)"
        ) from None
    except (psycopg.ProgrammingError, UnicodeError) as error:
        raise TrinityError(
            f"TRINITY_DB_URL is not a PostgreSQL address: {address.reason(error, url)}"
        ) from None
    try:
        _look_for_pooler(connection, url)
        connection.autocommit = autocommit
    except BaseException:
        connection.close()
        raise
    if (since := getattr(_absence, "since", None)) is not None:
        logger.warning("The database is back after %.1f s.", time.monotonic() - since)
        _absence.since = None
    return connection


def is_pooled(connection: psycopg.Connection[Any]) -> bool:
    """Whether a pooler is in between, so that a server session is held for one transaction only."""
    return connection.prepare_threshold is None


def _look_for_pooler(connection: Transaction, url: str) -> None:
    """Disable prepared statements if the backend is not the process announced at connection start.

    A pooler answers the startup itself, with its own backend number. Its pooling mode cannot be seen and may
    change, so session pooling is treated like transaction pooling.
    """
    with in_our_words(connection):
        row = connection.execute(query("server_process")).fetchone()
    if row == {"pid": connection.info.backend_pid}:
        return
    connection.prepare_threshold = None
    try:
        with in_our_words(connection), connection.transaction():
            pass
    except DatabaseUnavailable as error:
        if "statement pooling" not in str(error):
            raise
        raise TrinityError(
            f"The pooler at {address.shown(url)} pools statements, and trinity-db needs transactions: "
            "set its pool_mode to transaction, or name the server itself in TRINITY_DB_URL."
        ) from error


@contextmanager
def _closed_if_interrupted(connection: Transaction, *usable: TransactionStatus) -> Iterator[None]:
    """Close a connection that an interrupt leaves in any other state; a new one replaces it.

    A signal may arrive while the driver waits for the server. The connection then accepts no further
    statement.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if connection.info.transaction_status not in usable:
            connection.close()
        raise


@contextmanager
def in_our_words(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Translate driver errors about this connection, except bugs, into errors of this package.

    Raises:
        DatabaseUnavailable: if the connection is lost, or the server asks for a retry.
        TrinityError: if the server refuses for a reason that a person must fix.
    """
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ""
        masks = isinstance(error.__context__, psycopg.Error) and not state
        if masks and isinstance(error, psycopg.OperationalError):
            connection.close()  # lost in the middle of a pipeline, which could not be exited
        if connection.closed or connection.broken:
            raise DatabaseUnavailable(f"The database went away: {first_line(error)}") from error
        if state.startswith(PASSING):
            raise DatabaseUnavailable(f"The database undid a transaction: {first_line(error)}") from error
        if state in REMEDIES:
            raise TrinityError(f"The database refuses: {first_line(error)}: {REMEDIES[state]}.") from error
        raise


def _notice_silence(seconds: float) -> dict[str, Any]:
    """Return libpq settings with which a network silent for this long counts as lost."""
    return {
        "keepalives_idle": max(1, round(seconds / 3)),
        "keepalives_interval": max(1, round(seconds / 6)),
        "keepalives_count": 4,
        "tcp_user_timeout": round(1000 * seconds),
    }


def _revive(home: Path) -> bool:
    """Restart an embedded server that crashed; False if none did.

    Raises:
        TrinityError: if it does not start, so waiting is pointless.
    """
    from trinity_db.postgres import embedded

    try:
        return embedded.revive(home)
    except DatabaseUnavailable as error:
        raise TrinityError(str(error)) from error


def storable(text: str) -> str:
    """Return the text in a form that Postgres accepts: without NUL and lone surrogates."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "")


def limit_statements(connection: Transaction, seconds: float) -> None:
    """Limit each statement of this transaction to this time and one core, since it answers a person."""
    connection.execute(query("limit_statements"), {"seconds": seconds})


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its class name if the message is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
