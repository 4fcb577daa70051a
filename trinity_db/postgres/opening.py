"""Opening of the store: its location, the check of its schema, and migrations.

The schema's version is the number of its last migration. `upgrade` runs the missing migrations in one
transaction.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from trinity_db import schema
from trinity_db.config.base import home
from trinity_db.errors import SchemaMismatch, TrinityError
from trinity_db.postgres import upgrades
from trinity_db.postgres.connection import Database, connect, first_line
from trinity_db.postgres.upgrades import (
    LOCK_SECONDS,
    hold_roles_off,
    holder,
    known_versions,
    mismatch,
    schema_version,
)


def location(url: str | None = None) -> str:
    """Return the URL of the store: this one, TRINITY_DB_URL, or the embedded server, started if
    necessary."""
    from trinity_db.postgres import embedded

    return url or os.environ.get("TRINITY_DB_URL") or embedded.ensure_running(home())


def open_database(
    silence_seconds: float | None = None, statement_seconds: float | None = None, url: str | None = None
) -> Database:
    """Open the store for use. An empty embedded store gets the schema; any other must have this code's
    version.

    A role passes its lease as `silence_seconds`: the server ends its sessions that idle for longer. A process
    that answers people passes `statement_seconds`, the statement timeout. `url` names a server in place of
    TRINITY_DB_URL.

    Raises:
        DatabaseUnavailable: if no server answers.
        SchemaMismatch: with the command that fixes it.
    """
    is_embedded = not url and not os.environ.get("TRINITY_DB_URL")
    address = location(url)
    version = schema_version(address)
    if version is None and is_embedded:
        upgrade(address)
    elif version != schema.HEAD:
        raise SchemaMismatch(mismatch(version))
    return Database(address, silence_seconds, home() if is_embedded else None, statement_seconds)


def open_reader(statement_seconds: float | None = None, url: str | None = None) -> Database:
    """Open the store for read-only commands, with a read-only login if possible.

    That login is named by TRINITY_DB_READ_URL or exists in the embedded server; otherwise the login of
    `url` or TRINITY_DB_URL is used. `statement_seconds` is the statement timeout. Raises as `open_database`.
    """
    from trinity_db.postgres import embedded

    url = url or os.environ.get("TRINITY_DB_READ_URL") or os.environ.get("TRINITY_DB_URL")
    if not url:
        open_database()
        return Database(
            embedded.reader_url(home()), embedded_home=home(), statement_seconds=statement_seconds
        )
    try:
        version = schema_version(url)
    except TrinityError as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        raise TrinityError(
            "This login may not read the store: as its owner GRANT trinity_reader TO it, or name another in "
            f"TRINITY_DB_READ_URL ({first_line(error.__cause__)})"
        ) from error
    if version != schema.HEAD:
        raise SchemaMismatch(mismatch(version))
    return Database(url, statement_seconds=statement_seconds)


def encoding_fault(connection: psycopg.Connection[Any]) -> str | None:
    """Describe an unsuitable encoding of a database and how to create another; None if it stores every
    text."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding == "UTF8":
        return None
    return (
        f"database '{connection.info.dbname}' has the encoding {encoding}, which cannot hold every text; "
        "create another: CREATE DATABASE name ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0"
    )


def upgrade(url: str, make_room: Callable[[Any], None] = lambda connection: None) -> None:
    """Create the schema, or migrate it to this code's version.

    Args:
        make_room: called with SQLAlchemy's connection; returns when no role uses the older schema. From then
            until the upgrade ends, no worker may start.

    Raises:
        SchemaMismatch: if the schema is newer than this code.
        TrinityError: if the database's encoding is not UTF-8, another session blocks the upgrade, or the
            server refuses a step, for example because a user's view depends on one of ours.
    """
    from alembic import command
    from sqlalchemy.exc import DBAPIError

    with connect(url) as connection:
        if fault := encoding_fault(connection):
            raise TrinityError(f"Nothing was created: {fault}")
    version = schema_version(url)
    if version is not None and version not in known_versions():
        raise SchemaMismatch(mismatch(version))
    try:
        with alembic_config(url) as config:
            if version not in (None, schema.HEAD):
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
    """Make Alembic's configuration for an open connection, in a checkout as well as from a wheel.

    All commands on one configuration run in one transaction. alembic.ini has the same settings for `alembic`.
    """
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(upgrades.MIGRATIONS).replace("%", "%%"))
    with migrating(url) as connection:
        config.attributes["connection"] = connection
        yield config


@contextmanager
def migrating(url: str) -> Iterator[Any]:
    """Open an SQLAlchemy connection in a transaction that commits at the end.

    Raises:
        DatabaseUnavailable: if no server answers.
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
