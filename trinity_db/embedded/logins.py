"""The database of an embedded server, and its login that may only read: made where they are missing."""

from contextlib import closing

import psycopg
from psycopg.rows import DictRow, dict_row

from trinity_db import privileges
from trinity_db.embedded.place import DATABASE, READER, SUPERUSER, Place
from trinity_db.embedded.presence import locked
from trinity_db.errors import DatabaseUnavailable


def make_database(place: Place) -> None:
    """Make the database and its logins in a server that runs; a standby has those of its primary.

    Raises:
        DatabaseUnavailable: the server lets no connection in.
    """
    address = place.url("postgres")
    try:
        with closing(psycopg.connect(address, autocommit=True, row_factory=dict_row)) as connection:
            if _is_standby(connection):
                return
            found = connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE])
            if not found.rowcount:
                connection.execute(f"CREATE DATABASE {DATABASE}")
            _make_reader(connection, place)
    except psycopg.OperationalError as error:
        reason = str(error).partition("\n")[0]
        raise DatabaseUnavailable(f"The embedded database does not let us in: {reason}") from error


def admit_reader(place: Place) -> None:
    """Make and limit the login that may only read, where older code started the home.

    Raises:
        DatabaseUnavailable: the server is a standby, and its primary has no such login.
    """
    with closing(psycopg.connect(place.url(), autocommit=True, row_factory=dict_row)) as connection:
        is_there = privileges.is_reader(connection, READER)
        if is_there and not privileges.may_end_sessions(connection, READER):
            return
        if _is_standby(connection):
            if is_there:
                return
            raise DatabaseUnavailable(
                f"This server is a standby, and its primary has no login '{READER}', which commands that "
                "only look come by: with the primary's TRINITY_DB_HOME run once: trinity-db status"
            )
        with locked(place):
            if not is_there:
                _make_reader(connection, place)
                privileges.let_read(connection)
            privileges.restrict_functions(connection)


def _make_reader(connection: psycopg.Connection[DictRow], place: Place) -> None:
    """Make a login that is no superuser. The schema's views.sql lets its group read."""
    if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [privileges.READERS]).rowcount:
        connection.execute(f"CREATE ROLE {privileges.READERS} NOLOGIN")
    privileges.make_login(connection, READER, privileges.READERS)
    if place.tcp_port is not None:
        for login in (SUPERUSER, READER):
            privileges.set_password(connection, login, place.password(login))


def _is_standby(connection: psycopg.Connection[DictRow]) -> bool:
    row = connection.execute("SELECT pg_is_in_recovery() AS is_so").fetchone()
    assert row is not None
    return bool(row["is_so"])
