"""`trinity-db db`: the store itself, embedded or on the server that TRINITY_DB_URL names."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from trinity_db.errors import ConfigError, NotFound, SchemaMismatch, TrinityError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Create, check and upgrade the store.")


@app.command()
def init() -> None:
    """Create the store's schema. Does nothing if it exists.

    Example:

        trinity-db db init
    """
    from trinity_db import schema
    from trinity_db.postgres import opening, upgrades

    url = opening.location()
    if upgrades.schema_version(url) is None:
        opening.upgrade(url)
    opening.open_database()
    print(f"The store is ready (schema {schema.HEAD}).")


@app.command()
def upgrade() -> None:
    """Upgrade the store's schema. Roles that use the store wait, and continue by themselves.

    Each role finishes its current work, and restarts once the schema fits its code. The upgrade waits for the
    roles and names them. Ctrl-C leaves the store unchanged.

    Example:

        trinity-db db upgrade
    """
    from trinity_db import schema
    from trinity_db.postgres import opening, upgrades
    from trinity_db.worker.service import LEASE_SECONDS

    url = opening.location()
    old_version = upgrades.schema_version(url)
    opening.upgrade(url, lambda lock: upgrades.make_room(lock, url, LEASE_SECONDS, _name_workers))
    print(f"The schema was {old_version or 'missing'} and is now {schema.HEAD}.")


@app.command()
def check() -> None:
    """Print the versions of server and schema, and check that they fit.

    The exit code is 1 if they do not.

    Example:

        trinity-db db check
    """
    from trinity_db import schema
    from trinity_db.insight.checks.server import OLDEST_MAJOR
    from trinity_db.postgres import opening, upgrades
    from trinity_db.postgres.connection import connect

    url = opening.location()
    with connect(url) as connection:
        server = connection.info.server_version
        print(f"server  PostgreSQL {connection.info.parameter_status('server_version')}")
    version = upgrades.schema_version(url)
    print(f"schema  {version or 'none'}, this trinity-db needs {schema.HEAD}")
    if server // 10000 < OLDEST_MAJOR:
        raise SchemaMismatch(f"The server is too old; trinity-db needs PostgreSQL {OLDEST_MAJOR} or newer.")
    if version is None:
        raise SchemaMismatch("The database has no trinity-db schema yet; run: trinity-db db init")
    opening.open_database()


@app.command()
def url(
    as_reader: Annotated[
        bool, typer.Option("--read", help="URL of a read-only login; the embedded server has one.")
    ] = False,
) -> None:
    """Print the store's URL, for psql and other clients.

    Starts the embedded server if it is not running. If the server listens on a port (db start --port), the
    URL has that port and the password.

    Example:

        psql "$(trinity-db db url)"
    """
    from trinity_db.config import base
    from trinity_db.postgres import embedded, opening
    from trinity_db.postgres.embedded.home_paths import READER, SUPERUSER

    location = opening.location()
    if not os.environ.get("TRINITY_DB_URL"):
        cluster = embedded.cluster(base.home())
        login = READER if as_reader else SUPERUSER
        location = cluster.tcp_url(login) or cluster.url(login=login)
    elif as_reader:
        location = os.environ.get("TRINITY_DB_READ_URL", "")
        if not location:
            raise ConfigError("TRINITY_DB_READ_URL must name a read-only login.")
    print(location)


@app.command()
def start(
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Also listen on this TCP port of this machine, now and at later starts; 0: no port.",
        ),
    ] = None,
) -> None:
    """Start the embedded server. Does nothing if it runs.

    Clients that only support TCP, such as JDBC tools, connect to the port, with the password that db url
    prints.

    Example:

        trinity-db db start --port 5433
    """
    _require_embedded("start")
    from trinity_db.config import base
    from trinity_db.postgres import embedded

    cluster = embedded.cluster(base.home())
    if port is not None:
        cluster.listen(port or None)
    embedded.ensure_running(base.home())
    heard = f", port {cluster.tcp_port}" if cluster.tcp_port else ""
    print(f"The embedded server is running ({base.home()}{heard}).")


@app.command()
def stop(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask, even if workers are alive.")] = False,
) -> None:
    """Stop the embedded server. Does nothing if it is not running.

    Names the workers that are alive and asks first. They wait for the server, and continue when it is started
    again.

    Example:

        trinity-db db stop
    """
    _require_embedded("stop")
    from trinity_db.config import base
    from trinity_db.postgres import embedded

    if not yes and embedded.running(base.home()):
        _ask_for(_living_workers(embedded.cluster(base.home()).url()))
    stopped = embedded.stop(base.home())
    print(f"The embedded server {'has stopped' if stopped else 'was not running'} ({base.home()}).")


@app.command()
def backup(file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")]) -> None:
    """Write the whole store to a file, in the format of pg_dump. Roles may keep running.

    Checkpoints and archived payloads are separate files, which the backup does not include.

    Example:

        trinity-db db backup monday.dump
    """
    from trinity_db.postgres import backup as backups
    from trinity_db.postgres import opening

    backups.backup(opening.location(), file)
    print(f"{file} contains the store ({file.stat().st_size:,} bytes).")


@app.command()
def restore(file: Annotated[Path, typer.Argument(metavar="FILE", help="File written by db backup.")]) -> None:
    """Restore a backup into an empty store: another folder, or another database.

    The restored store is a different store instance: its trainers leave the original's checkpoints alone. If
    it replaces the original, run `trinity-db db moved` next.

    Example:

        TRINITY_DB_HOME=restored trinity-db db restore monday.dump
    """
    from trinity_db.postgres import backup as backups
    from trinity_db.postgres import opening

    if not file.is_file():  # before a server is created here, which a later restore would find
        raise NotFound(f"{file}: no such file.")
    backups.restore(opening.location(), file)
    print(
        f"{file} is restored. This is a different store than the one that was backed up; if it replaces "
        "that one, run: trinity-db db moved"
    )


@app.command()
def roles(
    only_print: Annotated[bool, typer.Option("--print", help="Only print the statements.")] = False,
    login: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Also create a login; prints its URL with a password."),
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="ROLE", help="Its role: explorer, processor, trainer, labeller or reader."
        ),
    ] = None,
) -> None:
    """Create group roles for explorers, processors, trainers, labellers and readers, with their rights.

    Run it as the login that owns the tables. This login must be allowed to create roles, and keeps all its
    rights.

    Example:

        trinity-db db roles --login farm --as explorer
    """
    from contextlib import closing

    from trinity_db.postgres import logins

    if only_print:
        print(logins.roles_sql(), end="")
        return
    if (login is None) != (role is None) or role not in (None, *logins.ROLES):
        raise ConfigError(f"--login NAME needs --as with one of: {', '.join(logins.ROLES)}.")
    from trinity_db.postgres.connection import connect
    from trinity_db.postgres.opening import open_database

    url = open_database().url
    with closing(connect(url, autocommit=True)) as connection:
        logins.open_to_roles(connection)
        if login and role:
            print(logins.new_login(connection, url, login, role))
        else:
            print(f"The roles are {', '.join(f'trinity_{name}' for name in logins.ROLES)}.")


@app.command()
def moved() -> None:
    """Declare that this store was moved here with a dump, a copy or an upgrade, and is not a copy.

    A store that appears in another place counts as a copy: its trainers leave the original's checkpoints
    alone and write to separate folders. After this command it counts as the original, with its folders. Run
    it before the roles start, and only if the original is no longer used.

    Example:

        trinity-db db moved
    """
    from contextlib import closing

    from trinity_db.postgres.opening import open_database
    from trinity_db.store import instances

    with closing(open_database()) as database, database.transaction() as tx:
        changed = instances.declare_moved(tx)
    print(
        "The store continues here, with its folders."
        if changed
        else "The store has not moved; nothing to do."
    )


def _living_workers(url: str) -> list[str]:
    """Describe each worker that is alive."""
    from contextlib import closing

    from trinity_db import schema
    from trinity_db.postgres import upgrades
    from trinity_db.postgres.connection import connect
    from trinity_db.worker.service import LEASE_SECONDS

    if upgrades.schema_version(url) != schema.HEAD:
        return []
    with closing(connect(url)) as connection:
        return upgrades.at_work(connection, LEASE_SECONDS)


def _name_workers(workers: Sequence[str]) -> None:
    print(
        f"The upgrade waits until these have finished their current work: {', '.join(workers)}",
        file=sys.stderr,
    )


def _ask_for(workers: list[str]) -> None:
    """Ask whether to stop the server despite its workers. Without a TTY, refuse."""
    if not workers:
        return
    warning = f"These workers use the server and would wait for it: {', '.join(workers)}"
    if not sys.stdin.isatty():
        raise TrinityError(f"{warning}. Use --yes to stop it anyway.")
    typer.confirm(f"{warning}. Stop it?", abort=True, err=True)


def _require_embedded(command: str) -> None:
    if os.environ.get("TRINITY_DB_URL"):
        raise ConfigError(
            f"db {command} needs the embedded server, but TRINITY_DB_URL names another; unset it first."
        )
