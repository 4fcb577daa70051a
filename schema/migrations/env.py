"""Alembic's entry point: migrates the tables, then makes the views anew.

Views and functions hold no data, so they are not migrated step by step: they are dropped before
the first step and made again from `views.sql` when the newest version is reached.
"""

from importlib.resources import files

from alembic import context
from sqlalchemy import Connection, text

from trinity_db.schema.base import SCHEMA
from trinity_db.schema.models import metadata


def migrate(connection: Connection) -> None:
    """Run the migrations in one transaction; two processes that upgrade at once take turns."""
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('trinity_db upgrade'))"))
    connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table_schema=SCHEMA,
        include_schemas=True,
        include_name=lambda name, kind, parents: name == SCHEMA if kind == "schema" else True,
        compare_server_default=True,
    )
    connection.exec_driver_sql(_views("drop"))
    context.run_migrations()
    reached = context.get_context().get_current_revision()
    if reached is not None and reached == context.get_head_revision():
        connection.exec_driver_sql(_views("create"))


def _views(part: str) -> str:
    drop, create = (
        files("trinity_db.schema").joinpath("views.sql").read_text(encoding="utf-8").split("-- create\n")
    )
    return drop if part == "drop" else create.replace("%", "%%")


migrate(context.config.attributes["connection"])
