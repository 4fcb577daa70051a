"""Continuous backups of embedded servers, and stores that are restored from them as they were at a time."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import psycopg
import pytest

from tests.command_line import CommandLine
from tests.postgres import discard, execute, new_home, start
from tests.waiting import WAIT_SECONDS, wait_until
from trinity_db import backup, embedded, opening
from trinity_db.database import Database
from trinity_db.embedded import continuous
from trinity_db.embedded.cluster import Cluster
from trinity_db.store import instances


def value(cluster: Cluster, statement: str) -> Any:
    with closing(psycopg.connect(cluster.url(), autocommit=True)) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def num_rows(cluster: Cluster) -> int:
    return int(value(cluster, "SELECT count(*) FROM public.kept"))


def add_row(cluster: Cluster) -> datetime:
    """Commit a row; a time after its commit, and before that of later ones."""
    execute(cluster.url(), "INSERT INTO public.kept DEFAULT VALUES")
    moment: datetime = value(cluster, "SELECT clock_timestamp()")
    return moment


def identify(cluster: Cluster) -> instances.Instance:
    with closing(Database(cluster.url())) as database, database.transaction() as tx:
        return instances.identify(tx)


@dataclass(frozen=True)
class Kept:
    """A stopped server, its continuous backup, and the times after its second, third and fourth row."""

    cluster: Cluster
    folder: Path
    times: list[datetime]


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    """The first row is in the first base backup. The second base backup has the third row too."""
    cluster, folder = embedded.cluster(new_home()), new_home() / "100% kept, 'so'"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRINITY_DB_URL", raising=False)
        patch.setenv("TRINITY_DB_HOME", str(cluster.home))
        start(cluster)  # without fsync, which restored servers take over
        opening.upgrade(cluster.url())
        identify(cluster)
        execute(cluster.url(), "CREATE TABLE public.kept (id serial)")
        add_row(cluster)
        cluster.stop()
        backup.begin_continuous(folder)
        backup.take_base_backup(folder, None)
        times = [add_row(cluster), add_row(cluster)]
        backup.take_base_backup(folder, None)
        times.append(add_row(cluster))
        cluster.stop()
    yield Kept(cluster, folder, times)
    discard(cluster)
    shutil.rmtree(folder.parent)


@pytest.fixture
def folder(kept: Kept) -> Iterator[Path]:
    """A copy of the backup, to be damaged. For root it is root's, as when it comes from another machine."""
    copy = new_home() / "backup"
    shutil.copytree(kept.folder, copy)
    yield copy
    shutil.rmtree(copy.parent)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The server of the home that commands use, which is empty."""
    cluster = embedded.cluster(new_home())
    monkeypatch.delenv("TRINITY_DB_URL", raising=False)
    monkeypatch.setenv("TRINITY_DB_HOME", str(cluster.home))
    yield cluster
    discard(cluster)


@pytest.mark.parametrize(("number", "found"), [(0, 2), (1, 3), (None, 4)])
def test_a_store_comes_back_as_it_was_at_a_time(
    kept: Kept, cluster: Cluster, command_line: CommandLine, number: int | None, found: int
) -> None:
    at = () if number is None else ("--at", kept.times[number].isoformat())
    said = command_line("db", "restore", str(kept.folder), *at)
    assert "is restored; its last transaction is of 20" in said.output
    assert "keeps no log" in said.output
    assert num_rows(cluster) == found
    assert not (cluster.home / "postgres.restored").exists()
    assert value(cluster, "SHOW archive_mode") == "off"
    assert len(list((kept.folder / "log").glob("00000002*"))) == 0, "written by the restored server"


def test_a_time_without_an_offset_is_local(
    kept: Kept, cluster: Cluster, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    local = (kept.times[0].astimezone(UTC) + timedelta(hours=5, minutes=45)).replace(tzinfo=None)
    try:
        command_line("db", "restore", str(kept.folder), "--at", str(local))
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert num_rows(cluster) == 2


def test_a_restored_store_is_a_copy_elsewhere_and_the_original_in_its_home(
    kept: Kept, cluster: Cluster, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command_line("db", "restore", str(kept.folder)).code == 0
    assert "The store goes on here" in command_line("db", "moved").output
    original = identify(cluster)
    assert original.copy_of is None
    cluster.stop()
    shutil.rmtree(cluster.data)
    assert command_line("db", "restore", str(kept.folder)).code == 0
    assert identify(cluster).copy_of == original.id

    home = kept.cluster.home
    monkeypatch.setenv("TRINITY_DB_HOME", str(home))
    kept.cluster.data.rename(home / "before")
    try:
        assert command_line("db", "restore", str(kept.folder)).code == 0
        assert identify(kept.cluster) == original
        kept.cluster.stop()
        said = command_line("db", "backup", "--continuous", str(kept.folder)).complaint
        assert "this server" in said
        assert "from before it was restored" in said
    finally:
        shutil.rmtree(kept.cluster.data)
        (home / "before").rename(kept.cluster.data)


def test_each_restore_begins_a_history_with_a_folder_of_its_own(
    kept: Kept, cluster: Cluster, command_line: CommandLine
) -> None:
    later = cluster.home / "later"

    def restore(folder: Path, *options: str) -> str:
        """What a backup into the later folder says afterwards."""
        shutil.rmtree(cluster.data, ignore_errors=True)
        assert command_line("db", "restore", str(folder), *options).code == 0
        cluster.stop()
        done = command_line("db", "backup", "--continuous", str(later))
        return done.output if done.code == 0 else done.complaint

    assert "holds a base backup" in restore(kept.folder)
    add_row(cluster)
    cluster.stop()
    # Both have the same timeline as the server of the folder had.
    before = "from before it was restored"
    assert before in restore(kept.folder, "--at", kept.times[0].isoformat())
    assert before in restore(kept.folder)
    assert before in restore(later)
    cluster.ensure_running()
    assert num_rows(cluster) == 5


def test_a_server_that_was_set_back_by_a_copy_takes_no_base_backup_beside_the_log_of_its_later_self(
    cluster: Cluster, command_line: CommandLine
) -> None:
    folder, copy = cluster.home / "backup", cluster.home / "copy"
    opening.upgrade(cluster.ensure_running())
    execute(cluster.url(), "CREATE TABLE public.kept (id serial)")
    cluster.stop()
    assert command_line("db", "backup", "--continuous", str(folder)).code == 0
    cluster.stop()
    shutil.copytree(cluster.data, copy)
    for _ in range(3):
        cluster.ensure_running()
        add_row(cluster)
        cluster.stop()
    before = sorted(folder.iterdir())
    shutil.rmtree(cluster.data)
    copy.rename(cluster.data)
    assert "cannot hand over its log" in command_line("db", "backup", str(folder)).complaint
    assert sorted(folder.iterdir()) == before


def test_a_limit_that_was_raised_after_the_base_backup_does_not_stop_a_restore(
    cluster: Cluster, command_line: CommandLine
) -> None:
    folder = cluster.home / "backup"
    opening.upgrade(cluster.ensure_running())
    execute(cluster.url(), "CREATE TABLE public.kept (id serial)")
    cluster.stop()
    assert command_line("db", "backup", "--continuous", str(folder)).code == 0
    for limit in ("max_connections = 300", "max_wal_senders = 20"):
        execute(cluster.url(), f"ALTER SYSTEM SET {limit}")
    cluster.stop()
    cluster.ensure_running()
    moment = add_row(cluster)
    add_row(cluster)
    cluster.stop()
    shutil.rmtree(cluster.data)
    assert command_line("db", "restore", str(folder), "--at", moment.isoformat()).code == 0
    assert num_rows(cluster) == 1
    assert value(cluster, "SHOW max_connections") == "200", "as the base backup has it"


def test_times_and_folders_that_cannot_be_are_refused_in_one_line(
    kept: Kept, cluster: Cluster, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(folder: Path, *options: str) -> str:
        said = command_line("db", "restore", str(folder), *options).complaint
        assert not cluster.data.exists()
        return said

    assert "when its first base backup was whole" in refused(kept.folder, "--at", "2026-01-01 10:00")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    # No later transaction says that the log goes on beyond this time.
    after_the_last = refused(kept.folder, "--at", kept.times[2].isoformat())
    assert "without --at you get all that there is" in after_the_last
    assert "is yet to come" in refused(kept.folder, "--at", tomorrow.isoformat())
    assert "is no time" in refused(kept.folder, "--at", "yesterday")
    assert "is no continuous backup" in refused(tmp_path)
    assert "there is no such file or folder" in refused(tmp_path / "unmounted")
    cluster.data.mkdir()
    assert "has a store" in command_line("db", "restore", str(kept.folder)).complaint
    cluster.data.rmdir()
    monkeypatch.setenv("TRINITY_DB_URL", "postgresql://db.example/trinity")
    for command in (("restore",), ("backup", "--continuous")):
        assert "TRINITY_DB_URL names another" in command_line("db", *command, str(kept.folder)).complaint


def test_nothing_takes_the_place_of_data_that_were_moved_away_from_a_server_that_runs(
    kept: Kept, cluster: Cluster, command_line: CommandLine
) -> None:
    cluster.ensure_running()
    away = cluster.data.rename(cluster.home / "away")
    for command in (("restore", str(kept.folder)), ("init",)):
        assert "move them back, and stop it first" in command_line("db", *command).complaint
        assert not cluster.data.exists()
    away.rename(cluster.data)
    assert command_line("db", "stop").code == 0


def damage(path: Path) -> None:
    """Change a byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_backup_is_refused_and_leaves_the_home_without_data(
    kept: Kept, folder: Path, cluster: Cluster, command_line: CommandLine
) -> None:
    _, newest = sorted(folder.glob("base-*"))
    segments = sorted(path for path in (folder / "log").iterdir() if len(path.name) == 24)

    def refused(*options: str) -> str:
        said = command_line("db", "restore", str(folder), *options).complaint
        assert not cluster.data.exists()
        return said

    damage(newest / "global" / "pg_control")
    assert "global/pg_control has another content" in refused()
    (newest / "global" / "pg_control").unlink()
    assert "global/pg_control is missing" in refused()
    damage(newest / "backup_manifest")
    assert "backup_manifest cannot be read" in refused()
    shutil.rmtree(newest)

    assert command_line("db", "restore", str(folder)).code == 0, "from the first base backup"
    assert num_rows(cluster) == 4
    discard(cluster)
    segments[-1].rename(folder / "kept")
    assert "without --at you get all that there is" in refused("--at", kept.times[1].isoformat())
    (folder / "kept").rename(segments[-1])
    segments[-2].unlink()
    assert "has a gap or damage" in refused()
    assert "has a gap or damage" in refused("--at", kept.times[1].isoformat())
    assert command_line("db", "restore", str(folder), "--at", kept.times[0].isoformat()).code == 0
    discard(cluster)
    for segment in segments:
        segment.unlink(missing_ok=True)
    assert "has a gap" in refused(), "a log without a file"


