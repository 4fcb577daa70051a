"""Creates the database of an embedded server, and its read-only login, if they are missing."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
from psycopg.rows import DictRow, dict_row

from trinity_db.errors import DatabaseUnavailable
from trinity_db.postgres import logins
from trinity_db.postgres.embedded.home_paths import DATABASE, READER, SUPERUSER, HomePaths
from trinity_db.postgres.embedded.presence import locked


def make_database(paths: HomePaths) -> None:
    """Create the database and its logins in a running server; a standby has those of its primary.

    Raises:
        DatabaseUnavailable: if the server rejects the connection.
    """
    with _connected(paths.url("postgres")) as connection:
        if _is_standby(connection):
            return
        rows = connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE])
        if not rows.rowcount:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        _make_reader(connection, paths)


def admit_reader(paths: HomePaths) -> None:
    """Create and restrict the read-only login if it is missing or has too many rights.

    Raises:
        DatabaseUnavailable: if the server goes down meanwhile, or is a standby whose primary has no such
            login.
    """
    with _connected(paths.url()) as connection:
        is_there = logins.is_reader(connection, READER)
        if is_there and not logins.may_call_restricted(connection, READER):
            return
        if _is_standby(connection):
            if is_there:
                return
            raise DatabaseUnavailable(
                f"This server is a standby, and its primary has no login '{READER}', which "
                "read-only commands use: with the primary's TRINITY_DB_HOME run once: trinity-db status"
            )
        with locked(paths):
            if not is_there:
                _make_reader(connection, paths)
                logins.let_read(connection)
            logins.restrict_functions(connection)


@contextmanager
def _connected(address: str) -> Iterator[psycopg.Connection[DictRow]]:
    """Connect to a running server.

    Raises:
        DatabaseUnavailable: if it rejects the connection, or goes down meanwhile.
    """
    try:
        with closing(psycopg.connect(address, autocommit=True, row_factory=dict_row)) as connection:
            yield connection
    except psycopg.OperationalError as error:
        reason = str(error).partition("\n")[0]
        raise DatabaseUnavailable(f"The embedded database rejected the connection: {reason}") from error


def _make_reader(connection: psycopg.Connection[DictRow], paths: HomePaths) -> None:
    """Create a login without superuser rights. schema/views/access.sql grants its group read access."""
    if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [logins.READERS]).rowcount:
        connection.execute(f"CREATE ROLE {logins.READERS} NOLOGIN")
    logins.make_login(connection, READER, logins.READERS)
    if paths.tcp_port is not None:
        for login in (SUPERUSER, READER):
            logins.set_password(connection, login, paths.password(login))


def _is_standby(connection: psycopg.Connection[DictRow]) -> bool:
    row = connection.execute("SELECT pg_is_in_recovery() AS is_so").fetchone()
    assert row is not None
    return bool(row["is_so"])
