"""Takes base backups of a home's server into the folder of its continuous backup, and removes old ones."""

import os
import shutil
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow

from trinity_db import durable
from trinity_db.embedded import manifest
from trinity_db.embedded.accounts import server_account
from trinity_db.embedded.binaries import reason
from trinity_db.embedded.cluster import Cluster
from trinity_db.embedded.continuous import NAMES, Folder
from trinity_db.embedded.place import SUPERUSER
from trinity_db.errors import DatabaseUnavailable, TrinityError

POLL_SECONDS = 0.1  # the server hands over a file of its log in some tenths of a second


def begin(cluster: Cluster, folder: Folder) -> None:
    """Have a server keep its log in a folder, from its next start on.

    Raises:
        DatabaseUnavailable: the server runs, and keeps it elsewhere.
        TrinityError: there is no server yet, or the folder is another one's.
    """
    if not cluster.data.exists():
        raise TrinityError(f"There is no store in {cluster.home} yet: trinity-db db init")
    if cluster.continuous_backup == folder.path and folder.server() is None:
        raise TrinityError(f"{folder.path} is gone: mount it, or end the backup there with --end.")
    if folder.path.is_relative_to(cluster.data):
        raise TrinityError(f"{folder.path} is among the data that it would hold: name another folder.")
    if cluster.continuous_backup != folder.path:
        cluster.require_stopped()
    folder.take_for(cluster, cluster.binaries)
    cluster.keep_log(folder.path)


def take(cluster: Cluster, folder: Folder) -> Path:
    """Take a base backup, and wait until the log that it needs is there. The server is used meanwhile.

    Raises:
        TrinityError: pg_basebackup fails, or the server cannot hand over its log.
    """
    url = cluster.ensure_running()
    try:
        with folder.locked() as lock, closing(psycopg.connect(url, autocommit=True)) as connection:
            failed = _failures(connection)
            aside = _copy(cluster, folder, lock)
            path = folder.path / _now(connection).strftime(NAMES)
            last = manifest.read(aside).last_segment
            # A file of that name may be there, of another history: the server says what it has handed over.
            while _handed_over(connection) < last:
                if _failures(connection) > failed:
                    shutil.rmtree(aside, ignore_errors=True)
                    raise TrinityError(
                        f"The base backup failed: the server cannot hand over its log to {folder.log} (see "
                        f"{cluster.log})."
                    )
                time.sleep(POLL_SECONDS)
            aside.rename(path)
            durable.flush(folder.path)
    except psycopg.OperationalError as error:
        line = str(error).partition("\n")[0]
        raise DatabaseUnavailable(f"The embedded database went away: {line}") from error
    return path


def _copy(cluster: Cluster, folder: Folder, lock: int) -> Path:
    """Copy the server's files aside, as they are on the disk when pg_basebackup has ended.

    pg_basebackup inherits the lock: should this process be killed, the next one keeps off its files.
    """
    aside = folder.path / "base.new"
    shutil.rmtree(aside, ignore_errors=True)  # a killed command left it
    aside.mkdir(mode=0o700)
    if account := server_account(cluster.data):
        os.chown(aside, account.uid, account.gid)
    made = cluster.binaries.run(
        *("pg_basebackup", "--pgdata", str(aside), "--checkpoint=fast", "--wal-method=stream"),
        f"--manifest-checksums={manifest.CHECKSUMS}",
        *("--host", str(cluster.socket), "--port", str(cluster.port), "--username", SUPERUSER),
        data=cluster.data,
        inherited=[lock],
    )
    if made.returncode:
        shutil.rmtree(aside, ignore_errors=True)
        raise TrinityError(f"The base backup failed: {reason(made.stdout)}")
    return aside


def keep_newest(cluster: Cluster, folder: Folder, count: int) -> int:
    """Remove all base backups but the newest ones, and the log before them; how many are removed.

    Raises:
        TrinityError: the oldest one that stays is damaged, or pg_archivecleanup fails.
    """
    with folder.locked():
        shutil.rmtree(folder.path / "base.old", ignore_errors=True)  # a killed command left it
        base_backups = folder.base_backups()
        first = manifest.read(base_backups[-count:][0].path).first_segment
        for old in base_backups[:-count]:
            aside = old.path.rename(folder.path / "base.old")
            shutil.rmtree(aside)
        done = cluster.binaries.run(
            *("pg_archivecleanup", "--clean-backup-history", str(folder.log), first), data=cluster.data
        )
        if done.returncode:
            raise TrinityError(f"Old files of the log cannot be removed: {reason(done.stdout)}")
    return len(base_backups[:-count])


def _now(connection: psycopg.Connection[TupleRow]) -> datetime:
    """The server's time: that of transactions, which a restore compares with it."""
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment.astimezone(UTC)


def _handed_over(connection: psycopg.Connection[TupleRow]) -> str:
    """The last file of its log that the server has handed over; it does so in order."""
    row = connection.execute("SELECT coalesce(last_archived_wal, '') FROM pg_stat_archiver").fetchone()
    assert row is not None
    return str(row[0])


def _failures(connection: psycopg.Connection[TupleRow]) -> int:
    """How often the server could not hand over a file of its log."""
    row = connection.execute("SELECT failed_count FROM pg_stat_archiver").fetchone()
    assert row is not None
    return int(row[0])
