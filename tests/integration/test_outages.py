"""Server, network or disk fail, or a process freezes: roles go on, or end in one line."""

import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.postgres import execute, new_database, new_home
from tests.support.proxy import Proxy
from tests.support.rows import Scene, import_records, trajectory
from tests.support.waiting import wait_until
from trinity_db import schema
from trinity_db.errors import DatabaseUnavailable, LeaseLost, TrinityError
from trinity_db.postgres import upgrades
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.postgres.embedded.accounts import server_account
from trinity_db.run import joining
from trinity_db.run.configuration import RunConfig
from trinity_db.schema.states import WorkerRole
from trinity_db.store import runs, workers
from trinity_db.store.metrics import record_metrics
from trinity_db.worker import service
from trinity_db.worker.service import Service

LEASE_SECONDS = 1.0
RAISE = "DO $$ BEGIN RAISE EXCEPTION 'as in an accident' USING ERRCODE = '{}'; END $$"


class Actor(Service):
    """A role that does one thing after another, each within a transaction that may fail, and then stops."""

    role = WorkerRole.PROCESS

    def __init__(self, database: Database, run: runs.Run, *acts: Callable[[], object]) -> None:
        super().__init__(database, run)
        self.acts = list(acts)

    def work(self) -> bool:
        if not self.acts:
            self.stop()
            return True
        self.acts.pop(0)()
        with self.database.transaction() as tx:
            runs.announce(tx, self.run.id)
        return True


