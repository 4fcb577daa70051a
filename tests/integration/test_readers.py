"""What a login that may only read can hold up: nothing that a run waits for."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres import by_login, execute
from tests.support.rows import WAIT_SECONDS, Scene, in_a_thread
from trinity_db.errors import TrinityError
from trinity_db.postgres import backup
from trinity_db.postgres.connection import Transaction, connect
from trinity_db.postgres.logins import open_to_roles, refuse_writer
from trinity_db.postgres.upgrades import schema_version
from trinity_db.schema.states import WorkerRole
from trinity_db.store import metrics, workers
from trinity_db.store.metrics import record_metrics

KEYS = ("pace", "metrics", "rescue", "trainer")  # words that roles make, or once made, advisory locks of


@pytest.fixture
def reader(scene: Scene) -> Iterator[Transaction]:
    """A session that has locked all that it may, and goes on."""
    execute(
        scene.database.url, "GRANT EXECUTE ON FUNCTION pg_advisory_lock(bigint) TO PUBLIC"
    )  # as by default
    with closing(connect(by_login(scene.database.url))) as session:
        lock = "SELECT pg_advisory_lock(hashtextextended('trinity ' || %s, %s))"
        for key in KEYS:
            session.execute(lock, [key, scene.run.id])
        tables = "SELECT format('trinity.%I', tablename) AS name FROM pg_tables WHERE schemaname = 'trinity'"
        for row in session.execute(tables).fetchall():
            session.execute(f"LOCK TABLE {row['name']} IN ACCESS SHARE MODE".encode())
        yield session


def test_a_run_goes_on_beside_a_reader_that_locks_what_it_may(scene: Scene, reader: Transaction) -> None:
    def work() -> None:
        (group,) = scene.claim(1)
        assert group.members
        with scene.database.transaction() as tx:
            record_metrics(tx, scene.run.id, WorkerRole.TRAIN, 1, {"loss": 0.5})
        with scene.database.transaction() as tx:
            assert metrics.is_settled(tx, scene.run.id), "a sink waits for the reader"
        with scene.database.transaction() as tx:
            workers.release_leases(tx, scene.run.id, 0.0)

    in_a_thread(scene.database, work).result(WAIT_SECONDS)
    assert reader.execute("SELECT 1 AS one").fetchone() == {"one": 1}


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT FROM trinity.run FOR KEY SHARE",
        "LOCK TABLE trinity.run IN ROW SHARE MODE",
        "INSERT INTO trinity.taskset (name) VALUES ('mine')",
        "CREATE TABLE public.mine (id integer)",
        "CREATE TABLE trinity.mine (id integer)",
        "SELECT setval('trinity.run_id_seq', 1)",
    ],
)
def test_a_reader_has_no_right_to_lock_or_write(scene: Scene, statement: str) -> None:
    with closing(connect(by_login(scene.database.url))) as session:
        session.execute("SET TRANSACTION READ WRITE")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute(statement.encode())


@pytest.mark.parametrize(
    "call",
    [
        "pg_terminate_backend(pg_backend_pid())",
        "pg_cancel_backend(pg_backend_pid())",
        "lo_creat(-1)",
        "lo_create(0)",
        "lo_from_bytea(0, '')",
        "pg_advisory_lock(1)",
        "pg_try_advisory_xact_lock_shared(1, 1)",
        "pg_logical_emit_message(false, '', '')",
        "pg_export_snapshot()",
    ],
)
def test_a_reader_calls_no_function_that_harms_other_sessions(scene: Scene, call: str) -> None:
    with closing(connect(scene.database.url)) as owner, owner.transaction():
        open_to_roles(owner)
    with closing(connect(by_login(scene.database.url))) as session:
        session.execute("SET TRANSACTION READ WRITE")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for function"):
            session.execute(f"SELECT {call}".encode())


def test_sessions_of_a_reader_end_in_time(scene: Scene) -> None:
    with closing(connect(by_login(scene.database.url))) as session:
        refuse_writer(session, "a test")
        names = ["default_transaction_read_only", "statement_timeout", "idle_in_transaction_session_timeout"]
        query = "SELECT current_setting(name) AS value FROM unnest(%s::text[]) name"
        found = [row["value"] for row in session.execute(query, [[*names, "temp_file_limit"]])]
        assert found == ["on", "10min", "1min", "10GB"]
    with (
        closing(connect(scene.database.url)) as session,
        pytest.raises(TrinityError, match="Login 'postgres' is a superuser"),
    ):
        refuse_writer(session, "a test")


@pytest.mark.parametrize("right", ["CREATEDB", "REPLICATION", "CREATEROLE"])
def test_a_login_that_may_change_the_server_is_no_reader(scene: Scene, right: str) -> None:
    login = f"a_reader_{os.getpid()}"
    execute(scene.database.url, f"CREATE ROLE {{}} LOGIN {right}", login)
    try:
        with (
            closing(connect(by_login(scene.database.url, login))) as session,
            pytest.raises(TrinityError, match=f"Login '{login}' may write"),
        ):
            refuse_writer(session, "a test")
    finally:
        execute(scene.database.url, "DROP ROLE {}", login)


def test_a_login_without_rights_and_one_that_may_only_read_are_told_so_in_one_line(scene: Scene) -> None:
    stranger = f"a_stranger_{os.getpid()}"
    execute(scene.database.url, "CREATE ROLE {} LOGIN", stranger)
    try:
        with pytest.raises(
            TrinityError, match=f"Login '{stranger}' may not use the store .permission denied"
        ):
            schema_version(by_login(scene.database.url, stranger))
        with pytest.raises(TrinityError, match="permission denied for schema trinity"):
            backup.restore(by_login(scene.database.url, stranger), Path(__file__))
    finally:
        execute(scene.database.url, "DROP ROLE {}", stranger)
    with closing(connect(by_login(scene.database.url))) as session, pytest.raises(TrinityError) as caught:
        open_to_roles(session)
    assert "may not do this" in str(caught.value)
