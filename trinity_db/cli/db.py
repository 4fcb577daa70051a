"""`trinity-db db`: the store itself, embedded or the server that TRINITY_DB_URL names."""

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
    """Create the store's schema; harmless when it is there.

    Example:

        trinity-db db init
    """
    from trinity_db import opening, schema, upgrades

    url = opening.location()
    if upgrades.schema_version(url) is None:
        opening.upgrade(url)
    opening.open_database()
    print(f"The store is ready (schema {schema.HEAD}).")


@app.command()
def upgrade() -> None:
    """Bring the store's schema up to date. Roles that work on it wait, and go on by themselves.

    Each role finishes what it has in hand first, and starts again when the schema is the one that its code
    needs. The upgrade waits for them and names them. Ctrl-C leaves the store as it is.

    Example:

        trinity-db db upgrade
    """
    from trinity_db import opening, schema, upgrades
    from trinity_db.service import LEASE_SECONDS

    url = opening.location()
    found = upgrades.schema_version(url)
    opening.upgrade(url, lambda lock: upgrades.make_room(lock, url, LEASE_SECONDS, _name_workers))
    print(f"The schema was {found or 'not there'} and is {schema.HEAD} now.")


@app.command()
def check() -> None:
    """Say which server and schema there are, and whether they fit.

    The exit code is 1 if they do not.

    Example:

        trinity-db db check
    """
    from trinity_db import opening, schema, upgrades
    from trinity_db.database import connect
    from trinity_db.diagnosis.server import OLDEST_MAJOR

    url = opening.location()
    with connect(url) as connection:
        server = connection.info.server_version
        print(f"server  PostgreSQL {connection.info.parameter_status('server_version')}")
    found = upgrades.schema_version(url)
    print(f"schema  {found or 'none'}, this trinity-db needs {schema.HEAD}")
    if server // 10000 < OLDEST_MAJOR:
        raise SchemaMismatch(f"The server is too old; trinity-db needs PostgreSQL {OLDEST_MAJOR} or newer.")
    if found is None:
        raise SchemaMismatch("The database has no trinity-db schema yet; run: trinity-db db init")
    opening.open_database()


@app.command()
def url(
    as_reader: Annotated[
        bool, typer.Option("--read", help="For a login that may only read; the embedded server has one.")
    ] = False,
) -> None:
    """Print the store's URL, for psql and other clients.

    The embedded server is started if need be. Where it hears a port (db start --port), the URL is that of the
    port, with the password.

    Example:

        psql "$(trinity-db db url)"
    """
    from trinity_db import embedded, opening, settings
    from trinity_db.embedded.place import READER, SUPERUSER

    place = opening.location()
    if not os.environ.get("TRINITY_DB_URL"):
        cluster = embedded.cluster(settings.home())
        login = READER if as_reader else SUPERUSER
        place = cluster.tcp_url(login) or cluster.url(login=login)
    elif as_reader:
        place = os.environ.get("TRINITY_DB_READ_URL", "")
        if not place:
            raise ConfigError("TRINITY_DB_READ_URL names no login that may only read.")
    print(place)


@app.command()
def start(
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Also listen on this TCP port of this machine, now and at later starts; 0: on none.",
        ),
    ] = None,
) -> None:
    """Start the embedded server; harmless when it runs.

    Clients that know TCP only, as JDBC tools, connect to the port, with the password that db url shows.

    Example:

        trinity-db db start --port 5433
    """
    _require_embedded("start")
    from trinity_db import embedded, settings

    cluster = embedded.cluster(settings.home())
    if port is not None:
        cluster.listen(port or None)
    embedded.ensure_running(settings.home())
    heard = f", port {cluster.tcp_port}" if cluster.tcp_port else ""
    print(f"The embedded server runs ({settings.home()}{heard}).")


@app.command()
def stop(
    yes: Annotated[bool, typer.Option("--yes", help="Stop even if workers are alive; do not ask.")] = False,
) -> None:
    """Stop the embedded server; harmless when it does not run.

    Workers that are alive are named first. They wait for the server, and go on when it is started again.

    Example:

        trinity-db db stop
    """
    _require_embedded("stop")
    from trinity_db import embedded, settings

    if not yes and embedded.running(settings.home()):
        _ask_for(_living_workers(embedded.cluster(settings.home()).url()))
    stopped = embedded.stop(settings.home())
    print(f"The embedded server {'is stopped' if stopped else 'was not running'} ({settings.home()}).")


