"""Notifications that cannot be sent: transactions commit, and roles find their work by polling."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.postgres import by_login, cluster_18, discard, execute, on_database, start
from tests.support.rows import WAIT_SECONDS, Scene, in_a_thread
from tests.support.waiting import wait_until
from trinity_db.insight.checks import work
from trinity_db.insight.checks.finding import Level
from trinity_db.postgres import opening
from trinity_db.postgres.connection import Database, Transaction, connect
from trinity_db.schema.states import WorkerRole
from trinity_db.store import runs
from trinity_db.worker.service import Service

STORE = "store"
FILL = "SELECT count(pg_notify('spam', repeat('x', 7900) || n)) FROM generate_series(1, %s) n"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server whose queue of notifications holds 512 kB instead of 8 GB."""
    cluster = cluster_18()
    try:
        execute(start(cluster), "ALTER SYSTEM SET max_notify_queue_pages = 64")
        cluster.stop()
        cluster.ensure_running()
        execute(cluster.url("postgres"), "CREATE DATABASE {}", STORE)
        opening.upgrade(on_database(cluster.url("postgres"), STORE))
        yield cluster.url("postgres")
    finally:
        discard(cluster)


@pytest.fixture
def scene(server: str) -> Iterator[Scene]:
    with closing(Database(on_database(server, STORE))) as database:
        yield Scene.open(database)
        with database.transaction() as tx:
            tx.execute("DELETE FROM trinity.run")
            tx.execute("DELETE FROM trinity.taskset")


def refuses_notifications(sender: Transaction) -> bool:
    try:
        sender.execute(FILL, [1])
    except psycopg.errors.ProgramLimitExceeded:
        return True
    return False


@contextmanager
def full_queue(url: str) -> Iterator[Transaction]:
    """The session of a reader's login that listens in an open transaction, once the queue is full."""
    reader = by_login(url)
    with closing(connect(reader)) as holder, closing(connect(reader, autocommit=True)) as sender:
        holder.execute("SET idle_in_transaction_session_timeout = 0")
        holder.execute("LISTEN spam")
        holder.commit()
        holder.execute("SELECT 1")
        sender.execute(FILL, [50])
        while not refuses_notifications(sender):
            pass
        yield holder
    with closing(connect(url, autocommit=True)) as session:
        wait_until(lambda: work.notifications(session)[0].level is Level.OK, "the session has ended")


class Poller(Service):
    """A role that stops at the first work that another process makes."""

    role = WorkerRole.PROCESS
    has_looked = False

    def work(self) -> bool:
        with self.database.transaction() as tx:
            found = tx.execute("SELECT FROM trinity.experience WHERE run_id = %s", [self.run.id]).rowcount
        self.has_looked = True
        if found:
            self.stop()
        return bool(found)


def step(scene: Scene, number: int) -> None:
    """Everything that makes work for other roles: rollouts, verdicts, a batch, a version."""
    scene.make_ready(1)
    scene.train(number, 1)
    scene.publish(number, step=number)


def test_a_run_continues_while_a_reader_keeps_the_queue_full(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    with full_queue(scene.database.url) as holder:
        step(scene, 1)
        assert scene.value("SELECT count(*) FROM trinity.policy_version") == 2
        assert scene.database.lost_announcements > 1
        assert [record.message for record in caplog.records if "trinity-db doctor" in record.message]
        with closing(connect(scene.database.url, autocommit=True)) as session:
            [finding] = work.notifications(session)
            assert finding.level is Level.WARN
            assert f"pid {holder.info.backend_pid} (reader, trinity-db" in finding.found
            assert finding.remedy == f"SELECT pg_terminate_backend({holder.info.backend_pid})"
            session.execute(finding.remedy.encode())
            wait_until(lambda: work.notifications(session)[0].level is Level.OK, "the queue is empty")
    with closing(scene.database.listen(runs.channel(scene.run.id))) as listener:
        wait_until(lambda: _announced(scene), "notifications are sent again")
        assert list(listener.notifies(timeout=WAIT_SECONDS, stop_after=1))
    assert "Notifications are sent again" in caplog.text


def _announced(scene: Scene) -> bool:
    with scene.database.transaction() as tx:
        runs.announce(tx, scene.run.id)
    return scene.database.lost_announcements == 0


def test_a_role_finds_work_while_the_queue_is_full(scene: Scene) -> None:
    with full_queue(scene.database.url), closing(Database(scene.database.url)) as database:
        role = Poller(database, scene.run)

        def explore() -> None:
            wait_until(lambda: role.has_looked, "the role has looked")
            scene.make_ready(1)

        exploring = in_a_thread(scene.database, explore)
        role.serve()
        exploring.result(WAIT_SECONDS)
    assert role.stopping


def test_a_failed_transaction_sends_nothing(scene: Scene) -> None:
    with closing(scene.database.listen(runs.channel(scene.run.id))) as listener:
        with suppress(ZeroDivisionError), scene.database.transaction() as tx:
            runs.announce(tx, scene.run.id, "of the failed transaction")
            raise ZeroDivisionError
        with scene.database.transaction() as tx:
            runs.announce(tx, scene.run.id, "of the next one")
        heard = list(listener.notifies(timeout=WAIT_SECONDS, stop_after=1))
    assert [notify.payload for notify in heard] == ["of the next one"]


def test_a_slow_sender_of_notifications_delays_no_commit(scene: Scene, server: str) -> None:
    """The commit of the slow sender waits for a standby, and holds the server's lock of senders meanwhile."""
    execute(server, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    execute(server, "SELECT pg_reload_conf()")
    local = make_conninfo(scene.database.url, options="-c synchronous_commit=local")
    try:
        with closing(Database(scene.database.url)) as slow, closing(Database(local)) as database:

            def send() -> None:
                with slow.transaction() as tx:
                    tx.execute("UPDATE trinity.run SET finished_at = finished_at")
                    tx.execute("SELECT pg_notify('spam', '')")

            sending = in_a_thread(slow, send)
            waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            with closing(connect(local, autocommit=True)) as session:
                wait_until(lambda: session.execute(waits).rowcount, "the sender waits for a standby")
            with database.transaction() as tx:
                runs.announce(tx, scene.run.id)
            assert database.lost_announcements == 1
            assert not sending.done()
    finally:
        execute(server, "ALTER SYSTEM RESET synchronous_standby_names")
        execute(server, "SELECT pg_reload_conf()")
    sending.result(WAIT_SECONDS)
