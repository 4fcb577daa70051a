"""A store behind a real PgBouncer, by the installed command: every command works, and a whole run does."""

import json
import shutil
import signal
from collections.abc import Iterator

import psycopg
import pytest

from tests.acceptance.command import MODEL, Ended, Store, reversals, reversing
from tests.support.pooler import POOL_SIZE, Pooler
from tests.support.postgres import by_login, cluster_18, discard, execute, new_home, on_database, start
from trinity_db.postgres.embedded.cluster import Cluster

pytestmark = pytest.mark.slow

MORE_STEPS, BATCH_SIZE = 3, 4
RUN = reversing(1_000_000, BATCH_SIZE, explored=4)
COMMITTED = "SELECT count(*) >= %(steps)s FROM batch WHERE state = 'committed'"
LEFT = """
SELECT name FROM pg_settings WHERE source = 'session' AND name IN (
    'default_transaction_read_only', 'statement_timeout', 'lock_timeout', 'search_path', 'plan_cache_mode',
    'idle_in_transaction_session_timeout', 'enable_seqscan', 'jit')
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server of its own, as it is started anew."""
    cluster = cluster_18()
    start(cluster)
    yield cluster
    discard(cluster)


@pytest.fixture(scope="module")
def store(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The tests ask the server itself, all commands go through the pooler."""
    execute(cluster.url("postgres"), "CREATE DATABASE {}", "pooled")
    direct = on_database(cluster.url("postgres"), "pooled")
    folder = new_home()
    pooler = Pooler(direct, "transaction", folder)
    store = Store(direct, tmp_path_factory.mktemp("pooled"))
    store.environment |= {"TRINITY_DB_URL": pooler.url, "TRINITY_DB_READ_URL": by_login(pooler.url)}
    try:
        ended = store.run("db", "init")
        assert ended.code == 0, ended.stderr
        store.import_rows("reverse", "tasks", reversals(2))
        yield store
    finally:
        store.clear_away()
        pooler.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def second_trainer_and_run(store: Store, cluster: Cluster) -> tuple[Ended, Ended]:
    """A supervised run; meanwhile the doctor looks, a second trainer is started, and the server restarted."""
    config = store.config("pooled", **RUN)
    run = store.start("run", config)
    store.wait_for(COMMITTED, run, steps=1)
    second = store.run("train", config)
    doctor = store.run("doctor", "--json")
    wrong = {found["what"] for found in json.loads(doctor.stdout) if found["level"] == "fail"}
    assert wrong == {"server durability"}, "tests' servers are fast rather than durable"
    steps = store.value("SELECT count(*) FROM batch WHERE state = 'committed'")
    cluster.stop()
    cluster.ensure_running()
    store.wait_for(COMMITTED, run, steps=steps + MORE_STEPS)
    run.signal(signal.SIGTERM)
    return second, run.wait()


def test_a_run_goes_through_a_restart_of_the_server(
    store: Store, second_trainer_and_run: tuple[Ended, Ended]
) -> None:
    _, run = second_trainer_and_run
    assert run.code == 0, run.stderr
    batches = store.rows("SELECT step, state::text FROM batch WHERE state = 'committed' ORDER BY step")
    assert [batch["step"] for batch in batches] == list(range(1, len(batches) + 1))


def test_a_second_trainer_is_refused_in_one_line(second_trainer_and_run: tuple[Ended, Ended]) -> None:
    second, _ = second_trainer_and_run
    assert second.code == 1
    assert second.error_lines == ["error: Run 'pooled' has a train worker already; stop that one first."]


def test_the_log_says_once_that_news_are_asked_for(
    store: Store, second_trainer_and_run: tuple[Ended, Ended]
) -> None:
    assert second_trainer_and_run[1].code == 0
    assert store.log("pooled", "explore").count("the database is behind a pooler") == 1


def test_no_session_of_the_pool_keeps_a_setting(
    store: Store, second_trainer_and_run: tuple[Ended, Ended]
) -> None:
    """Each client holds a transaction open while the next one asks, so that all sessions are asked."""
    assert second_trainer_and_run[1].code == 0
    for command in (["status"], ["sql", "SELECT 1"], ["sql", "SET jit = off"]):
        assert store.run(*command).code == 0, command
    store.run("doctor")
    url = store.environment["TRINITY_DB_URL"]
    clients = [psycopg.connect(url) for _ in range(POOL_SIZE)]
    try:
        assert [client.execute(LEFT).fetchall() for client in clients] == [[]] * POOL_SIZE
    finally:
        for client in clients:
            client.close()


def test_every_command_works(store: Store, second_trainer_and_run: tuple[Ended, Ended]) -> None:
    assert second_trainer_and_run[1].code == 0
    batch = store.value("SELECT max(id) FROM batch WHERE state = 'committed'")
    rows = store.folder / "rows.jsonl"
    for command in (
        ["status", "pooled"],
        ["show", "1"],
        ["batches", "pooled"],
        ["sql", "SELECT count(*) FROM experience_view"],
        ["sql", "--write", "UPDATE task_stat SET issued = issued"],
        ["replay", str(batch), "--check"],
        ["export", "pooled", "--as", "trajectories", "--to", str(rows)],
        ["import", str(rows), "--as", "trajectories", "--name", "again"],
        ["reward", "1", "0.5", "--by", "ann"],
        ["db", "upgrade"],
        ["db", "check"],
    ):
        ended = store.run(*command)
        assert ended.code == 0, (command, ended.stderr)
    assert store.value("SELECT count(*) FROM run WHERE name = 'again'") == 1


def test_offline_training_works(store: Store) -> None:
    demonstrations = [{"prompt": t["prompt"], "completion": t["answer"]} for t in reversals(1)]
    store.import_rows("answers", "demonstrations", demonstrations)
    trainer = {"epochs": 1, "batch_size": 2}
    config = store.config("offline", data=["answers"], algorithm="sft", model=MODEL, trainer=trainer)
    ended = store.run("run", config)
    assert ended.code == 0, ended.stderr
