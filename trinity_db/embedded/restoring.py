"""Brings a server back from a continuous backup, as it was at a time, into a home that has none.

All of it happens in a folder of its own within the home: a base backup is copied there and checked, a server
replays the log on it until the time, ends its recovery and is stopped. Then the data get their place. A
command that is killed on the way, or fails, leaves the home without data, and can be given again.
"""

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg
from psycopg.pq import Ping

from trinity_db import durable
from trinity_db.embedded import continuous, manifest, presence
from trinity_db.embedded.accounts import hand_over, let_through, server_account
from trinity_db.embedded.binaries import reason
from trinity_db.embedded.cluster import Cluster
from trinity_db.embedded.continuous import BaseBackup, Folder
from trinity_db.embedded.manifest import Manifest
from trinity_db.errors import DatabaseUnavailable, TrinityError

POLL_SECONDS = 0.1  # while the server replays its log, which takes a minute for some gigabytes
LAST_TRANSACTION = re.compile(r"last completed transaction was at log time (\S+ \S+)")
BEFORE_TARGET = "recovery ended before configured recovery target was reached"
# The server was started with a lower limit than its original had later on: the base backup has the limits.
TOO_LOW = re.compile(r"(\w+) = \d+ is a lower setting than on the primary server, where its value was (\d+)")


@dataclass(frozen=True)
class Restored:
    """A server that has what the store had at the time. It runs aside, and takes writes."""

    cluster: Cluster
    last_transaction: datetime | None
    """When the newest transaction was committed that came back from the log; None: the log had none."""


@contextmanager
def restored(cluster: Cluster, folder: Folder, at: datetime | None) -> Iterator[Restored]:
    """Restore the store of a folder as it was at a time, or None: with all that there is.

    What the caller does with the server is a part of it: the home gets the data when it is through.

    Raises:
        DatabaseUnavailable: the server of the home runs, and its data were moved away.
        TrinityError: the home has data, the time is before the first base backup or after the end of the
            log, or the backup is damaged.
    """
    if folder.server() is None or not folder.log.is_dir():
        raise TrinityError(f"{folder.path} is no continuous backup: name a folder of db backup --continuous.")
    base_backup = _choose(folder, at)
    aside = Cluster(cluster.home / "postgres.restored", cluster.binaries, _recovery(folder, at))
    with presence.locked(cluster):
        if cluster.data.exists():
            raise TrinityError(
                f"{cluster.home} has a store: move {cluster.data} away, or name another folder in "
                "TRINITY_DB_HOME."
            )
        cluster.make_way()
        aside.stop()  # of a command that was killed
        shutil.rmtree(aside.home, ignore_errors=True)
        try:
            last = _recover(aside, folder, base_backup, at)
            yield Restored(aside, last)
            aside.stop()
        except BaseException:
            aside.stop()
            for data in (aside.data, _copy_of(aside)):  # what its server said stays, to be looked at
                shutil.rmtree(data, ignore_errors=True)
            raise
        # The backup ends at the time from which the store is another one.
        cluster.continuous_file.unlink(missing_ok=True)
        aside.data.rename(cluster.data)
        durable.flush(cluster.home)
        shutil.rmtree(aside.home)


def _recover(aside: Cluster, folder: Folder, base_backup: BaseBackup, at: datetime | None) -> datetime | None:
    """Copy a base backup and replay the log on it; when the last transaction of that was committed."""
    needed = _copy(base_backup, aside)
    if account := server_account(aside.data):
        folder.give_to(account)
    segments = _check_log(aside, folder, needed) if at is None else []
    try:
        last = _replay(aside)
    except DatabaseUnavailable as error:
        if at and BEFORE_TARGET in _said(aside):
            _check_log(aside, folder, needed)
            raise TrinityError(_too_late(aside, folder, at)) from error
        raise
    if not set(segments) <= set(folder.segments(needed.first_segment)):
        raise TrinityError(
            f"Another command has removed files of the log in {folder.log} meanwhile: give this one again."
        )
    return last


def _replay(aside: Cluster) -> datetime | None:
    """Start the server until its recovery has ended, again with higher limits where the log needs them."""
    limits: dict[str, str] = {}
    while True:
        settings = (*aside.settings, *(f"{name}={value}" for name, value in limits.items()))
        server = replace(aside, settings=settings)
        try:
            server.start()
            return _await_end(server)
        except DatabaseUnavailable:
            too_low = dict(TOO_LOW.findall(_said(aside)))
            if too_low == limits:
                raise
            limits = too_low
            server.stop()


