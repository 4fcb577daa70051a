"""Behind a real PgBouncer: nothing is kept in sessions, and nothing is left in them."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.integration.test_outages import LEASE_SECONDS, Actor, OnlyTrainer, act, goodbyes, new_run
from tests.integration.test_outages import quick as quick
from tests.support.pooler import POOL_SIZE, pooled
from tests.support.waiting import wait_until
from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.postgres import backup
from trinity_db.postgres.connection import Database, Transaction, connect, is_pooled
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole
from trinity_db.store import runs, workers

# What is not as at the beginning of a session. PgBouncer itself sets the few that it keeps for each client.
LEFT = """
SELECT name FROM pg_settings
WHERE source = 'session' AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone',
                                          'standard_conforming_strings', 'extra_float_digits')
"""


@pytest.fixture
def pooled_url(database_url: str) -> Iterator[str]:
    with pooled(database_url) as url:
        yield url


@pytest.fixture
def run(database_url: str) -> runs.Run:
    return new_run(database_url)


@pytest.fixture
def direct(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(database_url, autocommit=True)) as connection:
        yield connection


def left_in_pool(url: str) -> list[str]:
    """Settings that another client left in one of the pool's sessions."""
    found: set[str] = set()
    with ExitStack() as stack:
        for _ in range(POOL_SIZE):
            client = stack.enter_context(closing(psycopg.connect(url)))
            found |= {
                name for (name,) in client.execute(LEFT)
            }  # in a transaction that stays open: each has its own
    return sorted(found)


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_pooler_is_noticed_in_either_mode(database_url: str, mode: str) -> None:
    with pooled(database_url, mode) as url, closing(connect(url)) as connection:
        assert is_pooled(connection)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    with closing(connect(database_url)) as connection:
        assert not is_pooled(connection)


def test_a_restore_through_a_pooler_is_refused_and_leaves_nothing(pooled_url: str, tmp_path: Path) -> None:
    file = tmp_path / "store.dump"
    backup.backup(pooled_url, file)
    assert left_in_pool(pooled_url) == []
    with pytest.raises(TrinityError, match="name the server itself"):
        backup.restore(pooled_url, file)
    assert left_in_pool(pooled_url) == []


def test_a_pooler_of_statements_is_refused_in_one_line(database_url: str) -> None:
    with (
        pooled(database_url, "statement") as url,
        pytest.raises(TrinityError, match="pools statements") as caught,
    ):
        connect(url)
    assert not isinstance(caught.value, DatabaseUnavailable), "a role would wait for ever"
    assert "set its pool_mode to transaction" in str(caught.value)


def test_a_role_s_settings_are_those_of_each_transaction(pooled_url: str) -> None:
    limit = "idle_in_transaction_session_timeout"
    shown = f"SELECT current_setting('{limit}') AS still, current_setting('jit') AS jit".encode()
    with closing(Database(pooled_url, 30.0)) as role:
        role.session_name = "trinity-db worker 7"
        for _ in range(2):
            with role.transaction() as tx:
                assert tx.execute(shown).fetchone() == {"still": "30s", "jit": "off"}
                assert tx.info.parameter_status("application_name") == "trinity-db worker 7"
        assert left_in_pool(pooled_url) == []


def test_a_transaction_that_fails_is_rolled_back_with_its_settings(pooled_url: str) -> None:
    with closing(Database(pooled_url, 30.0)) as role:
        with pytest.raises(psycopg.errors.DivisionByZero), role.transaction() as tx:
            tx.execute("SELECT 1 / 0")
        with role.transaction() as tx:
            assert tx.execute("SELECT 1 AS one").fetchone() == {"one": 1}
    assert left_in_pool(pooled_url) == []


def test_settings_cost_no_round_trip(pooled_url: str, database_url: str, tmp_path: Path) -> None:
    """The server is waited for once before the first statement of a transaction, pooler or not."""
    for url in (pooled_url, database_url):
        with closing(Database(url, 30.0)) as role, (tmp_path / "trace").open("w+") as trace:
            with role.transaction() as tx:
                pgconn = tx.pgconn
            pgconn.trace(trace.fileno())
            with role.transaction():
                pgconn.untrace()
            trace.seek(0)
            assert trace.read().count("ReadyForQuery") == 1


def test_statements_are_not_prepared(pooled_url: str) -> None:
    """Else the second client on the same session of the server would find their names in use."""
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(Database(pooled_url))) for _ in range(2)]
        for _ in range(20):
            for client in clients:
                with client.transaction() as tx:
                    assert tx.execute("SELECT %s::integer AS n", [3]).fetchone() == {"n": 3}


