"""Connections to the store: one transaction at a time, errors in our own words.

A Database holds one connection a thread and opens it again when it broke. It knows nothing of tables;
`opening` sees that the schema fits this code. Driver errors are wrapped here and nowhere else: those that
pass by themselves become DatabaseUnavailable, those that a person must mend a TrinityError.

Behind a pooler each transaction may get another session of the server, and what one leaves in its session
another client finds there. So nothing is kept in a session then: statements are not prepared, and settings
are made again in each transaction, for that transaction alone.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow, dict_row

from trinity_db import address
from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.schema.queries import query

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

IDLE = TransactionStatus.IDLE
BETWEEN = (IDLE, TransactionStatus.INTRANS, TransactionStatus.INERROR)  # no statement is on its way

CONNECT_SECONDS = 10  # a server on another continent answers in less
SILENT_SECONDS = 30.0  # after which a command gives up a network that says nothing
RETRY_SECONDS = (0.1, 5.0)  # first and longest pause; a server restarts in about a second
GIVE_UP_SECONDS = 0.1  # how soon a pause ends when no caller waits for its end any more

# Beginnings of SQLSTATEs that pass by themselves. Some end the session, maybe a moment later.
PASSING = (
    "08",  # the connection broke, or a pooler lost the server
    "40",  # deadlocks, serialization failures
    "57014",  # another session cancelled the statement
    "57P",  # the server shuts down
    "25P03",  # a transaction stood still
)
ANNOUNCE_SECONDS = 0.1  # longest wait for other senders of notifications, one of which may send gigabytes
QUIET_SECONDS = 2.0  # without notifications after one could not be sent; roles poll as often
REMEDIES = {
    "42501": "let its owner give the login what its role needs (trinity-db db roles), or use another login",
    "53100": "its disk is full; make room there, and start again",
    "53200": "it has no memory left; give it more, or start fewer processes, and start again",
    "53400": "one of its own limits is reached; raise it, and start again",
    "58030": "it cannot use its files; mend its disk, and start again",
    "25006": "it is read-only; name the primary server in TRINITY_DB_URL and a login that may write, or let "
    "it take writes again",
}


class Transaction(psycopg.Connection[DictRow]):
    """A connection, and within `Database.transaction` a transaction on it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.announcements: set[tuple[str, str]] = set()
        """Channels and payloads of the notifications that are sent after the commit."""

    def announce(self, channel: str, payload: str) -> None:
        """Send a notification once the transaction of `Database.transaction` has committed.

        The notification may be lost: see `Database`.
        """
        self.announcements.add((channel, payload))


class Database:
    """A store that is there and whose schema fits this code.

    Notifications are sent after the commit, in a separate statement. Every login may fill the server's queue
    of notifications, and a commit that has one fails while the queue is full. So no transaction depends on
    the queue: a notification that cannot be sent within `ANNOUNCE_SECONDS` is dropped and counted, and
    listeners see the change when they next poll.
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
        """For a process that answers people: how long one of its statements may take."""
        self._silence_seconds = silence_seconds
        """For a role: how long one of its transactions may stand still, and the network say nothing, before
        the server ends the session. So a frozen process holds no lock for longer."""
        self._embedded_home = embedded_home
        """Where a server lies that is ours to start again when it crashed."""
        self._local = threading.local()
        self.session_name = "trinity-db"
        """What sessions that are opened from now on tell the server that they are."""
        self.lost_announcements = 0
        """Number of transactions whose notifications were not sent, since one could last be sent."""
        self._quiet_until = -math.inf

    @contextmanager
    def transaction(self, read_only: bool = False) -> Iterator[Transaction]:
        """One transaction: commits at the end, rolls back on an error. Never hold it across model work.

        Raises:
            DatabaseUnavailable: the server is gone, or undid the transaction for the sake of another; what
                the block did is undone, or its commit is unclear.
            TrinityError: the server takes no writes, as when its disk is full; with what to do.
        """
        with self.transaction_on(self.connection()) as connection:
            if read_only:
                connection.execute("SET TRANSACTION READ ONLY")
            if self._statement_seconds is not None:
                limit_statements(connection, self._statement_seconds)
            yield connection

    @contextmanager
    def transaction_on(self, connection: Transaction) -> Iterator[Transaction]:
        """The same on a connection that `listen` gave."""
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
        """Call until the database answers; for a role, which needs no other name of this module for it."""
        return retry(decide, give_up)

    def listen(self, channel: str) -> Transaction:
        """A connection of its own that hears a channel, in autocommit; behind a pooler it hears nothing."""
        connection = self._connect()
        if not is_pooled(connection):
            with in_our_words(connection):
                connection.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(channel)))
        return connection

    def close(self) -> None:
        """Close this thread's connection. Harmless when there is none."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def connection(self) -> Transaction:
        """This thread's connection, a new one if there is none that works.

        Raises:
            DatabaseUnavailable: no database answers.
        """
        connection: Transaction | None = getattr(self._local, "connection", None)
        if connection is None or connection.closed or connection.broken:
            self.close()
            connection = self._connect()
            self._local.connection = connection
        return connection

    def _send_announcements(self, connection: Transaction) -> None:
        """Send the notifications of the transaction that has just committed. Raises no database error."""
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
        """A connection. An embedded server that crashed is started for it, one that was stopped is not."""
        options["application_name"] = self.session_name
        if self._silence_seconds is not None:
            # TCP doubles its pauses: after a cut of 10 s a connection may say nothing for another 15, and its
            # heartbeat would come too late. A new one does not wait.
            options |= _notice_silence(self._silence_seconds / 3)
        try:
            connection = connect(self.url, autocommit=True, **options)
        except DatabaseUnavailable:
            if self._embedded_home is None or not _revive(self._embedded_home):
                raise
            connection = connect(self.url, autocommit=True, **options)
        # Behind a pooler each transaction begins with its settings.
        if self._silence_seconds is not None and not is_pooled(connection):
            with in_our_words(connection), connection.transaction():
                connection.execute("; ".join(self._settings(connection)).encode())
        return connection

    @contextmanager
    def _begun(self, connection: Transaction) -> Iterator[None]:
        """A transaction that begins with a role's settings, in one message: the server is asked once."""
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
        """Statements that make a role's settings: of the session, or behind a pooler of the transaction."""
        values = {"seconds": self._silence_seconds, "name": self.session_name}
        values["is_local"] = is_pooled(connection)
        names = ["name_session", "limit_silence", "plan_for_growth"]
        with psycopg.ClientCursor(connection) as cursor:
            return [cursor.mogrify(query(name), values) for name in names]