@app.command()
def backup(file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")]) -> None:
    """Write the whole store to a file, in the format of pg_dump. Roles may go on meanwhile.

    Checkpoints and archived payloads are files of their own, and not in it.

    Example:

        trinity-db db backup monday.dump
    """
    from trinity_db import backup as backups
    from trinity_db import opening

    backups.backup(opening.location(), file)
    print(f"{file} holds the store ({file.stat().st_size:,} bytes).")


@app.command()
def restore(file: Annotated[Path, typer.Argument(metavar="FILE", help="What db backup wrote.")]) -> None:
    """Bring a backup into an empty store: another folder, or another database.

    What is restored is another store than the one that was backed up: its trainers leave the checkpoints of
    the original alone. Where it takes the original's place, run `trinity-db db moved` next.

    Example:

        TRINITY_DB_HOME=restored trinity-db db restore monday.dump
    """
    from trinity_db import backup as backups
    from trinity_db import opening

    if not file.is_file():  # before this home gets a server for it, which a later restore would find
        raise NotFound(f"{file}: there is no such file.")
    backups.restore(opening.location(), file)
    print(
        f"{file} is restored. This is another store than the one that was backed up; where it takes its "
        "place, run: trinity-db db moved"
    )


@app.command()
def roles(
    only_print: Annotated[bool, typer.Option("--print", help="Print the statements, and run none.")] = False,
    login: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Also make a login; prints its address with a password."),
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="ROLE", help="Its role: explorer, processor, trainer, labeller or reader."
        ),
    ] = None,
) -> None:
    """Make group roles for explorers, processors, trainers, labellers and readers, with the rights they need.

    Run it by the login that owns the tables, which must be allowed to make roles and keeps all its rights.

    Example:

        trinity-db db roles --login farm --as explorer
    """
    from contextlib import closing

    from trinity_db import privileges

    if only_print:
        print(privileges.roles_sql(), end="")
        return
    if (login is None) != (role is None) or role not in (None, *privileges.ROLES):
        raise ConfigError(f"--login NAME goes with --as and one of: {', '.join(privileges.ROLES)}.")
    from trinity_db.database import connect
    from trinity_db.opening import open_database

    place = open_database().url
    with closing(connect(place, autocommit=True)) as connection:
        privileges.open_to_roles(connection)
        if login and role:
            print(privileges.new_login(connection, place, login, role))
        else:
            print(f"The roles are {', '.join(f'trinity_{name}' for name in privileges.ROLES)}.")


@app.command()
def moved() -> None:
    """Declare that this store was moved here on purpose, by a dump, a copy or an upgrade, and is no copy.

    A store in another place than before counts as a copy: its trainers leave the original's checkpoints
    alone and write to folders of their own. After this command it is the original, with its folders. Run it
    before the roles start, and only where the original is not used any more.

    Example:

        trinity-db db moved
    """
    from contextlib import closing

    from trinity_db.opening import open_database
    from trinity_db.store import instances

    with closing(open_database()) as database, database.transaction() as tx:
        changed = instances.declare_moved(tx)
    print(
        "The store goes on here, with its folders."
        if changed
        else "The store is where it was; nothing to do."
    )


def _living_workers(url: str) -> list[str]:
    """Each worker that is alive, in words."""
    from contextlib import closing

    from trinity_db import schema, upgrades
    from trinity_db.database import connect
    from trinity_db.service import LEASE_SECONDS

    if upgrades.schema_version(url) != schema.HEAD:
        return []
    with closing(connect(url)) as connection:
        return upgrades.at_work(connection, LEASE_SECONDS)


def _name_workers(workers: Sequence[str]) -> None:
    print(
        f"The upgrade waits until these have finished what they have in hand: {', '.join(workers)}",
        file=sys.stderr,
    )


def _ask_for(workers: list[str]) -> None:
    """Ask whether workers may lose the server. Without a terminal to ask on, refuse."""
    if not workers:
        return
    said = f"These work with the server and would wait for it: {', '.join(workers)}"
    if not sys.stdin.isatty():
        raise TrinityError(f"{said}. --yes stops it all the same.")
    typer.confirm(f"{said}. Stop it?", abort=True, err=True)


def _require_embedded(command: str) -> None:
    if os.environ.get("TRINITY_DB_URL"):
        raise ConfigError(
            f"db {command} is for the embedded server, and TRINITY_DB_URL names another; unset it first."
        )
