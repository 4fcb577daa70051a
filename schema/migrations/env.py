"""Alembic's entry point: migrates the tables, then recreates the views.

`trinity-db db upgrade` enters with a connection, through `opening.alembic_config`. The command `alembic`
enters through alembic.ini, without a connection, and opens the store at `opening.location`. The rest is the
same.

Views and functions contain no data, so they are not migrated step by step: they are dropped before the first
step and recreated from `views/` at the newest version. All comments are rewritten then, too.
"""

import re
from collections.abc import Iterable
from logging.config import fileConfig
from typing import Any

from alembic import context
from alembic.operations import MigrationScript
from alembic.util import CommandError
from psycopg.errors import InvalidSchemaName
from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.schema import SetColumnComment, SetTableComment

from trinity_db.errors import TrinityError
from trinity_db.postgres import logins, opening, upgrades
from trinity_db.schema import views
from trinity_db.schema.tables.base import SCHEMA
from trinity_db.schema.tables.models import metadata

VERSION_TABLE = "schema_version"

# A view or function of views/, with the comment above it.
DESCRIBED = re.compile(r"((?:^--.*\n)+)CREATE (?:OR REPLACE )?(VIEW|FUNCTION) trinity\.(\w+)", re.MULTILINE)


def migrate(connection: Connection) -> None:
    """Run an Alembic command in one transaction; concurrent upgrades are serialised.

    Only commands that change the schema's version touch views and comments; others are read-only.
    """
    # The server omits the schema of objects on the search path, and Alembic would not recognise them.
    connection.execute(text("SET LOCAL search_path TO public"))
    moves = _moves()
    if moves:
        upgrades.take_turn(connection)
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        connection.exec_driver_sql(_views("drop"))
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
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
    """Whether the command changes the version: only such commands have a target."""
    try:
        context.get_revision_argument()
    except KeyError:
        return False
    except CommandError:  # relative targets such as +1, which Alembic resolves later
        return True
    return True


def _number(migration_context: Any, revision: Any, directives: Iterable[MigrationScript]) -> None:
    """Number a new migration after the newest."""
    for directive in directives:
        directive.rev_id = f"{int(str(context.get_head_revision() or 0)) + 1:04d}"


def _comment(connection: Connection) -> None:
    """Write the comments of all tables, columns, views and functions, from the models and views/."""
    for table in metadata.sorted_tables:
        connection.execute(SetTableComment(table))
        for column in table.columns:
            connection.execute(SetColumnComment(column))
    comments = {
        f"{kind} {SCHEMA}.{name}": " ".join(re.sub("^--", "", lines, flags=re.MULTILINE).split())
        for lines, kind, name in DESCRIBED.findall(_views("create"))
    }
    comments[f"TABLE {SCHEMA}.{VERSION_TABLE}"] = "Version of the schema. Written by upgrades"
    comments[f"COLUMN {SCHEMA}.{VERSION_TABLE}.version_num"] = "Newest applied migration"
    for target, comment in comments.items():
        quoted = comment.replace("'", "''")
        connection.exec_driver_sql(f"COMMENT ON {target} IS '{quoted}'")


def _grant(connection: Connection) -> None:
    """Grant the roles rights on new objects, if `trinity-db db roles` was run on the store."""
    opened = text("SELECT relrowsecurity FROM pg_class WHERE oid = to_regclass('trinity.worker')")
    if connection.execute(opened).scalar_one():
        connection.exec_driver_sql(logins.roles_sql().replace("%", "%%"))


def _views(part: str) -> str:
    return views.drop_sql() if part == "drop" else views.create_sql().replace("%", "%%")


def _enter() -> None:
    connection = context.config.attributes.get("connection")
    if connection is not None:
        migrate(connection)
        return
    if context.is_offline_mode():
        raise CommandError("--sql is not supported: migrations read the store; set TRINITY_DB_URL instead")
    if context.config.config_file_name is not None:
        fileConfig(context.config.config_file_name, disable_existing_loggers=False)
    try:
        url = opening.location()
        if (version := upgrades.schema_version(url)) and version.endswith(upgrades.FORMER):
            raise CommandError(upgrades.mismatch(version))
        with opening.migrating(url) as connection:
            migrate(connection)
    except TrinityError as error:
        raise CommandError(str(error)) from error


_enter()
