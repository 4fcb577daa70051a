"""What `trinity-db db` does with an embedded server, as processes: ports, backups, stopping, new stores."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres import discard, new_home
from tests.support.rows import Scene
from trinity_db.postgres import embedded
from trinity_db.postgres.connection import Database

WAIT_SECONDS = 240.0  # a server that was killed flushes a whole file system first

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def homes() -> Iterator[tuple[Path, Path]]:
    """Two folders for stores; what is started there ends with the test."""
    both = new_home(), new_home()
    yield both
    for home in both:
        discard(embedded.cluster(home))


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """Exit code, stdout and stderr of a command on the embedded server of a home."""

    def call(home: Path, *arguments: str | Path) -> tuple[int, str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRINITY_DB_")}
        done = subprocess.run(
            [sys.executable, "-m", "trinity_db", *arguments],
            env=kept | {"TRINITY_DB_HOME": str(home), "XDG_STATE_HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
        )
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_port_is_heard_with_a_password_also_after_a_crash(
    call: Call, homes: tuple[Path, Path], free_port: int
) -> None:
    home, other = homes
    assert call(home, "db", "start", "--port", str(free_port))[:2] == (
        0,
        f"The embedded server is running ({home}, port {free_port}).\n",
    )
    url = call(home, "db", "url")[1].strip()
    assert url.endswith(f"@127.0.0.1:{free_port}/trinity")
    secret = (home / "postgres.password").read_text()
    assert f":{secret}@" in url
    assert (home / "postgres.password").stat().st_mode & 0o777 == 0o600
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url.replace(secret, "wrong"))
    reader = call(home, "db", "url", "--read")[1].strip()
    with closing(psycopg.connect(reader)) as connection:
        assert connection.execute("SELECT session_user").fetchone() == ("reader",)

    os.kill(int((home / "postgres" / "postmaster.pid").read_text().splitlines()[0]), signal.SIGKILL)
    assert call(home, "status")[0] == 0
    with closing(psycopg.connect(url)) as connection:
        assert connection.execute("SELECT count(*) FROM run").fetchone() == (0,), "found without its schema"

    code, _, line = call(other, "db", "start", "--port", str(free_port))
    assert (code, line) == (
        1,
        f"error: Port {free_port} cannot be used (Address already in use): choose another one with "
        "trinity-db db start --port N, or none with --port 0.\n",
    )
    code, _, line = call(home, "db", "start", "--port", "0")
    assert (code, "trinity-db db stop" in line) == (1, True)
    assert call(home, "db", "stop")[0] == 0
    assert call(home, "db", "start", "--port", "0")[0] == 0
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_a_backup_comes_back_in_an_empty_store_and_nowhere_else(
    call: Call, homes: tuple[Path, Path], tmp_path: Path
) -> None:
    home, other = homes
    assert call(home, "db", "init")[0] == 0
    with closing(Database(embedded.cluster(home).url())) as database:
        scene = Scene.open(database, "first")
        scene.make_ready(1)
        scene.train(step=1, size=1)
    file = tmp_path / "store.dump"
    assert call(home, "db", "backup", file)[0] == 0
    code, _, line = call(home, "db", "backup", file)
    assert (code, line) == (1, f"error: {file} exists already; name another file.\n")
    code, _, line = call(home, "db", "restore", file)
    assert (code, line.startswith("error: The store holds rows")) == (1, True)

    gone = tmp_path / "gone"  # as in a folder that is not mounted
    code, _, line = call(other, "db", "restore", gone)
    assert (code, line) == (1, f"error: {gone}: no such file.\n")
    assert not (other / "postgres").exists(), "a store there would be in the way of the next restore"
    torn = tmp_path / "torn.dump"
    torn.write_bytes(file.read_bytes()[:100])
    code, _, line = call(other, "db", "restore", torn)
    assert (code, line.splitlines()[-1].startswith("error: pg_restore failed")) == (1, True)
    assert call(other, "db", "init")[0] == 0
    code, shown, _ = call(other, "db", "restore", file)
    assert (code, "different store" in shown) == (0, True)
    query = ("sql", "SELECT id, state, reward, prompt FROM experience_view ORDER BY id", "--format", "csv")
    assert call(other, *query)[:2] == call(home, *query)[:2]
    assert call(other, *query)[1].count("\n") == 3


def test_a_backup_of_a_store_with_roles_comes_back_on_a_server_without_them(
    call: Call, homes: tuple[Path, Path], tmp_path: Path
) -> None:
    home, other = homes
    file = tmp_path / "store.dump"
    for command in (("init",), ("roles",), ("backup", file)):
        assert call(home, "db", *command)[0] == 0
    code, _, line = call(other, "db", "restore", file)
    assert (code, line.splitlines()[1:]) == (0, [])
    query = (
        *("sql", "--format", "csv"),
        "SELECT tablename, policyname, roles::text FROM pg_policies UNION"
        " SELECT table_name, privilege_type, grantee FROM information_schema.role_table_grants"
        " WHERE table_schema = 'trinity' AND grantee LIKE 'trinity%'"
        " ORDER BY 1, 2, 3",
    )
    assert call(other, *query)[:2] == call(home, *query)[:2]


def test_stop_names_the_workers_that_are_alive(call: Call, homes: tuple[Path, Path]) -> None:
    home, _ = homes
    assert call(home, "db", "init")[0] == 0
    with closing(Database(embedded.cluster(home).url())) as database:
        Scene.open(database, "first")
    code, _, line = call(home, "db", "stop")
    assert (code, line.count("\n")) == (1, 1)
    assert f"explore of run 'first' (process {os.getpid()} on {socket.gethostname()})" in line
    assert embedded.running(home)
    assert call(home, "db", "stop", "--yes")[0] == 0
    assert not embedded.running(home)


def test_a_new_store_is_announced_with_the_place_of_the_last_one(
    call: Call, homes: tuple[Path, Path]
) -> None:
    home, other = homes
    assert f"There is no store in {home}: creating a new one\n" in call(home, "status")[2]
    assert call(home, "status")[2] == ""
    assert f"creating a new one; the one used last is in {home} (" in call(other, "status")[2]