def _choose(folder: Folder, at: datetime | None) -> BaseBackup:
    """The newest base backup that was whole at a time."""
    base_backups = folder.base_backups()
    if not base_backups:
        raise TrinityError(f"{folder.path} has no base backup yet.")
    if at is None:
        return base_backups[-1]
    if at > datetime.now(UTC):
        raise TrinityError(f"{at} is yet to come.")
    fitting = [base_backup for base_backup in base_backups if base_backup.ended_at <= at]
    if not fitting:
        raise TrinityError(
            f"{folder.path} goes back to {base_backups[0].ended_at}, when its first base backup was whole, "
            f"and {at} is before it."
        )
    return fitting[-1]


def _recovery(folder: Folder, at: datetime | None) -> tuple[str, ...]:
    """How a server that finds `recovery.signal` recovers, and that it takes writes afterwards."""
    target = (f"recovery_target_time={at.astimezone(UTC).isoformat()}",) if at else ()
    return (continuous.restore_command(folder.path), "recovery_target_action=promote", *target)


def _copy(base_backup: BaseBackup, aside: Cluster) -> Manifest:
    """Copy a base backup, check the copy, and say which part of the log it needs."""
    copy = _copy_of(aside)
    try:
        shutil.copytree(base_backup.path, copy, symlinks=True)
    except shutil.Error as error:
        raise TrinityError(f"{base_backup.path} cannot be copied: {error.args[0][0][2]}") from error
    (copy / "recovery.signal").touch()
    if account := server_account(aside.data):
        hand_over(copy, account)
        let_through((copy, aside.binaries.folder / "initdb"), account)
    needed = manifest.read(copy)
    if fault := manifest.check(copy, needed, aside.binaries):
        raise TrinityError(
            f"{base_backup.path} is damaged: {fault}. Where there is an earlier base backup, restore from it "
            "by moving this one away."
        )
    copy.rename(aside.data)
    aside.restored_file.unlink(missing_ok=True)  # of a server that had been restored before
    aside.restored_file.write_text(datetime.now(UTC).isoformat())
    if account := server_account(aside.data):
        hand_over(aside.restored_file, account)
    return needed


def _copy_of(aside: Cluster) -> Path:
    """Where a base backup is until it is whole."""
    return aside.home / "copy"


def _check_log(aside: Cluster, folder: Folder, needed: Manifest) -> list[str]:
    """Read the whole log after a base backup, whose files are returned: a server in recovery takes a gap for
    its end.

    Raises:
        TrinityError: a file is missing or damaged.
    """
    segments = folder.segments(needed.first_segment)
    if needed.last_segment not in segments:
        raise TrinityError(
            f"The log in {folder.log} has a gap: {needed.last_segment} is missing; --at restores to a time "
            "before it."
        )
    read = aside.binaries.run(
        *("pg_waldump", "--quiet", "--path", str(folder.log), needed.first_segment, segments[-1]),
        data=aside.data,
    )
    if read.returncode:
        raise TrinityError(
            f"The log in {folder.log} has a gap or damage: {reason(read.stdout)}; --at restores to a time "
            "before it."
        )
    return segments


def _await_end(aside: Cluster) -> datetime | None:
    """Wait until the server has ended its recovery; the time of the last transaction in it.

    Raises:
        DatabaseUnavailable: the server has ended, or waits for ever.
    """
    while True:
        try:
            with closing(psycopg.connect(aside.url("postgres"))) as connection:
                row = connection.execute(
                    "SELECT pg_is_in_recovery(), pg_last_xact_replay_timestamp(), "
                    "CASE WHEN pg_is_in_recovery() THEN pg_get_wal_replay_pause_state() END"
                ).fetchone()
        except psycopg.OperationalError:
            if presence.ping(aside) is Ping.NO_RESPONSE:
                why = f"{reason(_said(aside))} (see {aside.log})"
                raise DatabaseUnavailable(f"The log cannot be replayed: {why}") from None
        else:
            assert row is not None
            last: datetime | None = row[1]
            if not row[0]:
                return last
            if row[2] == "paused":
                raise DatabaseUnavailable(f"The replay of the log has paused (see {aside.log})")
        time.sleep(POLL_SECONDS)


def _too_late(aside: Cluster, folder: Folder, at: datetime) -> str:
    found = LAST_TRANSACTION.search(_said(aside))
    end = f"ends at {found[1]}" if found else "ends with the base backup"
    return (
        f"The log in {folder.path} {end}, before {at}: trinity-db db stop hands over the rest of a server "
        "that runs, and without --at you get all that there is."
    )


def _said(aside: Cluster) -> str:
    return aside.log.read_text(errors="replace") if aside.log.exists() else ""
