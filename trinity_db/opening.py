"""The store as commands and roles open it: where it is, and that its schema is the one of this code.

The schema has a version, the number of its last migration. `upgrade` carries out the migrations that are
missing, all in one transaction.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from trinity_db import schema
from trinity_db.database import Database, connect, first_line
from trinity_db.errors import SchemaMismatch, TrinityError
from trinity_db.settings import home
from trinity_db.upgrades import (
    LOCK_SECONDS,
    hold_roles_off,
    holder,
    known_versions,
    mismatch,
    schema_version,
)


def location() -> str:
    """The URL of the store: TRINITY_DB_URL, or the embedded server, which is started if need be."""
    from trinity_db import embedded

    return os.environ.get("TRINITY_DB_URL") or embedded.ensure_running(home())


def open_database(silence_seconds: float | None = None, statement_seconds: float | None = None) -> Database:
    """The store, ready for use. An embedded one without a schema gets it; any other must fit this code.

    A role gives `silence_seconds`, its lease: a session of its that stands still for longer is ended. A
    process that answers people gives `statement_seconds`: a statement that takes longer is ended.

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
        raise SchemaMismatch(mismatch(found))
    return Database(url, silence_seconds, home() if is_embedded else None, statement_seconds)


def open_reader(statement_seconds: float | None = None) -> Database:
    """The store for commands that only look, by a login that may only read where there is one.

    TRINITY_DB_READ_URL names it; the embedded server has one; otherwise it is the login of TRINITY_DB_URL.
    A statement that takes longer than `statement_seconds` is ended. The errors are those of open_database.
    """
    from trinity_db import embedded

    if not os.environ.get("TRINITY_DB_URL") and not os.environ.get("TRINITY_DB_READ_URL"):
        open_database()
        return Database(
            embedded.reader_url(home()), embedded_home=home(), statement_seconds=statement_seconds
        )
    url = os.environ.get("TRINITY_DB_READ_URL") or os.environ["TRINITY_DB_URL"]
    try:
        found = schema_version(url)
    except TrinityError as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        raise TrinityError(
            "This login may not read the store: as its owner GRANT trinity_reader TO it, or name another in "
            f"TRINITY_DB_READ_URL ({first_line(error.__cause__)})"
        ) from error
    if found != schema.HEAD:
        raise SchemaMismatch(mismatch(found))
    return Database(url, statement_seconds=statement_seconds)


def encoding_fault(connection: psycopg.Connection[Any]) -> str | None:
    """What is wrong with the encoding of a database, and how to make one; None where it holds every text."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding == "UTF8":
        return None
    return (
        f"database '{connection.info.dbname}' has the encoding {encoding}, which cannot hold every text; "
        "create another: CREATE DATABASE name ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0"
    )


def upgrade(url: str, make_room: Callable[[Any], None] = lambda connection: None) -> None:
    """Bring the schema to the version of this code, from nothing or from an older one.

    Args:
        make_room: is given SQLAlchemy's connection, and returns when no role works on the older schema. No
            worker begins from its call on until the upgrade is done or given up.

    Raises:
        SchemaMismatch: the schema is newer than this code.
        TrinityError: the database has another encoding than UTF-8.
        TrinityError: another session holds the upgrade up.
        TrinityError: the server refuses a step, as when a user's own view stands on one of ours.
    """
    from alembic import command
    from sqlalchemy.exc import DBAPIError

    with connect(url) as connection:
        if fault := encoding_fault(connection):
            raise TrinityError(f"Nothing was created: {fault}")
    found = schema_version(url)
    if found is not None and found not in known_versions():
        raise SchemaMismatch(mismatch(found))
    try:
        with alembic_config(url) as config:
            if found not in (None, schema.HEAD):
                hold_roles_off(config.attributes["connection"])
                make_room(config.attributes["connection"])
            command.upgrade(config, "head")
    except DBAPIError as error:
        cause = error.orig
        if isinstance(cause, psycopg.errors.LockNotAvailable):
            session = holder(url) or "it has ended"
            raise TrinityError(
                "The schema was left as it is: another session held one of its tables for longer than "
                f"{LOCK_SECONDS} s. Try again when it has ended ({session})."
            ) from error
        detail = cause.diag.message_detail if isinstance(cause, psycopg.Error) else None
        raise TrinityError(
            f"The schema was left as it is: {first_line(cause or error)}{f' ({detail})' if detail else ''}"
        ) from error


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