class OnlyTrainer(Actor):
    """The same, as the only one of a run."""

    role = WorkerRole.TRAIN
    exclusive = True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short leases and pauses, and the signal handlers of the tests at the end."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr("trinity_db.postgres.connection.RETRY_SECONDS", (0.01, 0.1))
    monkeypatch.setattr(service, "RETRY_SECONDS", (0.01, 0.1))
    monkeypatch.setattr(service, "LEASE_SECONDS", LEASE_SECONDS)
    monkeypatch.setattr(service, "HEARTBEAT_SECONDS", LEASE_SECONDS / 6)
    monkeypatch.setattr(service, "WATCH_SECONDS", LEASE_SECONDS / 4)
    monkeypatch.setattr(service, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(service, "RELEASE_SECONDS", 0.1)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def direct(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that no accident happens to."""
    with closing(psycopg.connect(database_url, autocommit=True)) as connection:
        yield connection


@pytest.fixture
def run(database_url: str) -> runs.Run:
    return new_run(database_url)


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    folder = new_home()
    with closing(Proxy(database_url, folder)) as proxy:
        yield proxy
    shutil.rmtree(folder)


def new_run(url: str) -> runs.Run:
    with closing(Database(url)) as database, database.transaction() as tx:
        return runs.open_run(tx, "accident", {}, "groups")


def act(url: str, run: runs.Run, *acts: Callable[[Actor], object], kind: type[Actor] = Actor) -> Actor:
    """Let a role do this to the end."""
    with closing(Database(url, LEASE_SECONDS)) as database:
        actor = kind(database, run)
        actor.acts = [lambda one=one: one(actor) for one in acts]  # type: ignore[misc]
        actor.serve()
        return actor


def goodbyes(direct: psycopg.Connection[Any]) -> list[bool]:
    return [
        gone for (gone,) in direct.execute("SELECT stopped_at IS NOT NULL FROM trinity.worker ORDER BY id")
    ]


HELD = "SELECT count(*) FROM trinity.rollout_group WHERE worker_id = %s"


def hold(tx: Transaction, run: runs.Run, worker_id: int) -> None:
    """Lease a group."""
    tx.execute("INSERT INTO trinity.taskset (name) VALUES ('tasks')")
    tx.execute(
        "INSERT INTO trinity.task (taskset_id, key, ordinal, prompt_digest, payload)"
        " SELECT id, 'a', 0, '', '{\"prompt\": \"1\"}' FROM trinity.taskset"
    )
    tx.execute(
        "INSERT INTO trinity.rollout_group (run_id, task_id, expected, worker_id)"
        " SELECT %s, id, 1, %s FROM trinity.task",
        [run.id, worker_id],
    )


def is_silent(direct: psycopg.Connection[Any]) -> bool:
    """Whether all workers' leases have ended."""
    silent = "SELECT max(heartbeat_at) < clock_timestamp() - make_interval(secs => %s) FROM trinity.worker"
    return direct.execute(silent, [LEASE_SECONDS]).fetchone() == (True,)


def stop_for_good(proxy: Proxy) -> None:
    """Ask this process to end while the server stays away."""
    proxy.refuse(10**9)
    os.kill(os.getpid(), signal.SIGTERM)


def about_absence(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a role warned of."""
    return [
        line.message
        for line in caplog.records
        if line.name.startswith("trinity_db") and line.levelno >= logging.WARNING
    ]


def test_a_role_waits_for_its_first_connection_and_says_so_once(
    proxy: Proxy, run: runs.Run, direct: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    proxy.refuse(5)
    assert act(proxy.url, run, lambda actor: None).acts == []
    away, back = about_absence(caplog)
    assert away.endswith("trying again until it works")
    assert back.startswith("The database is back")
    assert goodbyes(direct) == [True]


def test_a_role_goes_on_when_the_server_refuses_it_for_a_while(
    proxy: Proxy, run: runs.Run, direct: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def lose(actor: Actor) -> None:
        proxy.refuse(12)
        proxy.cut()

    assert act(proxy.url, run, lose, lambda actor: None).acts == []
    away, back = about_absence(caplog)
    assert "trying again" in away
    assert "is back" in back
    assert goodbyes(direct) == [True]


def test_a_role_goes_on_after_the_network_was_silent_for_longer_than_its_lease(
    proxy: Proxy, run: runs.Run, direct: psycopg.Connection[Any]
) -> None:
    def mend() -> None:
        assert proxy.held_back.wait(30)
        wait_until(lambda: is_silent(direct), "it is silent")
        proxy.go_on()

    def fall_silent(actor: Actor) -> None:
        mender.start()
        proxy.fall_silent()

    mender = threading.Thread(target=mend)
    actor = act(proxy.url, run, fall_silent, lambda actor: None)
    mender.join()
    assert actor.acts == []
    assert goodbyes(direct) == [True]


def test_a_role_goes_on_when_there_are_too_many_connections(
    server: str,
    database_url: str,
    run: runs.Run,
    direct: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    # A database's own limit does not bind superusers.
    execute(server, "CREATE ROLE {} LOGIN IN ROLE pg_read_all_data, pg_write_all_data", "guest")
    limit = f"ALTER DATABASE {direct.info.dbname} CONNECTION LIMIT "

    def crowd(actor: Actor) -> None:
        direct.execute(f"{limit} 0".encode())
        direct.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guest'")
        threading.Thread(target=thin_out).start()

    def thin_out() -> None:
        wait_until(lambda: bool(about_absence(caplog)), "the role waits")
        direct.execute(f"{limit} -1".encode())

    try:
        act(database_url.replace("postgres@", "guest@"), run, crowd, lambda actor: None)
    finally:
        execute(server, "DROP ROLE {}", "guest")
    assert len(about_absence(caplog)) == 2
    assert goodbyes(direct) == [True]


@pytest.mark.parametrize("state", ["40P01", "40001", "57014"])
def test_what_the_server_undid_is_done_again_on_the_same_connection(
    database_url: str, run: runs.Run, state: str
) -> None:
    backends = set()

    def fail_at_first(actor: Actor) -> None:
        with actor.database.transaction() as tx:
            backends.add(tx.info.backend_pid)
            if len(attempts) < 2:
                attempts.append(state)
                tx.execute(RAISE.format(state).encode())

    attempts: list[str] = []
    actor = act(database_url, run, fail_at_first, fail_at_first, fail_at_first)
    assert (actor.acts, attempts, len(backends)) == ([], [state] * 2, 1)


@pytest.mark.parametrize(
    ("state", "remedy"),
    [("53100", "make room"), ("25006", "name the primary"), ("53200", "more"), ("58030", "repair its disk")],
)
def test_what_a_person_must_mend_ends_a_role_in_one_line(
    database_url: str, run: runs.Run, direct: psycopg.Connection[Any], state: str, remedy: str
) -> None:
    def fail(actor: Actor) -> None:
        with actor.database.transaction() as tx:
            tx.execute(RAISE.format(state).encode())

    with pytest.raises(TrinityError, match=f"^The database refuses: as in an accident: .*{remedy}") as caught:
        act(database_url, run, fail)
    assert not isinstance(caught.value, DatabaseUnavailable)
    assert goodbyes(direct) == [True]


def test_a_signal_ends_a_role_that_waits_for_its_first_connection(proxy: Proxy, run: runs.Run) -> None:
    proxy.refuse(3, then=lambda: stop_for_good(proxy))
    actor = act(proxy.url, run, lambda actor: None)
    assert (actor.worker_id, len(actor.acts)) == (0, 1)


def test_a_signal_ends_a_role_whose_database_is_away(
    proxy: Proxy, run: runs.Run, direct: psycopg.Connection[Any]
) -> None:
    def lose(actor: Actor) -> None:
        proxy.refuse(5, then=lambda: stop_for_good(proxy))
        proxy.cut()

    act(proxy.url, run, lose)
    assert goodbyes(direct) == [False], "it could not say it"


def test_a_goodbye_that_the_server_undid_is_said_again(
    database_url: str, run: runs.Run, direct: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_at_first(tx: Transaction, worker_id: int) -> None:
        monkeypatch.setattr(workers, "stop", stop)
        tx.execute(RAISE.format("40P01").encode())

    stop = workers.stop
    monkeypatch.setattr(workers, "stop", fail_at_first)
    monkeypatch.setattr(service, "RELEASE_SECONDS", 30.0)
    act(database_url, run)
    assert workers.stop is stop
    assert goodbyes(direct) == [True]


def test_a_transaction_that_stands_still_for_longer_than_a_lease_is_ended(
    database_url: str, run: runs.Run, direct: psycopg.Connection[Any]
) -> None:
    lock = "SELECT FROM trinity.run FOR UPDATE"
    direct.execute("SET lock_timeout = '30s'")

    def stand_still(database: Database) -> None:
        with database.transaction() as tx:
            tx.execute(lock.encode())
            direct.execute(lock.encode())  # as soon as the server has ended the other
            tx.execute("SELECT 1")

    with closing(Database(database_url, LEASE_SECONDS)) as database, pytest.raises(DatabaseUnavailable):
        stand_still(database)


@pytest.mark.parametrize(("lease_seconds", "noticed_seconds"), [(30.0, 10.0), (None, 30.0)])
def test_a_silent_network_is_noticed(
    database_url: str, lease_seconds: float | None, noticed_seconds: float
) -> None:
    """By a role in time for its next heartbeat, by a command before a person gives up."""
    with closing(Database(database_url, lease_seconds)) as database, database.transaction() as tx:
        sent = {option.keyword.decode(): option.val for option in tx.pgconn.info}
        assert sent["tcp_user_timeout"] == b"%d" % (1000 * noticed_seconds)
        assert sum(int(sent[f"keepalives_{name}"] or 0) for name in ("idle", "interval")) <= noticed_seconds


def test_the_server_ends_a_role_s_session_that_stands_still(database_url: str) -> None:
    with closing(Database(database_url, 30.0)) as database, database.transaction() as tx:
        row = tx.execute("SHOW idle_in_transaction_session_timeout").fetchone()
        assert row == {"idle_in_transaction_session_timeout": "30s"}
    with closing(Database(database_url)) as database, database.transaction() as tx:
        row = tx.execute("SHOW idle_in_transaction_session_timeout").fetchone()
        assert row == {"idle_in_transaction_session_timeout": "10min"}, "a person may take longer"


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_workers_are_given_the_time_of_a_beat_when_the_server_s_clock_was_set(
    database_url: str, run: runs.Run, direct: psycopg.Connection[Any], seconds: float
) -> None:
    """Their heartbeats are an hour off at once; the rescuer knows it from its own."""
    shift = "UPDATE trinity.worker SET heartbeat_at = heartbeat_at - make_interval(secs => %s)"
    with closing(Database(database_url, LEASE_SECONDS)) as database:
        rescuer, other = Actor(database, run), Actor(database, run)
        rescuer.worker_id, other.worker_id = rescuer._register(None), other._register(None)  # type: ignore[assignment]
        pulse, heard = service.Pulse(rescuer), service.Pulse(other)
        connection = pulse._connected()
        pulse._beat(connection)
        with database.transaction() as tx:
            hold(tx, run, other.worker_id)
        direct.execute(shift, [seconds])
        assert pulse._server_time is not None
        pulse._server_time -= timedelta(seconds=seconds)
        for _ in range(2):
            pulse._last_beat = -math.inf
            pulse._beat(connection)
            assert direct.execute(HELD, [other.worker_id]).fetchone() == (1,)
            heard._beat(heard._connected())  # its next beat, within seconds
        direct.execute(shift, [seconds])
        pulse._last_beat = -math.inf
        pulse._beat(connection)
        assert direct.execute(HELD, [other.worker_id]).fetchone() == (0,), "it is gone"
        pulse._connected().close()
        heard._connected().close()


FROZEN_TRAINER = """
import sys
from tests.integration.test_outages import LEASE_SECONDS, OnlyTrainer
from trinity_db import cli
from trinity_db.worker import service
from trinity_db.postgres.connection import Database
from trinity_db.errors import TrinityError
from trinity_db.store import runs
service.LEASE_SECONDS, service.HEARTBEAT_SECONDS = LEASE_SECONDS, LEASE_SECONDS / 6
database = Database(sys.argv[1], LEASE_SECONDS)
with database.transaction() as tx:
    run = runs.find(tx, "accident")
try:
    OnlyTrainer(database, run, *[lambda: print("works", flush=True)] + [lambda: None] * 10**6).serve()
except TrinityError as error:
    sys.exit(f"error: {error}")
"""


def test_a_frozen_trainer_is_replaced_and_ends_in_one_line_when_it_wakes_up(
    database_url: str, run: runs.Run, direct: psycopg.Connection[Any]
) -> None:
    command = [sys.executable, "-c", FROZEN_TRAINER, database_url]
    frozen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert frozen.stdout is not None
        assert frozen.stdout.readline() == "works\n"
        with pytest.raises(TrinityError, match="has a train worker already"):
            act(database_url, run, kind=OnlyTrainer)
        frozen.send_signal(signal.SIGSTOP)
        silent = (
            "SELECT max(heartbeat_at) < clock_timestamp() - make_interval(secs => %s) FROM trinity.worker"
        )
        wait_until(lambda: direct.execute(silent, [LEASE_SECONDS]).fetchone() == (True,), "it is silent")

        def wake(actor: Actor) -> None:
            with pytest.raises(LeaseLost), actor.database.transaction() as tx:
                workers.hold_place(tx, actor.worker_id - 1)
            frozen.send_signal(signal.SIGCONT)
            errors = frozen.communicate(timeout=60)[1]
            assert frozen.returncode == 1
            assert [line for line in errors.splitlines() if "error: " in line] == errors.splitlines()[-1:]
            assert "another has its place" in errors
            assert "Traceback" not in errors

        assert act(database_url, run, wake, kind=OnlyTrainer).acts == []
    finally:
        frozen.kill()
        frozen.communicate()
    assert goodbyes(direct) == [True, True]


def test_a_trainer_that_lost_its_session_and_has_another_is_not_replaced(
    database_url: str, run: runs.Run, direct: psycopg.Connection[Any]
) -> None:
    def cut(actor: Actor) -> None:
        direct.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def refused(actor: Actor) -> None:
        kept = "SELECT count(*) FROM trinity.worker JOIN pg_stat_activity a ON a.pid = session_pid"
        wait_until(lambda: direct.execute(kept).fetchone() == (1,), "it has a session again")
        with pytest.raises(TrinityError, match="has a train worker already"):
            act(database_url, run, kind=OnlyTrainer)

    assert act(database_url, run, cut, refused, kind=OnlyTrainer).acts == []
    assert goodbyes(direct) == [True]


@pytest.fixture
def small_disk(server: str, template: str) -> Iterator[tuple[str, Path]]:
    """A database whose metrics lie on a disk of a few megabytes: its URL, and a file that fills the disk."""
    folder = new_home()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=777", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        shutil.rmtree(folder)
        pytest.skip("only root may mount a small disk, and not everywhere")
    account = server_account(folder / "data")
    assert account is not None
    (folder / "data").mkdir()
    os.chown(folder / "data", account.uid, account.gid)
    try:
        execute(server, f"CREATE TABLESPACE {{}} LOCATION '{folder / 'data'}'", "small")
        with new_database(server, template) as url:
            execute(url, "ALTER TABLE trinity.metric SET TABLESPACE {}", "small")
            (folder / "filler").write_bytes(bytes(3_000_000))
            yield url, folder / "filler"
        execute(server, "DROP TABLESPACE {}", "small")
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def test_a_full_disk_ends_a_role_in_one_line_and_loses_nothing(small_disk: tuple[str, Path]) -> None:
    url, filler = small_disk
    run = new_run(url)
    acknowledged: list[int] = []

    def fill(actor: Actor) -> None:
        with actor.database.transaction() as tx:
            values = {f"metric {number}": 1.0 for number in range(1000)}
            record_metrics(tx, run.id, actor.role, len(acknowledged), values)
        acknowledged.append(1000)

    with pytest.raises(TrinityError, match=r"^The database refuses: .*disk is full; make room there"):
        act(url, run, *[fill] * 100)
    filler.unlink()
    until_full = len(acknowledged)
    act(url, run, *[fill] * 2)
    with closing(psycopg.connect(url)) as connection:
        stored = connection.execute(
            "SELECT count(*) FROM trinity.metric GROUP BY step ORDER BY step"
        ).fetchall()
    assert len(acknowledged) == until_full + 2
    assert [count for (count,) in stored] == acknowledged


COMMAND = [sys.executable, "-m", "trinity_db", "process"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(
        "name: nowhere\ntaskset: a\nmodel: {path: .}\ntrainer: {steps: 1}\nalgorithm: grpo\n"
        "processors: {score: [exact_match]}\n"
    )
    return path


def test_a_role_by_hand_fails_at_once_where_no_server_is(config: Path) -> None:
    environment = os.environ | {"TRINITY_DB_URL": "postgresql://127.0.0.1:1/nowhere"}
    ended = subprocess.run([*COMMAND, config], env=environment, capture_output=True, text=True)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: No database answers at postgresql://127.0.0.1:1/nowhere")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_supervised_role_waits_where_no_server_is_until_it_is_stopped(
    config: Path, number: signal.Signals
) -> None:
    environment = os.environ | {
        "TRINITY_DB_URL": "postgresql://127.0.0.1:1/nowhere",
        service.SUPERVISOR: str(os.getpid()),
    }
    with subprocess.Popen([*COMMAND, config], env=environment, stderr=subprocess.PIPE, text=True) as role:
        try:
            assert role.stderr is not None
            assert "trying again" in role.stderr.readline()
            role.send_signal(number)
            errors = role.communicate(timeout=30)[1]
        finally:
            role.kill()
    assert errors == "Stopped; repeat the command to continue.\n"
    assert role.returncode == 0


@pytest.mark.parametrize("algorithm", ["sft", "grpo"])
def test_a_supervised_role_opens_its_run_though_every_other_transaction_is_cut(
    scene: Scene, direct: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """With sft the first transaction adopts the rows; with grpo later ones adopt their groups."""
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    monkeypatch.setenv(service.SUPERVISOR, str(os.getppid()))
    import_records(scene.database, "data", [trajectory(n, str(k), float(k)) for n in (1, 2) for k in (0, 1)])
    content = {"name": "cut", "data": ["data"], "model": {"scratch": {}}, "algorithm": algorithm}
    config = RunConfig.model_validate(content | {"trainer": {"epochs": 1}})
    sessions = list[int]()
    transaction = Database.transaction

    @contextmanager
    def cut(database: Database, **options: Any) -> Iterator[Transaction]:
        with transaction(database, **options) as tx:
            sessions.append(tx.info.backend_pid)
            if len(sessions) % 2:
                direct.execute("SELECT pg_terminate_backend(%s, 5000)", sessions[-1:])
            yield tx

    with monkeypatch.context() as patched:
        patched.setattr(Database, "transaction", cut)
        database, run = joining.open_run(config)
    database.close()
    assert len(sessions) >= 4
    assert scene.value("SELECT count(*) FROM trinity.experience WHERE run_id = %s", run.id) == 4


def test_a_server_that_goes_away_after_the_schema_version_was_read_stops_no_role(
    database_url: str, direct: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = upgrades._version

    def read_and_cut(connection: Transaction) -> str | None:
        version = read(connection)
        direct.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])
        return version

    monkeypatch.setattr(upgrades, "_version", read_and_cut)
    assert upgrades.schema_version(database_url) == schema.HEAD
