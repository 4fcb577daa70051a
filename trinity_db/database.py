"""Connections to the store: where it is, one transaction at a time, errors in our own words.

A Database holds one connection a thread and opens it again when it broke. It knows nothing of
tables beyond the version of the schema. Driver errors are wrapped here and nowhere else: those that
pass by themselves become DatabaseUnavailable, those that a person must mend a TrinityError.

Behind a pooler each transaction may get another session of the server, and what one leaves in its session
another client finds there. So nothing is kept in a session then: statements are not prepared, and settings
are made again in each transaction, for that transaction alone.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg.rows import DictRow, dict_row, tuple_row

from trinity_db import address, schema
from trinity_db.errors import DatabaseUnavailable, SchemaMismatch, TrinityError
from trinity_db.schema.queries import query
from trinity_db.settings import home

logger = logging.getLogger(__name__)

Transaction = psycopg.Connection[DictRow]
Result = TypeVar("Result")

CONNECT_SECONDS = 10  # a server on another continent answers in less
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
REMEDIES = {
    "42501": "let its owner give the login what its role needs (trinity-db db roles), or use another login",
    "53100": "its disk is full; make room there, and start again",
    "53200": "it has no memory left; give it more, or start fewer processes, and start again",
    "53400": "one of its own limits is reached; raise it, and start again",
    "58030": "it cannot use its files; mend its disk, and start again",
    "25006": "it is read-only; name the primary server in TRINITY_DB_URL, or let it take writes again",
}


class Database:
    """A store that is there and whose schema fits this code."""

    def __init__(
        self, url: str, silence_seconds: float | None = None, embedded_home: Path | None = None
    ) -> None:
        self.url = url
        self._silence_seconds = silence_seconds
        """For a role: how long one of its transactions may stand still, and the network say nothing, before
        the server ends the session. So a frozen process holds no lock for longer."""
        self._embedded_home = embedded_home
        """Where a server lies that is ours to start again when it crashed."""
        self._local = threading.local()
        self.session_name = "trinity-db"
        """What sessions that are opened from now on tell the server that they are."""

    @contextmanager
    def transaction(self, read_only: bool = False) -> Iterator[Transaction]:
        """One transaction: commits at the end, rolls back on an error. Never hold it across model work.

        Raises:
            DatabaseUnavailable: the server is gone, or undid the transaction for the sake of another; what
                the block did is undone, or its commit is unclear.
            TrinityError: the server takes no writes, as when its disk is full; with what to do.
        """
        with self.transaction_on(self._connection()) as connection:
            if read_only:
                connection.execute("SET TRANSACTION READ ONLY")
            yield connection

    @contextmanager
    def transaction_on(self, connection: Transaction) -> Iterator[Transaction]:
        """The same on a connection that `listen` gave."""
        needs_settings = is_pooled(connection) and self._silence_seconds is not None
        begun = self._begun(connection) if needs_settings else connection.transaction()
        with in_our_words(connection), begun:
            yield connection

    def retry(self, decide: Callable[[], Result], give_up: Callable[[], bool] = lambda: False) -> Result:
        """Call until the database answers; for a role, which needs no other name of this module for it."""
        return retry(decide, give_up)

    def listen(self, channel: str) -> Transaction:
        """A connection of its own that hears a channel, in autocommit; behind a pooler it hears nothing."""
        connection = self._connect()
        if not is_pooled(connection):
            connection.autocommit = True
            with in_our_words(connection):
                connection.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(channel)))
        return connection

    def close(self) -> None:
        """Close this thread's connection. Harmless when there is none."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _connection(self) -> Transaction:
        connection: Transaction | None = getattr(self._local, "connection", None)
        if connection is None or connection.closed or connection.broken:
            self.close()
            connection = self._connect()
            self._local.connection = connection
        return connection

    def _connect(self, **options: Any) -> Transaction:
        """A connection. An embedded server that crashed is started for it, one that was stopped is not."""
        options["application_name"] = self.session_name
        if self._silence_seconds is not None:
            options |= _notice_silence(self._silence_seconds)
        try:
            connection = connect(self.url, **options)
        except DatabaseUnavailable:
            if self._embedded_home is None or not _revive(self._embedded_home):
                raise
            connection = connect(self.url, **options)
        if self._silence_seconds is not None:
            if is_pooled(connection):
                connection.autocommit = True  # transactions begin with settings
            else:
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

    Raises:
        DatabaseUnavailable: no database answers.
        TrinityError: the address is none, or the pooler keeps no transaction on one session.
    """
    try:
        connection: Transaction = psycopg.connect(
            url,
            row_factory=dict_row,
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            **{"application_name": "trinity-db"} | options,
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
            raise DatabaseUnavailable(f"The database went away: {_first_line(error)}") from error
        if state.startswith(PASSING):
            raise DatabaseUnavailable(f"The database undid a transaction: {_first_line(error)}") from error
        if state in REMEDIES:
            raise TrinityError(f"The database refuses: {_first_line(error)}: {REMEDIES[state]}.") from error
        raise


def _notice_silence(seconds: float) -> dict[str, int]:
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


def location() -> str:
    """The URL of the store: TRINITY_DB_URL, or the embedded server, which is started if need be."""
    from trinity_db import embedded

    return os.environ.get("TRINITY_DB_URL") or embedded.ensure_running(home())


def open_database(silence_seconds: float | None = None) -> Database:
    """The store, ready for use. An embedded one without a schema gets it; any other must fit this code.

    A role gives `silence_seconds`, its lease: a session of its that stands still for longer is ended.

    Raises:
        DatabaseUnavailable: no server answers.
        SchemaMismatch: with the command that mends it.
    """
    url = location()
    is_embedded = not os.environ.get("TRINITY_DB_URL")
    found = schema_version(url)
    if found is None and is_embedded:
        upgrade(url)
    elif found != schema.HEAD:
        raise SchemaMismatch(_mismatch(found))
    return Database(url, silence_seconds, home() if is_embedded else None)


def open_reader() -> Database:
    """The store for commands that only look, by a login that may only read where there is one.

    TRINITY_DB_READ_URL names it; the embedded server has one; otherwise it is the login of TRINITY_DB_URL.
    The errors are those of open_database.
    """
    from trinity_db import embedded

    if not os.environ.get("TRINITY_DB_URL") and not os.environ.get("TRINITY_DB_READ_URL"):
        open_database()
        return Database(embedded.reader_url(home()), embedded_home=home())
    url = os.environ.get("TRINITY_DB_READ_URL") or os.environ["TRINITY_DB_URL"]
    try:
        found = schema_version(url)
    except TrinityError as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        raise TrinityError(
            "This login may not read the store: as its owner GRANT trinity_reader TO it, or name another in "
            f"TRINITY_DB_READ_URL ({_first_line(error.__cause__)})"
        ) from error
    if found != schema.HEAD:
        raise SchemaMismatch(_mismatch(found))
    return Database(url)


def schema_version(url: str) -> str | None:
    """The version of the schema that is there; None where there is none.

    Raises:
        DatabaseUnavailable: no server answers.
        TrinityError: the login may not read it; its cause is psycopg.errors.InsufficientPrivilege.
    """
    with connect(url) as connection:
        try:
            row = connection.execute("SELECT version_num FROM trinity.alembic_version").fetchone()
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return None
        except psycopg.errors.InsufficientPrivilege as error:
            raise TrinityError(
                f"Login '{connection.info.user}' may not use the store ({_first_line(error)}): let its "
                "owner make it a member of one of the roles of trinity-db db roles, or use another login."
            ) from error
    return row["version_num"] if row else None


def encoding_fault(connection: psycopg.Connection[Any]) -> str | None:
    """What is wrong with the encoding of a database, and how to make one; None where it holds every text."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding == "UTF8":
        return None
    return (
        f"database '{connection.info.dbname}' has the encoding {encoding}, which cannot hold every text; "
        "create another: CREATE DATABASE name ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0"
    )


