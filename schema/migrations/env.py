"""Alembic's entry point: migrates the tables, then makes the views anew.

`trinity-db db upgrade` enters with a connection, by `opening.alembic_config`. The command `alembic` enters
by alembic.ini, without one, and opens the store that `opening.location` names. From there on both are alike.

Views and functions hold no data, so they are not migrated step by step: they are dropped before
the first step and made again from `views.sql` when the newest version is reached. So are comments: an upgrade
writes all of them anew.
"""

import re
from collections.abc import Iterable
from importlib.resources import files
from logging.config import fileConfig
from typing import Any

from alembic import context
from alembic.operations import MigrationScript
from alembic.util import CommandError
from psycopg.errors import InvalidSchemaName
from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.schema import SetColumnComment, SetTableComment

from trinity_db import opening, privileges, upgrades
from trinity_db.errors import TrinityError
from trinity_db.schema.base import SCHEMA
from trinity_db.schema.models import metadata

# A view or function of views.sql, with the comment above it.
DESCRIBED = re.compile(r"((?:^--.*\n)+)CREATE (?:OR REPLACE )?(VIEW|FUNCTION) trinity\.(\w+)", re.MULTILINE)


def migrate(connection: Connection) -> None:
    """Run a command of Alembic in one transaction; two processes that upgrade at once take turns.

    Only a command that moves the schema, up or down, touches views and comments; others look.
    """
    # The server names what is on the search path without its schema, and Alembic would take it for another.
    connection.execute(text("SET LOCAL search_path TO public"))
    moves = _moves()
    if moves:
        upgrades.take_turn(connection)
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        connection.exec_driver_sql(_views("drop"))
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table_schema=SCHEMA,
        include_schemas=True,
        include_name=lambda name, kind, parents: name == SCHEMA if kind == "schema" else True,
        compare_server_default=True,
        process_revision_directives=_number,
    )
    try:
        context.run_migrations()
    except ProgrammingError as error:
        if isinstance(error.orig, InvalidSchemaName):
            raise CommandError(
                "the store has no tables yet; make them first: alembic upgrade head"
            ) from error
        raise
    reached = context.get_context().get_current_revision()
    if moves and reached is not None and reached == context.get_head_revision():
        connection.exec_driver_sql(_views("create"))
        _comment(connection)
        _grant(connection)


def _moves() -> bool:
    """Whether the command goes to another version: only such a command has a destination."""
    try:
        context.get_revision_argument()
    except KeyError:
        return False
    except CommandError:  # +1 and the like, which Alembic resolves later
        return True
    return True


def _number(of: Any, revision: Any, directives: Iterable[MigrationScript]) -> None:
    """Number a new migration after the newest."""
    for directive in directives:
        directive.rev_id = f"{int(str(context.get_head_revision() or 0)) + 1:04d}"


def _comment(connection: Connection) -> None:
    """Say of every table, column, view and function what it holds, as the models and views.sql say it."""
    for table in metadata.sorted_tables:
        connection.execute(SetTableComment(table))
        for column in table.columns:
            connection.execute(SetColumnComment(column))
    said = {
        f"{kind} {SCHEMA}.{name}": " ".join(re.sub("^--", "", lines, flags=re.MULTILINE).split())
        for lines, kind, name in DESCRIBED.findall(_views("create"))
    }
    said[f"TABLE {SCHEMA}.alembic_version"] = "Version of the schema. Written by upgrades"
    said[f"COLUMN {SCHEMA}.alembic_version.version_num"] = "The newest migration that was done"
    for what, comment in said.items():
        quoted = comment.replace("'", "''")
        connection.exec_driver_sql(f"COMMENT ON {what} IS '{quoted}'")


def _grant(connection: Connection) -> None:
    """Give the roles their rights to what is new, where `trinity-db db roles` opened the store to them."""
    opened = text("SELECT relrowsecurity FROM pg_class WHERE oid = to_regclass('trinity.worker')")
    if connection.execute(opened).scalar_one():
        connection.exec_driver_sql(privileges.roles_sql().replace("%", "%%"))


def _views(part: str) -> str:
    drop, create = (
        files("trinity_db.schema").joinpath("views.sql").read_text(encoding="utf-8").split("-- create\n")
    )
    return drop if part == "drop" else create.replace("%", "%%")


def _enter() -> None:
    connection = context.config.attributes.get("connection")
    if connection is not None:
        migrate(connection)
        return
    if context.is_offline_mode():
        raise CommandError("--sql is not there: a migration looks at the store; give TRINITY_DB_URL instead")
    if context.config.config_file_name is not None:
        fileConfig(context.config.config_file_name, disable_existing_loggers=False)
    try:
        with opening.migrating(opening.location()) as connection:
            migrate(connection)
    except TrinityError as error:
        raise CommandError(str(error)) from error


_enter()
