"""`trinity-db db`: the store itself, embedded or the server that TRINITY_DB_URL names."""

import os

import typer

from trinity_db.errors import ConfigError, SchemaMismatch

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Create, check and upgrade the store.")


@app.command()
def init() -> None:
    """Create the store's schema; harmless when it is there.

    Example:

        trinity-db db init
    """
    from trinity_db import database, schema

    url = database.location()
    if database.schema_version(url) is None:
        database.upgrade(url)
    database.open_database()
    print(f"The store is ready (schema {schema.HEAD}).")


@app.command()
def upgrade() -> None:
    """Bring the store's schema up to date.

    Example:

        trinity-db db upgrade
    """
    from trinity_db import database, schema

    url = database.location()
    found = database.schema_version(url)
    database.upgrade(url)
    print(f"The schema was {found or 'not there'} and is {schema.HEAD} now.")


@app.command()
def check() -> None:
    """Say which server and schema there are, and whether they fit.

    The exit code is 1 where they do not.

    Example:

        trinity-db db check
    """
    from trinity_db import database, schema
    from trinity_db.diagnosis.server import OLDEST_MAJOR

    url = database.location()
    with database.connect(url) as connection:
        server = connection.info.server_version
        print(f"server  PostgreSQL {connection.info.parameter_status('server_version')}")
    found = database.schema_version(url)
    print(f"schema  {found or 'none'}, this trinity-db needs {schema.HEAD}")
    if server // 10000 < OLDEST_MAJOR:
        raise SchemaMismatch(f"The server is too old; trinity-db needs PostgreSQL {OLDEST_MAJOR} or newer.")
    if found is None:
        raise SchemaMismatch("The database has no trinity-db schema yet; run: trinity-db db init")
    database.open_database()


@app.command()
def url() -> None:
    """Print the store's URL, for psql and other clients.

    The embedded server is started if need be.

    Example:

        psql "$(trinity-db db url)"
    """
    from trinity_db import database

    print(database.location())


@app.command()
def start() -> None:
    """Start the embedded server; harmless when it runs.

    Example:

        trinity-db db start
    """
    _require_embedded("start")
    from trinity_db import embedded, settings

    embedded.ensure_running(settings.home())
    print(f"The embedded server runs ({settings.home()}).")


@app.command()
def stop() -> None:
    """Stop the embedded server; harmless when it does not run.

    Example:

        trinity-db db stop
    """
    _require_embedded("stop")
    from trinity_db import embedded, settings

    stopped = embedded.stop(settings.home())
    print(f"The embedded server {'is stopped' if stopped else 'was not running'} ({settings.home()}).")


@app.command()
def moved() -> None:
    """Say that this store was moved here on purpose, by a dump, a copy or an upgrade, and is no copy.

    A store that is found in another place counts as a copy: its trainers leave the original's checkpoints
    alone and write to folders of their own. After this command it is the original, with its folders. Run it
    before the roles start, and only where the original is not used any more.

    Example:

        trinity-db db moved
    """
    from contextlib import closing

    from trinity_db.database import open_database
    from trinity_db.store import instances

    with closing(open_database()) as database, database.transaction() as tx:
        changed = instances.declare_moved(tx)
    print(
        "The store goes on here, with its folders."
        if changed
        else "The store is where it was; nothing to do."
    )


def _require_embedded(command: str) -> None:
    if os.environ.get("TRINITY_DB_URL"):
        raise ConfigError(
            f"db {command} is for the embedded server, and TRINITY_DB_URL names another; unset it first."
        )