def upgrade(url: str) -> None:
    """Bring the schema to the version of this code, from nothing or from an older one.

    Raises:
        SchemaMismatch: the schema is newer than this code.
        TrinityError: the database has another encoding than UTF-8.
        TrinityError: the server refuses a step, as when a user's own view stands on one of ours.
    """
    from alembic import command
    from sqlalchemy.exc import DBAPIError

    with connect(url) as connection:
        if fault := encoding_fault(connection):
            raise TrinityError(f"Nothing was created: {fault}")
    found = schema_version(url)
    if found is not None and found not in known_versions():
        raise SchemaMismatch(_mismatch(found))
    try:
        with alembic_config(url) as config:
            command.upgrade(config, "head")
    except DBAPIError as error:
        cause = error.orig
        detail = cause.diag.message_detail if isinstance(cause, psycopg.Error) else None
        raise TrinityError(
            f"The schema was left as it is: {_first_line(cause or error)}{f' ({detail})' if detail else ''}"
        ) from error


def known_versions() -> set[str]:
    """Every version of the schema that this code has a migration for."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(files("trinity_db.schema") / "migrations"))
    return {script.revision for script in scripts.walk_revisions()}


@contextmanager
def alembic_config(url: str) -> Iterator[Any]:
    """Alembic's configuration over an open connection, in the tree and from a wheel alike.

    All its commands on one configuration are one transaction. alembic.ini says the same for `alembic` itself.
    """
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "trinity_db.schema:migrations")
    with migrating(url) as connection:
        config.attributes["connection"] = connection
        yield config


@contextmanager
def migrating(url: str) -> Iterator[Any]:
    """A connection as SQLAlchemy has it, in a transaction that commits at the end.

    Raises:
        DatabaseUnavailable: no server answers.
    """
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    def connected() -> psycopg.Connection[Any]:
        connection: psycopg.Connection[Any] = connect(url)
        connection.row_factory = tuple_row
        return connection

    engine = create_engine("postgresql+psycopg://", creator=connected, poolclass=NullPool)
    with engine.begin() as connection:
        yield connection


def _mismatch(found: str | None) -> str:
    if found is None:
        return "The database has no trinity-db schema yet; run: trinity-db db init"
    if found in known_versions():
        return f"The database's schema is {found}, trinity-db needs {schema.HEAD}; run: trinity-db db upgrade"
    return (
        f"The database's schema is {found}, newer than this trinity-db knows ({schema.HEAD}); "
        "run: pip install --upgrade trinity-db"
    )


def storable(text: str) -> str:
    """Text from anywhere in a form that Postgres takes: without NUL and halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
