"""A run whose roles each come with a login that may do no more than its role needs."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from tests.acceptance.command import Store, new_store, reversals
from tests.support.postgres import by_login, execute

pytestmark = pytest.mark.timeout(900)
LOGINS = ("explorer", "processor", "trainer", "labeller", "reader")
STEPS = 2
RUN_SECONDS = 400.0  # three processes that load torch, on a busy machine
ONLINE: dict[str, Any] = {
    "taskset": "reverse",
    "algorithm": "grpo",
    "max_staleness": 1,
    "explorer": {"group_size": 4, "concurrency": 16, "max_new_tokens": 4},
    "evaluation": {"taskset": "digits", "samples": 2},
    "processors": {
        "score": ["position_match"],
        "archive": {},
        "retention": {"payloads": "30d", "metrics": "30d", "processing": "30d"},
    },
    "trainer": {"steps": STEPS, "batch_size": 4, "learning_rate": 1e-3},
}

# What a login must not do, and each is refused: by a missing right, or by a policy on the rows.
REFUSED = {
    "explorer": [
        "UPDATE trinity.experience SET reward = 1",
        "UPDATE trinity.evaluation SET samples = 1",
        "UPDATE trinity.rollout_group SET evaluation_id = NULL",
        "INSERT INTO trinity.reward_event (run_id, rollout_id, source, name, value)"
        " SELECT run_id, id, 'mine', 'mine', 1 FROM trinity.rollout LIMIT 1",
        "INSERT INTO trinity.policy_version (run_id, version, step, checkpoint_hash)"
        " SELECT id, 99, 99, 'x' FROM trinity.run",
        "UPDATE trinity.policy_version SET checkpoint = '/tmp'",
        "UPDATE trinity.batch SET state = 'committed'",
        "UPDATE trinity.run SET state = 'finished'",
        "UPDATE trinity.run SET config = '{}'",
        "INSERT INTO trinity.run_setting (run_id, config) SELECT id, '{}' FROM trinity.run",
        "UPDATE trinity.worker SET login = 'trainer'",
        "UPDATE trinity.worker SET role = 'train'",
        "LOCK TABLE trinity.worker IN ACCESS EXCLUSIVE MODE",
        "DELETE FROM trinity.rollout",
        "INSERT INTO trinity.rollout (run_id, group_id, ordinal, attempt, state, worker_id)"
        " SELECT run_id, group_id, 99, 1, 'finished', worker_id FROM trinity.rollout LIMIT 1",
        "INSERT INTO trinity.experience (run_id, group_id, rollout_id, state)"
        " SELECT run_id, group_id, nextval('trinity.rollout_id_seq'), 'raw' FROM trinity.rollout LIMIT 1",
        "INSERT INTO trinity.payload (experience_id, codec, num_tokens, data)"
        " SELECT id, '', 1, '' FROM trinity.experience LIMIT 1",
        "INSERT INTO trinity.worker (run_id, role, setting_id, host, pid)"
        " SELECT run_id, 'train', id, 'here', 1 FROM trinity.run_setting",
        "INSERT INTO trinity.worker (run_id, role, setting_id, host, pid, login)"
        " SELECT run_id, 'explore', id, 'here', 1, 'trainer' FROM trinity.run_setting",
    ],
    "processor": [
        "INSERT INTO trinity.policy_version (run_id, version, step, checkpoint_hash)"
        " SELECT id, 99, 99, 'x' FROM trinity.run",
        "UPDATE trinity.batch SET state = 'committed'",
        "UPDATE trinity.experience SET use_count = 0",
        "UPDATE trinity.run SET state = 'finished'",
        "UPDATE trinity.reward_event SET value = 1",
        "INSERT INTO trinity.experience (run_id, step, state) SELECT id, 0, 'ready' FROM trinity.run LIMIT 1",
        "UPDATE trinity.task SET payload = '{}'",
        "UPDATE trinity.payload SET data = NULL, archive_row = NULL, pruned_at = now()",
        "UPDATE trinity.policy_version SET step = 99",
        "INSERT INTO trinity.rollout_group (run_id, task_id, expected) SELECT run_id, task_id, 1"
        " FROM trinity.rollout_group LIMIT 1",
    ],
    "trainer": [
        "INSERT INTO trinity.reward_event (run_id, rollout_id, source, name, value)"
        " SELECT run_id, id, 'mine', 'mine', 1 FROM trinity.rollout LIMIT 1",
        "UPDATE trinity.experience SET reward = 1",
        "UPDATE trinity.reward_event SET value = 1",
        "INSERT INTO trinity.rollout (run_id, group_id, ordinal, attempt, state)"
        " SELECT run_id, group_id, 99, 1, 'finished' FROM trinity.rollout LIMIT 1",
        "UPDATE trinity.run SET config = '{}'",
    ],
    "labeller": [
        "UPDATE trinity.reward_event SET value = 1",
        "DELETE FROM trinity.reward_event",
        "UPDATE trinity.experience SET state = 'dropped'",
        "UPDATE trinity.rollout_group SET state = 'trained'",
        "UPDATE trinity.taskset SET name = 'mine'",
        "INSERT INTO trinity.worker (run_id, role, setting_id, host, pid)"
        " SELECT run_id, 'explore', id, 'here', 1 FROM trinity.run_setting",
    ],
    "reader": [
        "INSERT INTO trinity.metric (run_id, role, step, name, value)"
        " SELECT id, 'train', 1, 'x', 1 FROM trinity.run",
        "INSERT INTO trinity.reward_event (run_id, rollout_id, source, name, value)"
        " SELECT run_id, id, 'mine', 'mine', 1 FROM trinity.rollout LIMIT 1",
        "UPDATE trinity.worker SET stopped_at = now()",
        "DELETE FROM trinity.run",
        "SELECT FROM trinity.run FOR KEY SHARE",
    ],
}
COLUMNS = "SELECT id, login, heartbeat_at, stopped_at FROM worker ORDER BY id"


def name(login: str) -> str:
    return f"a_{login}"


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store after a run whose explorer, processor and trainer came with logins of their own."""
    with new_store(server, template, tmp_path_factory.mktemp("logins")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        store.import_rows("digits", "tasks", reversals(1))
        for login in LOGINS:
            made = store.run("db", "roles", "--login", name(login), "--as", login)
            assert made.code == 0, made.stderr
            assert f"user={name(login)} " in made.stdout
        try:
            config = store.config("apart", **ONLINE)
            commands = {"train": "trainer", "process": "processor", "explore": "explorer"}
            started = [
                store.start(command, config, TRINITY_DB_URL=by_login(store.url, name(login)))
                for command, login in commands.items()
            ]
            ended = [process.wait(RUN_SECONDS) for process in reversed(started)]  # what fails ends first
            assert [one.code for one in ended] == [0, 0, 0], [one.stderr for one in ended]
            yield store
        finally:
            store.clear_away()
            for login in LOGINS:
                execute(store.url, "DROP OWNED BY {}", name(login))
                execute(store.url, "DROP ROLE {}", name(login))


def test_the_run_was_trained_to_its_end(store: Store) -> None:
    assert store.value("SELECT count(*) FROM batch WHERE state = 'committed'") == STEPS
    assert store.value("SELECT state::text FROM run") == "finished"
    assert store.value("SELECT count(*) FROM payload WHERE archive_row IS NOT NULL") > 0
    logins = store.rows("SELECT role::text AS role, login FROM worker WHERE host <> 'there'")
    assert {(row["role"], row["login"]) for row in logins} == {
        ("explore", "a_explorer"),
        ("process", "a_processor"),
        ("train", "a_trainer"),
    }


def test_its_processor_looked_at_all_rows_for_old_ones(store: Store) -> None:
    looked = store.rows("SELECT family FROM sweep WHERE ended_at IS NOT NULL ORDER BY 1")
    assert [row["family"] for row in looked] == ["calls", "metrics", "payloads", "processing"]


def test_its_first_and_last_version_were_evaluated(store: Store) -> None:
    found = store.rows("SELECT version, judged, waiting, error FROM evaluation_view ORDER BY version")
    assert found == [
        {"version": version, "judged": 10, "waiting": 0, "error": None} for version in (0, STEPS)
    ]


@pytest.mark.parametrize(
    ("login", "statement"),
    [(login, statement) for login, refused in REFUSED.items() for statement in refused],
)
def test_a_login_may_do_nothing_that_its_role_does_not_need(store: Store, login: str, statement: str) -> None:
    with closing(psycopg.connect(by_login(store.url, name(login)))) as session:
        session.execute("SET TRANSACTION READ WRITE")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute(statement.encode())


def test_an_explorer_changes_no_lease_of_a_living_worker_of_another_login(store: Store) -> None:
    """A policy hides rows from a change, so that it changes none."""
    with closing(psycopg.connect(store.url)) as owner:
        enter = (
            "INSERT INTO trinity.worker (run_id, role, setting_id, host, pid, login)"
            " SELECT run_id, 'explore', id, 'there', 1, %s FROM trinity.run_setting RETURNING id"
        )
        (other,) = owner.execute(enter, ["another"]).fetchone() or (None,)
        start = (
            "INSERT INTO trinity.rollout_group (run_id, task_id, expected, worker_id)"
            " SELECT r.id, (SELECT min(t.id) FROM trinity.task t), 1, %s FROM trinity.run r RETURNING id"
        )
        (group,) = owner.execute(start, [other]).fetchone() or (None,)
        owner.commit()
    with closing(psycopg.connect(by_login(store.url, name("explorer")), autocommit=True)) as session:
        take = "UPDATE trinity.rollout_group SET worker_id = NULL, attempt = attempt + 1 WHERE id = %s"
        assert session.execute(take, [group]).rowcount == 0
        assert (
            session.execute("UPDATE trinity.worker SET stopped_at = now() WHERE id = %s", [other]).rowcount
            == 0
        )
        with closing(psycopg.connect(store.url, autocommit=True)) as owner:
            silent = "UPDATE trinity.worker SET heartbeat_at = now() - interval '31 s' WHERE id = %s"
            owner.execute(silent, [other])
        assert session.execute(take, [group]).rowcount == 1, "what a worker held that is gone is given back"
        ready = "UPDATE trinity.rollout_group SET state = 'ready' WHERE id = %s"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute(ready, [group])


def test_a_labeller_gives_rewards_by_the_command(store: Store) -> None:
    row = store.value("SELECT min(id) FROM experience WHERE rollout_id IS NOT NULL AND state = 'trained'")
    url = by_login(store.url, name("labeller"))
    ended = store.run("reward", str(row), "0.25", "--by", "ann", TRINITY_DB_URL=url)
    assert ended.code == 0, ended.stderr
    said = "SELECT value FROM reward_event WHERE created_by = 'ann'"
    assert store.value(said) == 0.25
    for login, code in (("reader", 1), ("trainer", 1), ("explorer", 1)):
        refused = store.run("reward", str(row), "0.5", TRINITY_DB_URL=by_login(store.url, name(login)))
        assert (refused.code, len(refused.error_lines)) == (code, 1), refused.stderr
    assert store.value("SELECT count(*) FROM reward_event WHERE source <> 'score'") == 1


def test_a_reader_s_address_is_one_that_sql_takes(store: Store) -> None:
    reading = {"TRINITY_DB_READ_URL": by_login(store.url, name("reader"))}
    assert store.run("sql", "SELECT count(*) FROM experience_view", **reading).code == 0
    assert store.run("status", "apart", **reading).code == 0
    ended = store.run("sql", "SELECT 1", TRINITY_DB_READ_URL=by_login(store.url, name("explorer")))
    assert (ended.code, "may write" in ended.stderr) == (1, True)


def test_an_upgrade_leaves_the_roles_their_rights(store: Store) -> None:
    assert store.run("db", "upgrade").code == 0
    with closing(psycopg.connect(by_login(store.url, name("explorer")))) as session:
        session.execute("SELECT FROM trinity.experience_view")
        session.execute("UPDATE trinity.worker SET heartbeat_at = now()")
