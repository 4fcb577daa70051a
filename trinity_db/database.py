"""Connections to the store: where it is, one transaction at a time, errors in our own words.

A Database holds one connection a thread and opens it again when it broke. It knows nothing of
tables beyond the version of the schema. Driver errors are wrapped here and nowhere else.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, TypeVar

import psycopg
from psycopg.rows import DictRow, dict_row

from trinity_db import schema
from trinity_db.errors import DatabaseUnavailable, SchemaMismatch, TrinityError
from trinity_db.settings import home

Transaction = psycopg.Connection[DictRow]
Result = TypeVar("Result")

CONNECT_SECONDS = 10  # a server on another continent answers in less
RETRY_SECONDS = (0.1, 5.0)  # first and longest pause; a server restarts in about a second


class Database:
    """A store that is there and whose schema fits this code."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._local = threading.local()

    @contextmanager
    def transaction(self, read_only: bool = False) -> Iterator[Transaction]:
        """One transaction: commits at the end, rolls back on an error. Never hold it across model work.

        Raises:
            DatabaseUnavailable: the server is gone; what the block did is undone, or its commit is unclear.
        """
        connection = self._connection()
        try:
            with connection.transaction():
                if read_only:
                    connection.execute("SET TRANSACTION READ ONLY")
                yield connection
        except psycopg.OperationalError as error:
            if connection.broken or connection.closed:
                raise DatabaseUnavailable(f"The database went away: {_first_line(error)}") from error
            raise

    def retry(self, decide: Callable[[], Result], give_up: Callable[[], bool] = lambda: False) -> Result:
        """Call until the database answers, with growing pauses; `give_up` ends it early with the error.

        The decision must be one that may be repeated after a commit whose outcome is unclear.
        """
        pause, longest = RETRY_SECONDS
        while True:
            try:
                return decide()
            except DatabaseUnavailable:
                if give_up():
                    raise
                time.sleep(pause)
                pause = min(2 * pause, longest)

    def listen(self, channel: str) -> psycopg.Connection[DictRow]:
        """A connection of its own, in autocommit, that hears a channel."""
        connection = connect(self.url, autocommit=True)
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
            connection = connect(self.url)
            self._local.connection = connection
        return connection


def connect(url: str, **options: Any) -> psycopg.Connection[DictRow]:
    """Open a connection, or say in one line that no database answers."""
    try:
        return psycopg.connect(
            url,
            row_factory=dict_row,
            connect_timeout=CONNECT_SECONDS,
            application_name="trinity-db",
            **options,
        )
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(
            f"No database answers at {_without_password(url)}: {_first_line(error)} "
            "(TRINITY_DB_URL names the server)"
        ) from error
    except psycopg.ProgrammingError as error:
        raise TrinityError(f"TRINITY_DB_URL is not a PostgreSQL address: {_first_line(error)}") from error


def location() -> str:
    """The URL of the store: TRINITY_DB_URL, or the embedded server, which is started if need be."""
    from trinity_db import embedded

    return os.environ.get("TRINITY_DB_URL") or embedded.ensure_running(home())


def open_database() -> Database:
    """The store, ready for use. An embedded one without a schema gets it; any other must fit this code.

    Raises:
        DatabaseUnavailable: no server answers.
        SchemaMismatch: with the command that mends it.
    """
    url = location()
    found = schema_version(url)
    if found is None and not os.environ.get("TRINITY_DB_URL"):
        upgrade(url)
    elif found != schema.HEAD:
        raise SchemaMismatch(_mismatch(found))
    return Database(url)


def schema_version(url: str) -> str | None:
    """The version of the schema that is there; None where there is none.

    Raises:
        DatabaseUnavailable: no server answers.
    """
    with connect(url) as connection:
        try:
            row = connection.execute("SELECT version_num FROM trinity.alembic_version").fetchone()
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return None
    return row["version_num"] if row else None


def upgrade(url: str) -> None:
    """Bring the schema to the version of this code, from nothing or from an older one.

    Raises:
        SchemaMismatch: the schema is newer than this code.
        TrinityError: the server refuses a step, as when a user's own view stands on one of ours.
    """
    from alembic import command
    from sqlalchemy.exc import DBAPIError

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


def write_migration(url: str, purpose: str) -> None:
    """For developers (`make migration`): the difference of models and store as a new migration."""
    from alembic import command

    with alembic_config(url) as config:
        command.revision(config, purpose, autogenerate=True)


def known_versions() -> set[str]:
    """Every version of the schema that this code has a migration for."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(files("trinity_db.schema") / "migrations"))
    return {script.revision for script in scripts.walk_revisions()}


@contextmanager
def alembic_config(url: str) -> Iterator[Any]:
    """Alembic's configuration over an open connection, in the tree and from a wheel alike.

    All its commands on one configuration are one transaction.
    """
    from alembic.config import Config
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    config = Config()
    config.set_main_option("script_location", "trinity_db.schema:migrations")
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        yield config


def _mismatch(found: str | None) -> str:
    if found is None:
        return "The database has no trinity-db schema yet; run: trinity-db db init"
    if found in known_versions():
        return f"The database's schema is {found}, trinity-db needs {schema.HEAD}; run: trinity-db db upgrade"
    return (
        f"The database's schema is {found}, newer than this trinity-db knows ({schema.HEAD}); "
        "run: pip install --upgrade trinity-db"
    )


def _without_password(url: str) -> str:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return url.replace(f":{parts.password}@", ":***@") if parts.password else url


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