def test_a_role_works_finds_news_and_leaves_nothing_in_the_pool(
    pooled_url: str, run: runs.Run, direct: psycopg.Connection[Any]
) -> None:
    woken = []

    class Waiting(Actor):
        def work(self) -> bool:
            woken.append(1)
            if len(woken) == 3:
                self.stop()
            return False

    act(pooled_url, run, kind=Waiting)
    assert len(woken) == 3
    assert goodbyes(direct) == [True]
    assert left_in_pool(pooled_url) == []
    assert direct.execute("SELECT session_pid FROM trinity.worker").fetchone() == (None,)


def test_roles_go_on_when_the_pooler_lost_the_server(
    pooled_url: str, run: runs.Run, direct: psycopg.Connection[Any]
) -> None:
    def cut(actor: Actor) -> None:
        direct.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def cut_midway(actor: Actor) -> None:
        if not cuts:
            cuts.append(1)
            with actor.database.transaction() as tx:
                cut(actor)
                tx.execute("SELECT 1")

    cuts: list[int] = []
    assert act(pooled_url, run, cut, cut_midway, lambda actor: None).acts == []
    assert goodbyes(direct) == [True]


def test_a_second_trainer_is_refused(pooled_url: str, database_url: str, run: runs.Run) -> None:
    def refused(actor: Actor) -> None:
        for url in (pooled_url, database_url):
            with pytest.raises(TrinityError, match="has a train worker already"):
                act(url, run, kind=OnlyTrainer)

    assert act(pooled_url, run, refused, kind=OnlyTrainer).acts == []


TRAINER = """
import sys
from tests.integration.test_outages import LEASE_SECONDS, OnlyTrainer
from trinity_db.worker import service
from trinity_db.postgres.connection import Database
from trinity_db.store import runs
service.LEASE_SECONDS, service.HEARTBEAT_SECONDS = LEASE_SECONDS, LEASE_SECONDS / 6
database = Database(sys.argv[1], LEASE_SECONDS)
with database.transaction() as tx:
    run = runs.find(tx, "accident")
OnlyTrainer(database, run, *[lambda: print("works", flush=True)] + [lambda: None] * 10**6).serve()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("host", [socket.gethostname(), "elsewhere"])
def test_a_trainer_that_is_gone_is_replaced(
    pooled_url: str, run: runs.Run, direct: psycopg.Connection[Any], number: signal.Signals, host: str
) -> None:
    with subprocess.Popen([sys.executable, "-c", TRAINER, pooled_url], stdout=subprocess.PIPE) as trainer:
        try:
            assert trainer.stdout is not None
            assert trainer.stdout.readline() == b"works\n"
            direct.execute("UPDATE trinity.worker SET host = %s", [host])
            trainer.send_signal(number)
            if number == signal.SIGKILL:
                trainer.wait()
            assert act(pooled_url, run, kind=OnlyTrainer).acts == []
        finally:
            trainer.kill()
    assert goodbyes(direct) == [True, True]


def test_a_silent_worker_s_transaction_is_ended_and_no_other_client_s(
    pooled_url: str, database_url: str, run: runs.Run, direct: psycopg.Connection[Any]
) -> None:
    with ExitStack() as stack:
        silent, other = (stack.enter_context(closing(Database(pooled_url, 60.0))) for _ in range(2))
        ids = {}
        for role in (silent, other):
            with role.transaction() as tx:
                ids[role] = workers.register(tx, run, WorkerRole.PROCESS)
                role.session_name = workers.sign(tx, ids[role])
        direct.execute(
            "UPDATE trinity.worker SET heartbeat_at = now() - interval '1 h' WHERE id = %s", [ids[silent]]
        )

        def end_silently(silent: Database) -> None:
            with silent.transaction() as tx:
                tx.execute("SELECT 1")
                direct.execute(
                    query("end_silent_sessions"), {"run_id": run.id, "lease_seconds": LEASE_SECONDS}
                )
                wait_until(lambda: is_ended(direct, tx), "its session is ended")
                tx.execute("SELECT 1")

        with other.transaction() as held:
            with pytest.raises(DatabaseUnavailable):
                end_silently(silent)
            assert held.execute("SELECT 1 AS one").fetchone() == {"one": 1}


def is_ended(direct: psycopg.Connection[Any], tx: Transaction) -> bool:
    name = tx.info.parameter_status("application_name")
    found = direct.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [name])
    return found.fetchone() == (0,)
