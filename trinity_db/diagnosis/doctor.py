"""Runs all checks, as far as there is something to look at: without a server, those of the installation.

Everything is read, nothing written, each check in a transaction of its own with short time-outs, which
leaves nothing behind in the session: a pooler would hand it to others. An embedded store that does not run is
started, as by every other command; one that is not there is not made.
"""

import os
from collections.abc import Iterable
from contextlib import closing

import psycopg

from trinity_db import database, embedded, schema, upgrades
from trinity_db.diagnosis import horizon, installation, learning, server, tables, work
from trinity_db.diagnosis.finding import Check, Connection, Finding, Level, fail, ok, warn
from trinity_db.errors import StoreUpgraded, TrinityError
from trinity_db.schema.queries import query
from trinity_db.settings import home

STATEMENT_SECONDS = 5.0  # catalogs answer in milliseconds, the few checks that read rows too
LOCK_SECONDS = 1.0

# What can be asked of any server; of tables, whatever their version; of the version that this code knows.
OF_SERVERS: tuple[Check, ...] = (
    server.version,
    server.durability,
    server.log,
    server.connections,
    server.pooler,
    server.autovacuum,
    horizon.sessions,
    horizon.prepared,
    horizon.slots,
)
OF_TABLES: tuple[Check, ...] = (
    tables.dead_rows,
    tables.sizes,
    tables.statistics,
    tables.wraparound,
    tables.broken_indexes,
)
OF_STORES: tuple[Check, ...] = (
    tables.missing_indexes,
    tables.objects,
    work.dead_letters,
    work.silent_workers,
    work.runs,
    work.setbacks,
    work.archives,
    work.notifications,
    *learning.CHECKS,
)


def examine(url: str | None = None) -> list[Finding]:
    """All findings, also those that are ok, grouped by part.

    Args:
        url: of the store, with the login that looks; None: the store and the login of this environment.
    """
    return [*installation.findings(), *_examine_store(url)]


def _examine_store(url: str | None) -> list[Finding]:
    found: list[Finding] = []
    try:
        url = url or os.environ.get("TRINITY_DB_URL") or _embedded_url()
        if url is None:
            return [warn("store reached", f"there is none in {home()} yet", "trinity-db db init")]
        with closing(
            database.connect(url, autocommit=True, application_name="trinity-db doctor")
        ) as connection:
            found += server.encoding(connection)
            if found[-1].level is Level.FAIL:  # what it says cannot even be read
                return found
            found += _perform(OF_SERVERS, connection)
            found += _examine_schema(url, connection)
    except (TrinityError, psycopg.Error) as error:
        found.append(
            fail("store reached", _line(error), "start the server, or name another in TRINITY_DB_URL")
        )
    return found


def _examine_schema(url: str, connection: Connection) -> list[Finding]:
    """Its version, and whatever of it can be looked at."""
    try:
        version = upgrades.schema_version(url)
    except StoreUpgraded as error:  # its tables are locked
        return [warn("schema version", _line(error), "wait until trinity-db db upgrade has ended")]
    except TrinityError as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        grant = f"GRANT trinity_reader TO {connection.info.user}"
        return [fail("schema version", f"cannot be read: {_line(error.__cause__)}", grant)]
    found = [_judge(version)]
    if version is not None:
        found += _perform(OF_TABLES, connection)
    if version == schema.HEAD:
        found += _perform(OF_STORES, connection)
    return found


def _embedded_url() -> str | None:
    """The embedded store, running; None where none was made."""
    return embedded.ensure_running(home()) if embedded.cluster(home()).data.exists() else None


def _perform(checks: Iterable[Check], connection: Connection) -> list[Finding]:
    """What checks find. A check that the server refuses, or lets wait, is a finding, and the others go on."""
    found = []
    limits = {"statement_seconds": STATEMENT_SECONDS, "lock_seconds": LOCK_SECONDS}
    for check in checks:
        try:
            with connection.transaction():
                connection.execute(query("limit_checkup"), limits)
                found += check(connection)
        except psycopg.Error as error:
            if connection.closed or connection.broken:
                raise
            what = f"{check.__module__.rpartition('.')[2]} {check.__name__}"
            found.append(warn(what, f"could not be looked at: {_line(error)}", "try again, or as its owner"))
    return found


def _judge(version: str | None) -> Finding:
    """The version of the schema, None where there is none."""
    if version == schema.HEAD:
        return ok("schema version", version)
    if version is None:
        return fail("schema version", "the database has no trinity-db schema", "trinity-db db init")
    if version in upgrades.known_versions():
        found, remedy = "older than this trinity-db needs", "trinity-db db upgrade"
    else:
        found, remedy = "newer than this trinity-db knows", "pip install --upgrade trinity-db"
    return fail("schema version", f"{version}, {found} ({schema.HEAD})", remedy)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