def test_a_log_that_is_removed_while_it_is_replayed_is_no_end_of_it(
    kept: Kept, folder: Path, cluster: Cluster, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_and_start(server: Cluster) -> None:
        """Another command takes a base backup and keeps only this one, after the log was looked through."""
        for segment in (folder / "log").iterdir():
            segment.unlink()
        start_server(server)

    start_server = Cluster.start
    monkeypatch.setattr(Cluster, "start", remove_and_start)
    assert "give this one again" in command_line("db", "restore", str(folder)).complaint
    assert not cluster.data.exists()


def test_a_killed_restore_is_given_again(kept: Kept, cluster: Cluster, command_line: CommandLine) -> None:
    pid_file = cluster.home / "postgres.restored" / "postgres" / "postmaster.pid"
    for kills_server in (False, True):
        process = subprocess.Popen([sys.executable, "-m", "trinity_db", "db", "restore", kept.folder])
        wait_until(lambda: pid_file.exists() and pid_file.read_text(), "a server in recovery")
        process.kill()
        process.wait()
        if kills_server:
            os.kill(int(pid_file.read_text().splitlines()[0]), signal.SIGKILL)
        assert not cluster.data.exists()
    assert command_line("db", "restore", str(kept.folder)).code == 0
    assert num_rows(cluster) == 4
    assert not pid_file.exists()


def test_the_server_goes_on_while_it_cannot_hand_over_its_log_and_the_doctor_says_so(
    cluster: Cluster, command_line: CommandLine
) -> None:
    folder, away = cluster.home / "backup", cluster.home / "away"
    assert command_line("db", "backup", str(folder), "--continuous").complaint.startswith("There is no store")
    opening.upgrade(cluster.ensure_running())
    execute(cluster.url(), "CREATE TABLE public.kept (id serial)")
    assert "trinity-db db stop" in command_line("db", "backup", str(folder), "--continuous").complaint
    assert not folder.exists()
    cluster.stop()
    nowhere = cluster.home / "not" / "there"
    for wrong in (nowhere, cluster.log):
        assert "cannot be made" in command_line("db", "backup", str(wrong), "--continuous").complaint
    assert "holds other files" in command_line("db", "backup", str(cluster.home), "--continuous").complaint
    within = cluster.data / "backup"
    assert "name another folder" in command_line("db", "backup", str(within), "--continuous").complaint
    assert cluster.continuous_backup is None
    assert "goes with" in command_line("db", "backup", str(nowhere), "--keep", "1").complaint
    assert command_line("db", "backup", str(folder), "--continuous").code == 0
    log = folder / "log"

    def finding() -> dict[str, Any]:
        found = json.loads(command_line("doctor", "--json").stdout)
        [finding] = [finding for finding in found if finding["what"] == "server log"]
        return dict(finding)

    def hand_over() -> str:
        add_row(cluster)
        return str(value(cluster, "SELECT pg_walfile_name(pg_switch_wal())"))

    assert finding()["level"] == "ok"
    log.rename(away)
    hand_over()
    wait_until(lambda: finding()["level"] == "fail", "the doctor to find that the folder is gone")
    assert "cannot be handed over" in finding()["found"]
    away.rename(log)
    hand_over()  # the server would look again within a minute
    wait_until(lambda: finding()["level"] == "ok", "the server to hand over its log again")

    other = log / value(cluster, "SELECT pg_walfile_name(pg_current_wal_lsn())")
    other.write_text("not of this server")
    other.chmod(0o644)
    hand_over()
    wait_until(lambda: finding()["level"] == "fail", "the doctor to find a file of the same name")
    assert other.read_text() == "not of this server"
    other.unlink()
    hand_over()
    wait_until(lambda: finding()["level"] == "ok", "the server to hand over its log again")
    folder.rename(away)
    assert "is gone: mount it" in command_line("db", "backup", str(folder), "--continuous").complaint
    assert not folder.exists()


def test_a_killed_base_backup_is_none_and_is_not_mixed_with_another_one(
    cluster: Cluster, command_line: CommandLine
) -> None:
    folder = cluster.home / "backup"
    opening.upgrade(cluster.ensure_running())
    cluster.stop()
    backup.begin_continuous(folder)
    cluster.ensure_running()
    found = json.loads(command_line("doctor", "--json").stdout)
    [finding] = [finding for finding in found if finding["what"] == "installation log"]
    assert "has no base backup" in finding["found"]
    # A base backup waits for its first checkpoint, and that for a server process that stands still.
    checkpointer = value(cluster, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
    os.kill(checkpointer, signal.SIGSTOP)
    try:
        command = [sys.executable, "-m", "trinity_db", "db", "backup", str(folder)]
        process = subprocess.Popen(command)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'"
        wait_until(lambda: value(cluster, waiting) == 1, "a base backup that has begun")
        process.kill()
        process.wait()
        second = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=WAIT_SECONDS)
    finally:
        os.kill(checkpointer, signal.SIGCONT)
    assert "Another command takes a base backup" in second.stderr
    wait_until(lambda: command_line("db", "backup", str(folder)).code == 0, "the end of the killed one")
    found = json.loads(command_line("doctor", "--json").stdout)
    assert [finding for finding in found if finding["what"] == "installation log"] == []


def test_the_folder_may_be_one_of_nfs(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock_of_nfs(file: IO[str], operation: int) -> None:
        """It refuses an exclusive lock on a file that is not open for writing (man 2 flock)."""
        if not file.writable():
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(continuous, "flock", flock_of_nfs)
    with continuous.Folder(kept.folder).locked():
        pass


def test_old_base_backups_go_with_the_log_before_them(
    kept: Kept, folder: Path, cluster: Cluster, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_HOME", str(kept.cluster.home))
    before = set((folder / "log").iterdir())
    first, _ = sorted(folder.glob("base-*"))
    kept.cluster.keep_log(folder)
    said = command_line("db", "backup", str(folder), "--keep", "2").output
    assert "Older ones that are removed: 1" in said
    kept.cluster.stop()
    assert command_line("db", "backup", str(folder), "--end").code == 0
    assert "keeps no log in" in command_line("db", "backup", str(folder), "--end").complaint
    assert not first.exists()
    assert len(list(folder.glob("base*"))) == 2
    assert sorted(before)[0] not in (folder / "log").iterdir()
    assert sorted(before)[-1] in (folder / "log").iterdir()
    monkeypatch.setenv("TRINITY_DB_HOME", str(cluster.home))
    assert (
        "goes back to"
        in command_line("db", "restore", str(folder), "--at", kept.times[0].isoformat()).complaint
    )
    assert command_line("db", "restore", str(folder)).code == 0
    assert num_rows(cluster) == 4


def test_a_copied_home_and_another_server_leave_the_folder_alone(
    kept: Kept, cluster: Cluster, command_line: CommandLine
) -> None:
    shutil.rmtree(cluster.home)
    kept.cluster.keep_log(kept.folder)
    shutil.copytree(kept.cluster.home, cluster.home)
    before = sorted((kept.folder / "log").iterdir())
    cluster.ensure_running()
    add_row(cluster)
    assert value(cluster, "SHOW archive_mode") == "off"
    found = json.loads(command_line("doctor", "--json").stdout)
    assert [finding["level"] for finding in found if finding["what"] == "installation log"] == ["warn"]
    cluster.stop()
    assert "name another folder" in command_line("db", "backup", "--continuous", str(kept.folder)).complaint
    discard(cluster)
    opening.upgrade(cluster.ensure_running())
    cluster.stop()
    said = command_line("db", "backup", "--continuous", str(kept.folder)).complaint
    assert f"is the continuous backup of another server in {kept.cluster.home}" in said
    assert sorted((kept.folder / "log").iterdir()) == before
