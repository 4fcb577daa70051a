"""Whether a store's schema is the one of this code, and upgrades that roles make room for.

An upgrade holds a lock of the table that has the version, until the new schema is committed. A worker begins
only if no upgrade is under way, and each that works meets the lock with its next heartbeat: then it finishes
what it has in hand and ends. The upgrade changes nothing before the last of them has ended. So no worker with
the old code meets the new schema, and none with the new code the old one.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.resources import files
from typing import TYPE_CHECKING

import psycopg

from trinity_db import schema
from trinity_db.database import Transaction, connect, first_line, in_our_words
from trinity_db.errors import StoreUpgraded, TrinityError
from trinity_db.schema.queries import query

if TYPE_CHECKING:
    from sqlalchemy import Connection

LOOK_SECONDS = 0.5  # between two looks at the workers that an upgrade waits for
LOCK_SECONDS = 30  # for other sessions to give a table free; the page's statements take less
SILENT_SECONDS = 30  # after which an upgrade that says nothing is lost


def schema_version(url: str) -> str | None:
    """The version of the schema that is there; None where there is none.

    Raises:
        DatabaseUnavailable: no server answers.
        StoreUpgraded: an upgrade is under way.
        TrinityError: the login may not read it; its cause is psycopg.errors.InsufficientPrivilege.
    """
    with connect(url) as connection, in_our_words(connection):
        try:
            return _version(connection)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return None
        except psycopg.errors.InsufficientPrivilege as error:
            raise TrinityError(
                f"Login '{connection.info.user}' may not use the store ({first_line(error)}): let its "
                "owner make it a member of one of the roles of trinity-db db roles, or use another login."
            ) from error


def known_versions() -> set[str]:
    """Every version of the schema that this code has a migration for."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(files("trinity_db.schema") / "migrations"))
    return {script.revision for script in scripts.walk_revisions()}


def mismatch(found: str | None) -> str:
    """What a schema that is not this code's means for the user, and the command that mends it."""
    if found is None:
        return "The database has no trinity-db schema yet; run: trinity-db db init"
    if found in known_versions():
        return f"The database's schema is {found}, trinity-db needs {schema.HEAD}; run: trinity-db db upgrade"
    return (
        f"The database's schema is {found}, newer than this trinity-db knows ({schema.HEAD}); "
        "run: pip install --upgrade trinity-db"
    )


def check(tx: Transaction) -> None:
    """Make sure that the schema is the one of this code until the transaction ends.

    Raises:
        StoreUpgraded: the store is being upgraded, or was.
    """
    if (found := _version(tx)) != schema.HEAD:
        raise StoreUpgraded(mismatch(found))


def take_turn(connection: "Connection") -> None:
    """Let sessions that change the schema take turns, until the transaction ends.

    The lock is one that only the owner of the tables may take. A reader's statements do not wait for it. Each
    statement of the transaction waits for `LOCK_SECONDS` at most.

    Raises:
        sqlalchemy.exc.DBAPIError: from psycopg.errors.LockNotAvailable; `holder` names the other session.
    """
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
    connection.exec_driver_sql(query("wait_for_the_first_upgrade"))
    found = connection.exec_driver_sql("SELECT to_regclass('trinity.alembic_version')")
    if found.scalar_one() is not None:
        connection.exec_driver_sql("LOCK TABLE trinity.alembic_version IN SHARE ROW EXCLUSIVE MODE")


def hold_roles_off(connection: "Connection") -> None:
    """Begin an upgrade: until the transaction ends no worker begins, and those that work see it.

    The lock is one that no role may take: any login may take an advisory lock, and would stop all roles. The
    server ends the transaction if the machine of this process is lost, and the roles go on. So they do if a
    session keeps one of the tables to itself: each statement of the transaction waits for `LOCK_SECONDS`.

    Raises:
        sqlalchemy.exc.DBAPIError: from psycopg.errors.LockNotAvailable: another session has read the version,
            and is still in that transaction; `holder` names it.
    """
    connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{SILENT_SECONDS}s'")
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
    connection.exec_driver_sql("LOCK TABLE trinity.alembic_version IN ACCESS EXCLUSIVE MODE")


def holder(url: str) -> str | None:
    """The session that an upgrade most likely waited for, and how to end it; None if it has ended.

    Raises:
        DatabaseUnavailable: no database answers.
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
    """Wait until no role works.

    Args:
        connection: holds new ones off meanwhile, by `hold_roles_off`.
        tell: gets the workers that are waited for, in words, each time that they change.
    """
    told: list[str] = []
    with closing(connect(url, autocommit=True)) as looking:
        while found := at_work(looking, lease_seconds):
            if found != told:
                tell(found)
                told = found
            time.sleep(LOOK_SECONDS)
            connection.exec_driver_sql("SELECT 1")  # it is not lost, and the server sees that we are not
        looking.execute(query("end_sessions_of_silent_workers"))
    connection.exec_driver_sql(query("stop_silent_workers"))  # here, as a lock may be waited for


def at_work(connection: Transaction, lease_seconds: float) -> list[str]:
    """Each worker that is alive, in words."""
    rows = connection.execute(query("workers_at_work"), {"lease_seconds": lease_seconds}).fetchall()
    return [f"{row['role']} of run '{row['run']}' (process {row['pid']} on {row['host']})" for row in rows]


def _version(tx: Transaction) -> str | None:
    """The version of the schema. No upgrade begins before the transaction ends.

    Raises:
        StoreUpgraded: one is under way.
    """
    try:
        tx.execute("LOCK TABLE trinity.alembic_version IN ACCESS SHARE MODE NOWAIT")
    except psycopg.errors.LockNotAvailable:
        raise StoreUpgraded(
            "The store is being upgraded; try again when trinity-db db upgrade has ended."
        ) from None
    row = tx.execute(query("read_schema_version")).fetchone()
    return row["version"] if row else None
