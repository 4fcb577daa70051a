"""`trinity-db db`: the store itself, embedded or the server that TRINITY_DB_URL names."""

import os
import sys
from collections.abc import Sequence
from datetime import datetime
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
def backup(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A new file, or the folder of a continuous backup.")
    ],
    continuous: Annotated[
        bool,
        typer.Option(
            "--continuous",
            help="Have the embedded server keep its log (WAL) in a folder, and copy the server there.",
        ),
    ] = False,
    keep: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Keep only the newest N base backups there, and the log since then."
        ),
    ] = None,
    end: Annotated[
        bool,
        typer.Option("--end", help="Have the server keep its log there no longer. The folder stays."),
    ] = False,
) -> None:
    """Write the whole store to a file, in the format of pg_dump. Roles may go on meanwhile.

    Checkpoints and archived payloads are files of their own, and not in it.

    With --continuous the embedded server hands its log, the record of all changes, over to a folder, and the
    store can be restored as it was at any time from then on. The server begins and ends this only when it
    starts: stop it before the first time, when the command starts it again, and before --end. Given again,
    the command adds a base backup, a copy of the server, while roles go on.

    Example:

        trinity-db db backup monday.dump
    """
    from trinity_db import backup as backups
    from trinity_db import opening

    if not (continuous or end or backups.is_continuous(file)):
        if keep is not None:
            raise ConfigError(f"{file} is no continuous backup: --keep goes with --continuous.")
        backups.backup(opening.location(), file)
        print(f"{file} holds the store ({file.stat().st_size:,} bytes).")
        return
    _require_own_server()
    if end:
        backups.end_continuous(file)
        print(f"The embedded server keeps its log in {file} no longer.")
        return
    _back_up_continuously(file, keep)


def _back_up_continuously(folder: Path, keep: int | None) -> None:
    from trinity_db import backup as backups

    backups.begin_continuous(folder)
    made, removed = backups.take_base_backup(folder, keep)
    size = sum(path.stat().st_size for path in made.rglob("*") if path.is_file())
    gone = f" Older ones that are removed: {removed}." if removed else ""
    print(f"{made} holds a base backup ({size:,} bytes), and the server keeps its log beside it.{gone}")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What db backup wrote: a file, or a folder.")],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Of a folder: the store as it was then. Local time, unless an offset or Z follows.",
        ),
    ] = None,
) -> None:
    """Bring a backup into an empty store: another folder, or another database.

    What is restored is another store than the one that was backed up: its trainers leave the checkpoints of
    the original alone. Where it takes the original's place, run `trinity-db db moved` next.

    The folder of a continuous backup is restored into a home without a store: as the store was at the time of
    --at, or else with all that the folder has. In the home of the original it is the original, and needs no
    `db moved`.

    Example:

        TRINITY_DB_HOME=restored trinity-db db restore monday.dump
    """
    from trinity_db import backup as backups
    from trinity_db import opening

    if not file.exists():  # before this home gets a server for it, which a later restore would find
        raise NotFound(f"{file}: there is no such file or folder.")
    if at is None and not file.is_dir():
        backups.restore(opening.location(), file)
        print(
            f"{file} is restored. This is another store than the one that was backed up; where it takes its "
            "place, run: trinity-db db moved"
        )
        return
    _require_own_server()
    last = backups.restore_to_time(file, _time(at) if at is not None else None)
    print(
        f"{file} is restored; its last transaction is of {last.astimezone() if last else 'the base backup'}. "
        "Its server keeps no log: db backup --continuous begins a new folder."
    )


def _time(text: str) -> datetime:
    """The time that a text gives; the machine's local time where it names no offset."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text!a:.40} is no time; say it as 2026-11-25 14:03, or 2026-11-25T14:03:00Z."
        ) from None


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


def _require_own_server() -> None:
    if os.environ.get("TRINITY_DB_URL"):
        raise ConfigError(
            "Continuous backups are of the embedded server, and TRINITY_DB_URL names another: unset it, or "
            "use the tools of that server (docs/guides/operating.md)."
        )
