"""Runs all checks that apply: without a server, only those of the installation.

Checks are read-only. Each has a separate transaction with short time-outs, and leaves nothing behind in the
session, which a pooler would hand to other clients. An embedded server that is not running is
started, like with other commands; a missing store is not created.
"""

import os
from collections.abc import Iterable
from contextlib import closing

import psycopg

from trinity_db import schema
from trinity_db.config.base import home
from trinity_db.errors import StoreUpgraded, TrinityError
from trinity_db.insight.checks import horizon, installation, learning, server, tables, work
from trinity_db.insight.checks.finding import Check, Connection, Finding, Level, fail, ok, warn
from trinity_db.postgres import embedded, upgrades
from trinity_db.postgres.connection import connect
from trinity_db.schema.queries import query

STATEMENT_SECONDS = 5.0  # queries take milliseconds, including the few that read rows
LOCK_SECONDS = 1.0

# Checks for any server; for tables, whatever their schema version; for the schema version of this code.
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
    """Return all findings, including ok ones, grouped by part.

    Args:
        url: URL of the store, with the login to use; None: store and login of the environment.
    """
    return [*installation.findings(), *_examine_store(url)]


def _examine_store(url: str | None) -> list[Finding]:
    findings: list[Finding] = []
    try:
        url = url or os.environ.get("TRINITY_DB_URL") or _embedded_url()
        if url is None:
            return [warn("store reached", f"there is no store in {home()} yet", "trinity-db db init")]
        with closing(connect(url, autocommit=True, application_name="trinity-db doctor")) as connection:
            findings += server.encoding(connection)
            if findings[-1].level is Level.FAIL:  # a server too old for any other check
                return findings
            findings += _perform(OF_SERVERS, connection)
            findings += _examine_schema(url, connection)
    except (TrinityError, psycopg.Error) as error:
        findings.append(
            fail("store reached", _line(error), "start the server, or name another in TRINITY_DB_URL")
        )
    return findings


def _examine_schema(url: str, connection: Connection) -> list[Finding]:
    """Check the schema version, and everything that can be checked with it."""
    try:
        version = upgrades.schema_version(url)
    except StoreUpgraded as error:  # its tables are locked
        return [warn("schema version", _line(error), "wait until trinity-db db upgrade has ended")]
    except TrinityError as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        grant = f"GRANT trinity_reader TO {connection.info.user}"
        return [fail("schema version", f"cannot be read: {_line(error.__cause__)}", grant)]
    findings = [_judge(version)]
    if version is not None:
        findings += _perform(OF_TABLES, connection)
    if version == schema.HEAD:
        findings += _perform(OF_STORES, connection)
    return findings


def _embedded_url() -> str | None:
    """URL of the embedded store, which is started; None if it does not exist."""
    return embedded.ensure_running(home()) if embedded.cluster(home()).data.exists() else None


def _perform(checks: Iterable[Check], connection: Connection) -> list[Finding]:
    """Run checks. A check that the server rejects or delays becomes a finding, and the others still run."""
    findings = []
    limits = {"statement_seconds": STATEMENT_SECONDS, "lock_seconds": LOCK_SECONDS}
    for check in checks:
        try:
            with connection.transaction():
                connection.execute(query("limit_checkup"), limits)
                findings += check(connection)
        except psycopg.Error as error:
            if connection.closed or connection.broken:
                raise
            subject = f"{check.__module__.rpartition('.')[2]} {check.__name__}"
            findings.append(warn(subject, f"could not be checked: {_line(error)}", "try again, or as owner"))
    return findings


def _judge(version: str | None) -> Finding:
    """Check the schema version; None if there is no schema."""
    if version == schema.HEAD:
        return ok("schema version", version)
    if version is None:
        return fail("schema version", "the database has no trinity-db schema", "trinity-db db init")
    if version.endswith(upgrades.FORMER):
        return fail("schema version", upgrades.mismatch(version), "trinity-db export, by an older trinity-db")
    if version in upgrades.known_versions():
        text, remedy = "older than this trinity-db needs", "trinity-db db upgrade"
    else:
        text, remedy = "newer than this trinity-db knows", "pip install --upgrade trinity-db"
    return fail("schema version", f"{version}, {text} ({schema.HEAD})", remedy)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
