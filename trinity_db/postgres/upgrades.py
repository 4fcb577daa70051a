"""Check of the store's schema version, and upgrades that wait for running roles to exit.

An upgrade locks the table with the schema version until the new schema is committed. Workers do not start
during an upgrade, and running ones meet the lock at their next heartbeat, finish their current work and exit.
The upgrade changes nothing until the last of them has exited. So no worker's code ever meets a schema of
another version.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from trinity_db import schema
from trinity_db.errors import StoreUpgraded, TrinityError
from trinity_db.postgres.connection import Transaction, connect, first_line, in_our_words
from trinity_db.schema.queries import query

if TYPE_CHECKING:
    from sqlalchemy import Connection

MIGRATIONS = Path(str(files("trinity_db.schema") / "migrations"))
FORMER = " (before 0.1.0)"  # after the number of a schema that no release had
LOOK_SECONDS = 0.5  # poll interval for workers that an upgrade waits for
LOCK_SECONDS = 30  # for other sessions to release a table; the page's statements take less
SILENT_SECONDS = 30  # an upgrade that is silent for so long counts as lost


def schema_version(url: str) -> str | None:
    """Return the version of the existing schema, with `FORMER` if no release had it; None without a schema.

    Raises:
        DatabaseUnavailable: if no server answers.
        StoreUpgraded: if an upgrade is in progress.
        TrinityError: if the login may not read it; its cause is psycopg.errors.InsufficientPrivilege.
    """
    with closing(connect(url)) as connection, in_our_words(connection):
        try:
            return _version(connection)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            connection.rollback()
            return _former_version(connection)
        except psycopg.errors.InsufficientPrivilege as error:
            raise TrinityError(
                f"Login '{connection.info.user}' may not use the store ({first_line(error)}): let its "
                "owner make it a member of one of the roles of trinity-db db roles, or use another login."
            ) from error


def known_versions() -> set[str]:
    """Return all schema versions that this code has a migration for."""
    from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()}


def mismatch(version: str | None) -> str:
    """Describe a schema of another version for the user, with the command that fixes it."""
    if version is None:
        return "The database has no trinity-db schema yet; run: trinity-db db init"
    if version.endswith(FORMER):
        return (
            f"The database's schema is {version}, which this trinity-db cannot upgrade. Export what you need "
            "with the last commit that opens it, and import that into a new store."
        )
    if version in known_versions():
        return (
            f"The database's schema is {version}, trinity-db needs {schema.HEAD}; run: trinity-db db upgrade"
        )
    return (
        f"The database's schema is {version}, newer than this trinity-db knows ({schema.HEAD}); "
        "run: pip install --upgrade trinity-db"
    )


def check(tx: Transaction) -> None:
    """Ensure that the schema has this code's version until the transaction ends.

    Raises:
        StoreUpgraded: if the store is being upgraded, or has been.
    """
    if (version := _version(tx)) != schema.HEAD:
        raise StoreUpgraded(mismatch(version))


def take_turn(connection: "Connection") -> None:
    """Serialize sessions that change the schema, until the transaction ends.

    Only the owner of the tables may take the lock, and readers do not wait for it. Each statement of the
    transaction waits for `LOCK_SECONDS` at most.

    Raises:
        sqlalchemy.exc.DBAPIError: caused by psycopg.errors.LockNotAvailable; `holder` names the other
            session.
    """
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
    connection.exec_driver_sql(query("wait_for_the_first_upgrade"))
    version_table = connection.exec_driver_sql("SELECT to_regclass('trinity.schema_version')")
    if version_table.scalar_one() is not None:
        connection.exec_driver_sql("LOCK TABLE trinity.schema_version IN SHARE ROW EXCLUSIVE MODE")


def hold_roles_off(connection: "Connection") -> None:
    """Begin an upgrade: until the transaction ends, no worker starts and running workers notice it.

    No role can take this lock; an advisory lock could be taken by any login, which would stop all roles. If
    this process's machine is lost, the server ends the transaction and the roles continue. Likewise if
    another session keeps a table locked: each statement of the transaction waits for at most `LOCK_SECONDS`.

    Raises:
        sqlalchemy.exc.DBAPIError: caused by psycopg.errors.LockNotAvailable: another session has read the
            version and is still in that transaction; `holder` names it.
    """
    connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{SILENT_SECONDS}s'")
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
    connection.exec_driver_sql("LOCK TABLE trinity.schema_version IN ACCESS EXCLUSIVE MODE")


def holder(url: str) -> str | None:
    """Describe the session that an upgrade most likely waited for, and how to end it; None if it has ended.

    Raises:
        DatabaseUnavailable: if no database answers.
    """
    with closing(connect(url, autocommit=True)) as looking:
        row = looking.execute(query("upgrade_holder")).fetchone()
    if row is None:
        return None
    return (
        f"session {row['pid']} of login '{row['login']}' ({row['application'] or 'no name'}), in a "
        f"transaction since {row['since']:%Y-%m-%d %H:%M:%S %Z}; SELECT pg_terminate_backend({row['pid']}) "
        "ends it"
    )


def make_room(
    connection: "Connection", url: str, lease_seconds: float, tell: Callable[[Sequence[str]], None]
) -> None:
    """Wait until no role is running.

    Args:
        connection: a transaction that keeps new roles from starting, with `hold_roles_off`.
        tell: receives a description of each remaining worker, whenever they change.
    """
    reported: list[str] = []
    with closing(connect(url, autocommit=True)) as looking:
        while descriptions := at_work(looking, lease_seconds):
            if descriptions != reported:
                tell(descriptions)
                reported = descriptions
            time.sleep(LOOK_SECONDS)
            connection.exec_driver_sql("SELECT 1")  # keeps the transaction alive
        looking.execute(query("end_sessions_of_silent_workers"))
    connection.exec_driver_sql(query("stop_silent_workers"))  # here, since it may wait for a lock


def at_work(connection: Transaction, lease_seconds: float) -> list[str]:
    """Describe each live worker."""
    rows = connection.execute(query("workers_at_work"), {"lease_seconds": lease_seconds}).fetchall()
    return [f"{row['role']} of run '{row['run']}' (process {row['pid']} on {row['host']})" for row in rows]


def _former_version(tx: Transaction) -> str | None:
    """Return the version of a store that was made before 0.1.0, with `FORMER`; None if there is no store."""
    try:
        row = tx.execute("SELECT version_num AS version FROM trinity.alembic_version").fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    return f"{row['version']}{FORMER}" if row else None


def _version(tx: Transaction) -> str | None:
    """Return the schema version, and block upgrades until the transaction ends.

    Raises:
        StoreUpgraded: if one is in progress.
    """
    try:
        tx.execute("LOCK TABLE trinity.schema_version IN ACCESS SHARE MODE NOWAIT")
    except psycopg.errors.LockNotAvailable:
        raise StoreUpgraded(
            "The store is being upgraded; try again when trinity-db db upgrade has ended."
        ) from None
    row = tx.execute(query("read_schema_version")).fetchone()
    return row["version"] if row else None