_absence = threading.local()  # since when this thread has been without the database


def retry(decide: Callable[[], Result], give_up: Callable[[], bool] = lambda: False) -> Result:
    """Call until the database answers, with growing pauses; `give_up` ends it early with the error.

    The decision must be one that may be repeated after a commit whose outcome is unclear. Logs one line
    when it begins to wait, and `connect` one when there is a connection again.
    """
    pause, longest = RETRY_SECONDS
    told = False
    while True:
        try:
            result = decide()
        except DatabaseUnavailable as error:
            if give_up():
                raise
            if not told:
                logger.warning("%s; trying again until it works", error)
                told, _absence.since = True, time.monotonic()
            deadline = time.monotonic() + pause
            while time.monotonic() < deadline and not give_up():
                time.sleep(min(pause, GIVE_UP_SECONDS))
            pause = min(2 * pause, longest)
        else:
            _absence.since = None
            return result


def connect(url: str, autocommit: bool = False, **options: Any) -> Transaction:
    """Open a connection, and see whether a pooler is between.

    It breaks when the network says nothing for `SILENT_SECONDS`. TCP itself waits for a quarter of an hour,
    or for two hours where the server has heard the question and its answer is lost.

    Raises:
        DatabaseUnavailable: no database answers.
        TrinityError: the address is none, or the pooler keeps no transaction on one session.
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
    """Whether a pooler is between, so that no session of the server is ours for longer than a transaction."""
    return connection.prepare_threshold is None


def _look_for_pooler(connection: Transaction, url: str) -> None:
    """Prepare no statements where the process that answers is not the one that we were told at the beginning.

    A pooler answers the beginning itself, with a number of its own. Which of its modes it is in cannot be
    seen, and may change: one that keeps a session for each client is treated as one that does not.
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
    """Close a connection that an interrupt leaves in another state than these: a new one takes its place.

    A signal may come while the driver waits for the server. Then the connection takes no further statement.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if connection.info.transaction_status not in usable:
            connection.close()
        raise


@contextmanager
def in_our_words(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Turn what the driver says about this connection into an error of ours, where it is no bug.

    Raises:
        DatabaseUnavailable: the connection is lost, or the server asks to try again.
        TrinityError: the server refuses for a reason that a person must mend.
    """
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ""
        masks = isinstance(error.__context__, psycopg.Error) and not state
        if masks and isinstance(error, psycopg.OperationalError):
            connection.close()  # it was lost in the middle of a pipeline's answers, which could not be left
        if connection.closed or connection.broken:
            raise DatabaseUnavailable(f"The database went away: {first_line(error)}") from error
        if state.startswith(PASSING):
            raise DatabaseUnavailable(f"The database undid a transaction: {first_line(error)}") from error
        if state in REMEDIES:
            raise TrinityError(f"The database refuses: {first_line(error)}: {REMEDIES[state]}.") from error
        raise


def _notice_silence(seconds: float) -> dict[str, Any]:
    """libpq's settings with which a network that says nothing for so long counts as gone."""
    return {
        "keepalives_idle": max(1, round(seconds / 3)),
        "keepalives_interval": max(1, round(seconds / 6)),
        "keepalives_count": 4,
        "tcp_user_timeout": round(1000 * seconds),
    }


def _revive(home: Path) -> bool:
    """Start an embedded server that crashed; False if there is none.

    Raises:
        TrinityError: it does not start: it would be in vain to wait for it.
    """
    from trinity_db import embedded

    try:
        return embedded.revive(home)
    except DatabaseUnavailable as error:
        raise TrinityError(str(error)) from error


def storable(text: str) -> str:
    """Text from anywhere in a form that Postgres takes: without NUL and halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "")


def limit_statements(connection: Transaction, seconds: float) -> None:
    """Let each statement of this transaction take so long, and one core: it answers a person."""
    connection.execute(query("limit_statements"), {"seconds": seconds})


def first_line(error: Exception) -> str:
    """The first line of what an error says, or its kind where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
