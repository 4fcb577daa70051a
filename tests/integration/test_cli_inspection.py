"""What db, sql, status and show make of a store; as processes they are in acceptance/."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from psycopg.types.json import Jsonb

from tests.support.command_line import CommandLine, Done
from tests.support.postgres import by_login, execute, new_database
from tests.support.replays import adopted
from tests.support.rows import Scene, demonstration, import_records, preference, reward, trajectory
from trinity_db import schema
from trinity_db.config.shared import ScratchConfig
from trinity_db.insight.show import NO_FOLDER
from trinity_db.models import build_scratch, load_tokenizer
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import Outcome, WorkerRole
from trinity_db.store import instances, processing, rewards
from trinity_db.store.custom_samplers import Choice
from trinity_db.store.metrics import record_metrics
from trinity_db.store.stratified_allocation import BatchShare
from trinity_db.store.user_query import OwnSelect
from trinity_db.trainer.checkpoints import folder


@pytest.fixture
def run(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Runs a command line on the database at a URL; what only looks has its reader's."""

    def run(url: str, *arguments: str) -> Done:
        monkeypatch.setenv("TRINITY_DB_URL", url)
        monkeypatch.setenv("TRINITY_DB_READ_URL", by_login(url))
        return command_line(*arguments)

    return run


@pytest.fixture
def output(run: CommandLine) -> Callable[..., str]:
    """What a command that succeeds prints."""

    def output(url: str, *arguments: str) -> str:
        return run(url, *arguments).output

    return output


@pytest.fixture
def complaint(run: CommandLine) -> Callable[..., str]:
    """The one line with which a command fails."""

    def complaint(url: str, *arguments: str) -> str:
        done = run(url, *arguments)
        assert done.stdout == ""
        return done.complaint

    return complaint


Say = Callable[..., str]


@pytest.fixture(scope="module")
def url(server: str, template: str) -> Iterator[str]:
    """A store for tests that read: a trained group with experiences 1 and 2, the second corrected later,
    and a ready group with 3 and 4 and a dropped 5.
    """
    with new_database(server, template) as url, closing(Database(url)) as database:
        scene = Scene.open(database, "first")
        scene.make_ready(1, rewards=(1.0, 0.0))
        scene.train(step=1, size=1)
        scene.publish(1, step=1)
        scene.explore(1, rewards=(1.0, 0.0, 0.5))
        drop_last(scene)
        scene.judge(processing.SCORE)
        scene.settle()
        with database.transaction() as tx:
            rewards.record(tx, scene.run.id, "person", [reward(2, 0.25)], created_by="ann")
        scene.pair(margin=0.5)
        stop_the_clock(scene)
        yield url


def drop_last(scene: Scene) -> None:
    """Clean all that is raw, and find nothing in the last row."""
    with scene.database.transaction() as tx:
        claimed = processing.claim(tx, processing.CLEAN, scene.run.id, scene.processor, limit=10)
        *verdicts, last = [processing.StepVerdict(row["id"], row["attempt"]) for row in claimed]
        empty = processing.StepVerdict(last.id, last.attempt, Outcome.DROPPED, "empty", {"characters": 0})
        processing.finish(
            tx, processing.CLEAN, scene.run.id, scene.processor, [*verdicts, empty], max_attempts=3
        )


def stop_the_clock(scene: Scene) -> None:
    """Everything happens just now, for as long as the tests take; but the processor was killed, and a second
    explorer said goodbye.
    """
    second = scene.new_worker(WorkerRole.EXPLORE)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.rollout SET finished_at = now() + interval '1 day'")
        tx.execute("UPDATE trinity.batch SET committed_at = now() + interval '1 day'")
        tx.execute("UPDATE trinity.worker SET heartbeat_at = now() + interval '29 s'")
        killed = "UPDATE trinity.worker SET heartbeat_at = now() - interval '31 s' WHERE id = %s"
        tx.execute(killed, [scene.processor])
        tx.execute("UPDATE trinity.worker SET stopped_at = now() WHERE id = %s", [second])


@pytest.mark.parametrize(
    "arguments", [("sql", "SELECT 1"), ("status",), ("show", "1"), ("db", "init"), ("db", "upgrade")]
)
def test_a_newer_schema_stops_the_command(
    database_url: str, complaint: Say, arguments: tuple[str, ...]
) -> None:
    execute(database_url, "UPDATE trinity.schema_version SET version_num = '9999'")
    line = complaint(database_url, *arguments)
    assert line.startswith("The database's schema is 9999, newer than this trinity-db knows (")


@pytest.mark.parametrize("arguments", [("sql", "SELECT 1"), ("status",), ("show", "1")])
def test_a_database_without_a_store_names_the_command_that_makes_one(
    database_url: str, complaint: Say, arguments: tuple[str, ...]
) -> None:
    execute(database_url, "DROP SCHEMA trinity CASCADE")
    assert complaint(database_url, *arguments) == (
        "The database has no trinity-db schema yet; run: trinity-db db init"
    )


def test_a_server_that_does_not_answer_is_named(complaint: Say) -> None:
    line = complaint("postgresql://someone:secret@127.0.0.1:1/nowhere", "status")
    assert "postgresql://someone:***@127.0.0.1:1/nowhere" in line


@pytest.mark.parametrize("arguments", [("status",), ("db", "check"), ("db", "init"), ("sql", "SELECT 1")])
@pytest.mark.parametrize(
    "address",
    [
        "host=127.0.0.1 port=1 password='secret'",
        "postgresql://127.0.0.1:1/x?password=secret",
        "postgresql://me:se%cret",
    ],
)
def test_no_command_prints_a_password(complaint: Say, address: str, arguments: tuple[str, ...]) -> None:
    assert "cret" not in complaint(address, *arguments)


def test_upgrade_leaves_a_store_that_is_up_to_date(url: str, output: Say) -> None:
    found = output(url, "sql", "SELECT version_num FROM schema_version", "--format", "csv").split()[1]
    assert output(url, "db", "upgrade") == f"The schema was {found} and is now {found}.\n"


def test_start_and_stop_leave_a_server_of_others_alone(url: str, output: Say, complaint: Say) -> None:
    assert output(url, "db", "url") == f"{url}\n"
    assert complaint(url, "db", "stop").startswith("db stop needs the embedded server")
    assert complaint(url, "db", "start").startswith("db start needs the embedded server")


def test_json_streams_all_rows(url: str, output: Say) -> None:
    query = "SELECT g AS n, g / 2.0 AS half FROM generate_series(1, 3000) g;"
    shown = output(url, "sql", query, "--format", "json")
    assert json.loads(shown)[-1] == {"n": 3000, "half": 1500}
    assert len(shown.splitlines()) == 3002


def test_columns_of_one_name_are_told_apart(url: str, output: Say) -> None:
    assert output(url, "sql", "SELECT 1 AS a, 2 AS a", "--format", "csv") == "a,a_2\n1,2\n"


def test_a_result_without_rows_has_its_columns(url: str, output: Say) -> None:
    assert output(url, "sql", "SELECT id, state FROM run WHERE false", "--format", "csv") == "id,state\n"


def test_any_statement_that_returns_rows_may_be_asked(url: str, output: Say) -> None:
    assert "trinity, public" in output(url, "sql", "SHOW search_path")
    assert "Scan" in output(url, "sql", "EXPLAIN SELECT * FROM experience")
    assert "%s %(name)s" in output(url, "sql", "SELECT '%s %(name)s'")


def test_parquet_goes_to_a_file_with_its_types(url: str, output: Say, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    query = "SELECT id, state, reward, held_out, created_at, 1.5::numeric(5, 2) AS price FROM experience"
    assert output(url, "sql", query, "--format", "parquet", "--output", str(file)) == ""
    table = pq.read_table(file)
    types = ["int64", "string", "double", "bool", "timestamp[us, tz=UTC]", "decimal128(5, 2)"]
    assert [str(field.type) for field in table.schema] == types
    assert sorted(table["id"].to_pylist()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DELETE FROM experience", "cannot execute DELETE in a read-only transaction (--write allows it)"),
        ("CREATE TABLE public.mine (id int)", "cannot execute CREATE TABLE in a read-only transaction"),
        ("DO $$ BEGIN SET TRANSACTION READ WRITE; DELETE FROM run; END $$", "must be set before any query"),
        ("DO $$ BEGIN RESET ROLE; DELETE FROM run; END $$", "cannot execute DELETE in a read-only"),
        (
            "DO $$ BEGIN COPY (SELECT 1) TO PROGRAM 'true'; END $$",
            "permission denied to COPY to or from an ext",
        ),
        ("DO $$ BEGIN SET ROLE postgres; END $$", 'permission denied to set role "postgres"'),
        ("LOCK TABLE experience IN SHARE MODE", "permission denied"),
        ("SELECT FROM run FOR SHARE", "cannot execute SELECT FOR SHARE in a read-only transaction"),
        ("COPY run TO '/tmp/runs'", "permission denied"),
        ("SELECT 1; DELETE FROM run", "The query contains several statements; run them one at a time."),
    ],
)
def test_the_database_refuses_to_write(url: str, complaint: Say, statement: str, reason: str) -> None:
    assert reason in complaint(url, "sql", statement)


def test_reads_come_from_a_login_that_may_only_read(url: str, output: Say) -> None:
    shown = output(url, "sql", "SELECT session_user, current_user", "--format", "csv")
    assert shown.split()[1] == "reader,reader"


def test_a_login_that_may_write_is_no_reader(
    database_url: str, run: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(database_url, "CREATE ROLE {} LOGIN", "a_writer")
    execute(database_url, "CREATE ROLE {} LOGIN IN ROLE {}", "a_member", "a_writer")
    execute(database_url, "GRANT USAGE ON SCHEMA trinity TO {}", "a_writer")
    execute(database_url, "GRANT SELECT ON trinity.schema_version TO {}", "a_writer")
    execute(database_url, "GRANT UPDATE (seed) ON trinity.run TO {}", "a_writer")
    try:
        for login, why in (
            ("postgres", "is a superuser"),
            ("a_writer", "may write"),
            ("a_member", "may write"),
        ):
            monkeypatch.setattr(
                "tests.integration.test_cli_inspection.by_login", partial(by_login, login=login)
            )
            done = run(database_url, "sql", "SELECT 1")
            assert str(done.code).startswith(f"error: Login '{login}' {why}, so the server would not keep")
            assert "TRINITY_DB_READ_URL" in str(done.code)
        assert run(database_url, "sql", "--write", "SELECT 1").code == 0
    finally:
        execute(database_url, "DROP OWNED BY {}", "a_writer")
        execute(database_url, "DROP ROLE {}, {}", "a_writer", "a_member")


def test_a_write_that_is_allowed_stays(database_url: str, run: CommandLine, output: Say) -> None:
    insert = "INSERT INTO taskset (name) SELECT 'set ' || n FROM generate_series(1, 1500) n RETURNING id"
    # Also where the table shows only some of the rows that it returns.
    done = run(database_url, "sql", "--write", insert)
    assert (done.code, done.stderr) == (0, "The first 1000 of 1500 rows; use --format csv for all.\n")
    assert output(database_url, "sql", "--write", "DELETE FROM taskset WHERE id > 1") == "DELETE 1499\n"
    assert output(database_url, "sql", "SELECT count(*) FROM taskset", "--format", "csv") == "count\n1\n"


def test_a_failed_write_leaves_nothing(database_url: str, output: Say, complaint: Say) -> None:
    insert = "INSERT INTO taskset (name) SELECT 'same' FROM generate_series(1, 2)"
    assert "duplicate key" in complaint(database_url, "sql", "--write", insert)
    assert output(database_url, "sql", "SELECT name FROM taskset", "--format", "csv") == "name\n"


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        (
            "SELECT id,\n  rewrad\nFROM experience",
            'column "rewrad" does not exist (line 2: rewrad)',
        ),
        ("SELECT 'ä', 1 +", "syntax error at end of input (line 1: SELECT 'ä', 1 +)"),
        ("SELECT 1 / 0", "division by zero"),
        (" ", "The query is empty."),
    ],
)
def test_a_mistake_is_shown_with_its_line(url: str, complaint: Say, statement: str, line: str) -> None:
    assert complaint(url, "sql", statement) == line


def test_a_statement_that_takes_too_long_is_cancelled(url: str, complaint: Say) -> None:
    line = complaint(url, "sql", "SELECT pg_sleep(60)", "--timeout", "0.1")
    assert line == "canceling statement due to statement timeout (--timeout is 0.1 seconds)"


def test_status_has_a_line_for_each_run(url: str, output: Say) -> None:
    header, _, line = output(url, "status").splitlines()
    counts = ["waiting", "ready", "leased", "trained", "gone"]
    assert header.split() == ["run", "state", "version", *counts]
    # The processor has been silent for too long.
    assert line.split() == ["first", "active:", "explore,", "train", "1", *"02021"]


def test_a_data_set_is_told_from_a_run(database_url: str, output: Say) -> None:
    execute(database_url, "INSERT INTO trinity.run (name, kind, config) VALUES ('set', 'data', '{{}}')")
    assert output(database_url, "status").splitlines()[2].split() == ["set", "data", "set", *"00000"]


def test_status_without_runs_says_how_to_get_one(database_url: str, output: Say) -> None:
    assert output(database_url, "status") == "There are no runs yet; trinity-db demo makes one.\n"
    assert json.loads(output(database_url, "status", "--json")) == []


def test_status_shows_writes_that_came_too_late(database_url: str, output: Say) -> None:
    with closing(Database(database_url)) as database:
        scene = Scene.open(database, "late")
        scene.explore(1)
        assert "late writes" not in output(database_url, "status", "late")
        with database.transaction() as tx:
            tx.execute(
                "INSERT INTO trinity.rollout (run_id, group_id, ordinal, attempt, state)"
                " SELECT run_id, group_id, ordinal, attempt + 1, 'refused' FROM trinity.rollout"
            )
            tx.execute(
                "INSERT INTO trinity.processing"
                " (experience_id, processor, processor_version, attempt, outcome)"
                " SELECT min(id), 'clean', 1, 1, 'refused' FROM trinity.experience"
            )
            for step in (1, 2, 2):
                record_metrics(tx, scene.run.id, WorkerRole.TRAIN, step, {"refused/batches": 1.0})
    assert "3 batches, 2 rollouts, 1 processing" in output(database_url, "status", "late")
    status = json.loads(output(database_url, "status", "late", "--json"))
    assert status["refused"] == {"rollouts": 2, "processing": 1, "batches": 3}


def test_status_says_whose_rewards_a_run_waits_for_and_a_view_for_which_rows(
    database_url: str, output: Say
) -> None:
    view = (
        "SELECT experience_id, group_id, source, prompt, response FROM trinity.awaited_reward_view ORDER BY 1"
    )
    with closing(Database(database_url)) as database:
        scene = Scene.open(database, "asks")
        scene.explore(3)
        scene.judge(processing.CLEAN)
        scene.judge(processing.SCORE, limit=5)
        assert "waits for" not in output(database_url, "status", "asks"), "nothing is required"
        assert json.loads(output(database_url, "status", "asks", "--json"))["awaited"] is None
        execute(database_url, """UPDATE trinity.run SET config = '{{"requires_reward": "human"}}'""")
        about = scene.values("SELECT rollout_id FROM trinity.experience ORDER BY id")
        with database.transaction() as tx:
            rewards.record(tx, scene.run.id, "human", [reward(of, 1.0, "human") for of in about[:2]])
            rewards.record(tx, scene.run.id, "robot", [reward(about[2], 1.0, "robot")])
        groups = scene.values("SELECT id FROM trinity.rollout_group ORDER BY id")
        waiting = scene.rows(
            "SELECT id, group_id FROM trinity.experience WHERE state = 'scored' ORDER BY id"
        )[2:]
        assert [group for _, group in waiting] == [groups[1], groups[1], groups[2]]
        said = [("human", "prompt", response) for response in ("1.0", "0.0", "1.0")]
        assert scene.rows(view) == [(*row, *text) for row, text in zip(waiting, said, strict=True)]
        assert "rewards from human: 3 experiences in 2 groups" in output(database_url, "status", "asks")
        status = json.loads(output(database_url, "status", "asks", "--json"))
        assert status["awaited"] == {"source": "human", "experiences": 3, "groups": 2}
        execute(database_url, "UPDATE trinity.run SET state = 'finished', finished_at = now()")
        assert scene.rows(view) == [], "a run that has ended waits for no worker"


def test_status_says_which_part_of_its_sampler_a_step_waits_for(database_url: str, output: Say) -> None:
    parts = (BatchShare("again"), BatchShare("fresh", 3))
    select = OwnSelect("select id, 1 as weight, 'fresh' as part from drawable", 5.0, "sampler")
    with closing(Database(database_url)) as database:
        scene = Scene.open(database, "shares")
        config = {"sampler": {"name": "mix", "parts": {"again": {}, "fresh": {}}}}
        with database.transaction() as tx:
            tx.execute("UPDATE trinity.run SET config = %s", [Jsonb(config)])
        scene.make_ready(4)
        assert "sampler" not in output(database_url, "status", "shares")
        assert scene.draw(1, size=4, sampler=Choice("mix", select, parts, fill=False)) is None
        said = output(database_url, "status", "shares")
        assert "the next step waits for 1 more groups of again" in said
        assert json.loads(output(database_url, "status", "shares", "--json"))["missing"] == {"again": 1}
        scene.train(step=1, size=4)
        assert json.loads(output(database_url, "status", "shares", "--json"))["missing"] is None


def test_status_says_how_many_rows_of_a_run_that_learns_from_labels_have_none(
    database_url: str, output: Say
) -> None:
    with closing(Database(database_url)) as database:
        attempts = [trajectory(0, "a", 0.0), trajectory(1, "b"), trajectory(2, "c")]
        import_records(database, "attempts", attempts)
        run = Scene.open(database, "labels", data=["attempts"], algorithm="kto")
        Scene.open(database, "imitation", data=["attempts"])
        assert json.loads(output(database_url, "status", "labels", "--json"))["unlabelled"] == 2
        assert json.loads(output(database_url, "status", "imitation", "--json"))["unlabelled"] == 0
        assert "a reward, good or bad: 2 experiences" in output(database_url, "status", "labels")
        finished = "UPDATE trinity.run SET state = '{}', finished_at = {} WHERE name = 'labels'"
        execute(database_url, finished.format("finished", "now()"))
        assert "waits for" not in output(database_url, "status", "labels"), (
            "a run that has ended waits for no worker"
        )
        execute(database_url, finished.format("active", "NULL"))
        about = run.values("SELECT id FROM trinity.rollout ORDER BY id")
        with database.transaction() as tx:
            rewards.record(tx, run.run.id, "person", [reward(rollout_id, 0.0) for rollout_id in about])
        assert "waits for" not in output(database_url, "status", "labels")


def test_status_says_how_far_engine_and_trainer_are_apart(database_url: str, output: Say) -> None:
    with closing(Database(database_url)) as database:
        scene = Scene.open(database, "new")
        assert json.loads(output(database_url, "status", "new", "--json"))["sampling"] is None
        for step, outside in ((1, 0.5), (2, 0.015)):
            measured = {
                "sampling/engine_ratio_outside": outside,
                "sampling/engine_logp_difference/mean": 0.002,
            }
            scene.record(step, measured)
        scene.record(3, {"loss": 1.0})  # on rows of older versions
        said = output(database_url, "status", "new")
        assert "differ by 0.002 nats per token, 1.5% of the tokens outside 0.8 to 1.2, at step 2" in " ".join(
            said.split()
        )


def test_status_says_which_side_waits_since_the_oldest_of_the_latest_batches(
    database_url: str, output: Say
) -> None:
    with closing(Database(database_url)) as database:
        scene = Scene.open(database, "waits")
        assert json.loads(output(database_url, "status", "waits", "--json"))["waiting"] == {
            "trainer": None,
            "explorers": None,
            "max_staleness": None,
        }
        scene.make_ready(3)
        for step in (1, 2, 3):
            scene.train(step, size=1)
            scene.record(step, {"time/wait_for_batch": 2.0 * step, "step_time": 8.0})
        for waited, role in ((1.0, WorkerRole.EXPLORE), (3.0, WorkerRole.EXPLORE), (9.0, WorkerRole.PROCESS)):
            scene.record(0, {"explore/wait_for_training": waited, "explore/time": 10.0}, role)
        waiting = json.loads(output(database_url, "status", "waits", "--json"))["waiting"]
        assert waiting == {"trainer": 12 / 24, "explorers": 4 / 20, "max_staleness": None}
        assert "trainer 50% of its time for rollouts" in output(database_url, "status", "waits")


def test_status_of_a_run_as_json(url: str, output: Say) -> None:
    status = json.loads(output(url, "status", "first", "--json"))
    assert [status[name] for name in ("run", "policy_version", "step")] == ["first", 1, 1]
    assert status["experiences"] == {"trained": 2, "ready": 2, "dropped": 1}
    assert status["groups"] == {"trained": 1, "ready": 1}
    assert status["preferences"] == {"ready": 2}
    alive = {worker["role"]: worker["alive"] for worker in status["workers"]}
    assert alive == {"explore": True, "process": False, "train": True}
    assert status["staleness"] == {"batches": 1, "mean": 0.0, "max": 0}
    # Five rollouts and two trained rows in a minute.
    rates = {"seconds": 60, "rollouts_per_second": 0.08, "trained_rows_per_second": 0.03}
    assert status["rates"] == rates
    names = ("version", "experiences", "reward", "reward_now")
    rewards = [tuple(of[name] for name in names) for of in status["rewards"]]
    assert rewards == [(1, 0, None, None), (0, 5, 0.5, (1.0 + 0.25 + 1.0 + 0.0) / 4)]
    drop = {
        "stage": "clean",
        "step": None,
        "reason": "empty",
        "experiences": 1,
        "groups": 0,
        "preferences": 0,
    }
    assert status["drops"] == [drop]


def test_status_of_a_run_for_people(url: str, output: Say) -> None:
    shown = output(url, "status", "first")
    for fact in (
        "first (train, active)",
        "2 trained",
        "version 1, step 1",
        "mean 0.00, max 0 in the last 1 batches",
        "0.08 rollouts/s, 0.03 trained rows/s",
        "version 0: 0.500 at training, 0.562 now, experiences 5",
        "version 1: no rollouts",
        "empty (clean): experiences 1",
        "silent for",
    ):
        assert fact in shown


def test_status_estimates_the_disk_that_a_run_uses_by_family_of_tables(url: str, output: Say) -> None:
    disk = json.loads(output(url, "status", "first", "--json"))["disk"]
    assert {family: found["rows"] for family, found in disk["tables"].items()} == {
        "hot rows": 5,
        "text": 5,
        "payloads": 5,
        "processing": 9,
        "batches": 1,
        "batch items": 2,
        "metrics": 0,
    }
    assert all(found["bytes"] > 40 * found["rows"] for found in disk["tables"].values() if found["rows"])
    assert "payloads: about 5 rows, 0.0 MB" in output(url, "status", "first")


def test_the_estimate_of_a_large_run_is_near_the_truth(database_url: str, output: Say) -> None:
    with closing(Database(database_url)) as database:
        scene = Scene.open(database, "large")
        scene.make_ready(1)
        others = Scene.open(database, "other")
        others.make_ready(3)
        with database.transaction() as tx:
            tx.execute(MANY_ROWS, [scene.run.id])
        tables = json.loads(output(database_url, "status", "large", "--json"))["disk"]["tables"]
        truth = "SELECT octet_length(data) FROM trinity.payload WHERE experience_id > 1000"
        num_bytes = sum(scene.values(truth))
    assert tables["hot rows"]["rows"] == tables["text"]["rows"] == 6002
    assert 2700 < tables["payloads"]["rows"] < 3300, "every second one has arrays"
    found = tables["payloads"]["bytes"] / tables["payloads"]["rows"]
    assert 0.95 < found / (num_bytes / 3000) < 1.25, "bytes a row; chance chose the rows"


MANY_ROWS = """
WITH made AS (
    INSERT INTO trinity.experience (id, run_id, state) OVERRIDING SYSTEM VALUE
    SELECT n, %s, 'dropped' FROM generate_series(1001, 7000) n RETURNING id
),
texts AS (
    INSERT INTO trinity.experience_text (experience_id, prompt, response)
    SELECT id, 'prompt', 'response' FROM made
)
INSERT INTO trinity.payload (experience_id, codec, num_tokens, data)
SELECT id, 'codec', 1, convert_to(repeat('x', 500 + (id %% 1000)::integer), 'UTF8')
FROM made WHERE id %% 2 = 0
"""


def test_status_sees_checkpoints_only_in_folders_that_name_the_run(
    database_url: str, output: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path))
    with closing(Database(database_url)) as database:
        scene = Scene.open(database, "saves")
        with database.transaction() as tx:
            instance = instances.identify(tx)
        own = folder.claim(
            tmp_path / "checkpoints" / "saves", {"store": str(instance.id)} | scene.run.identity
        )
        strange = tmp_path / "elsewhere" / "version-000001"
        for place in (own.version_folder(1), strange):
            place.mkdir(parents=True)
            (place / "weights").write_bytes(bytes(3_000_000))
        with database.transaction() as tx:
            tx.execute("UPDATE trinity.policy_version SET checkpoint = %s", [str(strange)])
        used = json.loads(output(database_url, "status", "saves", "--json"))["disk"]["checkpoint_bytes"]
        assert 3_000_000 <= used < 3_010_000
        assert "checkpoint files: 3.0 MB" in output(database_url, "status", "saves")


def test_a_run_that_is_not_there_has_a_neighbour(url: str, complaint: Say) -> None:
    assert complaint(url, "status", "frist") == "There is no run 'frist'; did you mean 'first'?"


def test_watch_needs_a_terminal(url: str, run: CommandLine) -> None:
    done = run(url, "status", "--watch")
    assert done.code == 2
    assert "--watch needs a terminal" in done.stderr


def test_show_has_everything_about_an_experience(url: str, output: Say) -> None:
    shown = json.loads(output(url, "show", "2", "--json"))
    facts = {"id": 2, "run": "first", "state": "trained", "reward": 0.25, "staleness_now": 1, "use_count": 1}
    assert {name: shown[name] for name in facts} == facts
    assert shown["task_payload"] == {"prompt": "task 0", "answer": "0"}
    assert (shown["prompt"], shown["response"]) == ("prompt", "0.0")
    assert shown["tokens"] == {
        "token_ids": [0, 1, 2, 3, 4],
        "action_mask": [0, 0, 0, 1, 1],
        "logprobs": [-1.0, -0.5],
        "versions": [0, 0],
        "temperatures": None,
        "texts": None,
        "no_texts": NO_FOLDER,
    }
    events = [(event["source"], event["value"], event["latest"]) for event in shown["rewards"]]
    assert events == [("score", 0.0, False), ("person", 0.25, True)]
    steps = [(step["processor"], step["outcome"]) for step in shown["processing"]]
    assert steps == [("clean", "passed"), ("score", "passed")]
    [pair] = shown["preferences"]
    assert (pair["chosen_id"], pair["rejected_id"], pair["margin"]) == (1, 2, 0.75)
    # What the batch used is what the reward was then.
    [batch] = shown["batches"]
    used = [
        batch[name] for name in ("step", "included_version", "reward", "advantage", "staleness", "weight")
    ]
    assert used == [1, 1, 0.0, -0.5, 0, 1.0]


def test_show_of_an_adopted_row_has_what_was_said_of_the_one_it_comes_from(
    database_url: str, output: Say
) -> None:
    with closing(Database(database_url)) as database:
        import_records(database, "set", [demonstration(0)])
        scene = Scene.open(database, data=["set"])
        row, copy = scene.values("SELECT id FROM trinity.experience ORDER BY id")
        with database.transaction() as tx:
            for about, value in ((row, 0.25), (copy, 0.5)):
                rewards.judge(tx, [rewards.Judgement(about, value, "taste", "human", "ann", 1.0)])
    shown = json.loads(output(database_url, "show", str(copy), "--json"))
    assert shown["reward"] == 0.5
    assert [(event["value"], event["latest"]) for event in shown["rewards"]] == [(0.25, False), (0.5, True)]


def test_show_says_why_a_row_was_dropped(url: str, output: Say) -> None:
    shown = json.loads(output(url, "show", "5", "--json"))
    assert shown["state"] == "dropped"
    [drop] = shown["drops"]
    assert (drop["stage"], drop["reason"], drop["detail"]) == ("clean", "empty", {"characters": 0})


def test_show_lists_the_trained_tokens(url: str, output: Say) -> None:
    shown = output(url, "show", "2")
    lines = [line.split() for line in shown[shown.index("\ntokens\n") :].splitlines()]
    assert lines[4:] == [
        ["0-2", "0", "1", "2", "masked"],
        ["3", "3", "-1.0", "0"],
        ["4", "4", "-0.5", "0"],
        f"Texts are missing: {NO_FOLDER}".split(),
    ]


def test_show_tells_the_text_of_tokens_by_the_tokenizer_of_the_run(
    database_url: str, output: Say, tmp_path: Path
) -> None:
    build_scratch(ScratchConfig(alphabet="ab \n", hidden_size=8, layers=1, heads=1), 0, tmp_path / "model")
    with closing(Database(database_url)) as database:
        scene = Scene.open(database, "told")
        scene.make_ready(1)
        with database.transaction() as tx:
            config = json.dumps({"model": {"path": str(tmp_path / "model")}})
            tx.execute("UPDATE trinity.run SET config = config || %s::jsonb", [config])
            tx.execute("UPDATE trinity.policy_version SET checkpoint = %s", [str(tmp_path / "model")])
        of = scene.values("SELECT min(id) FROM trinity.experience")[0]
    shown = json.loads(output(database_url, "show", str(of), "--json"))
    assert shown["tokens"]["no_texts"] == NO_FOLDER, "only the store names the folder"
    owner = {"store": "s", **scene.run.identity}
    (tmp_path / "run.json").write_text(json.dumps(owner))
    tokens = json.loads(output(database_url, "show", str(of), "--json"))["tokens"]
    tokenizer = load_tokenizer(tmp_path / "model")
    assert tokens["texts"] == [tokenizer.decode([token]) for token in tokens["token_ids"]]
    assert len(set(tokens["texts"])) == 5
    shown = output(database_url, "show", str(of), "--tokens", "2")
    masked, trained, more = shown[shown.index("\ntokens\n") :].splitlines()[4:]
    assert masked.split()[0] == "0-2"
    assert json.dumps("".join(tokens["texts"][:3])) in masked
    assert masked.rstrip().endswith("masked")
    assert json.dumps(tokens["texts"][3]) in trained
    assert more == "1 more rows of tokens: use --tokens 3"
    assert "\ntokens\n" not in output(database_url, "show", str(of), "--tokens", "0")


def test_status_of_a_run_that_trained_on_pairs_counts_pairs(database_url: str, output: Say) -> None:
    with closing(Database(database_url)) as database:
        import_records(database, "pairs", [preference(number) for number in range(3)])
        run = adopted(Scene.open(database), "dpo", "pairs")
        run.commit(run.draw_pairs(1, 2))
        run.record(1, {"loss": 0.6931})
        run.publish(0, step=0)
        run.publish(1, step=1)
        execute(database_url, "UPDATE trinity.run SET state = 'finished', finished_at = now()")
    *_, line = output(database_url, "status").splitlines()
    assert line.split() == ["dpo", "finished", "(pairs):", "explore,", "process,", "train", "1", *"01020"]
    shown = output(database_url, "status", "dpo")
    assert "1 ready, 2 trained" in shown
    assert "version 1: no rollouts, loss 0.6931 at step 1" in shown
    assert "not scored" not in shown


def test_status_of_a_run_that_ended_before_its_last_rollouts_were_scored_says_so(
    database_url: str, output: Say
) -> None:
    with closing(Database(database_url)) as database:
        Scene.open(database, "brief").explore(1)
    assert "version 0: not scored yet, experiences 2" in output(database_url, "status", "brief")
    execute(database_url, "UPDATE trinity.run SET state = 'finished', finished_at = now()")
    said = "version 0: not scored before the run's end, experiences 2"
    assert said in output(database_url, "status", "brief")


def test_tables_fit_80_columns(database_url: str, output: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"a-run-whose-name-says-all-that-was-changed-in-it-{seed}" for seed in ("one", "two")]
    with closing(Database(database_url)) as database:
        for name in names:
            scene = Scene.open(database, name)
            scene.make_ready(2)
            scene.train(1, 1)
            scene.publish(1, 1)
            scene.draw(2, 1)
        of = scene.values("SELECT max(id) FROM trinity.experience")[0]
    monkeypatch.setenv("COLUMNS", "80")
    shown = {
        command: output(database_url, *command.split())
        for command in ("status", f"status {names[0]}", f"batches {names[0]}", f"show {of}", f"reward {of} 1")
    }
    wide = {command: max(map(len, text.splitlines())) for command, text in shown.items()}
    assert {command: width for command, width in wide.items() if width > 80} == {}
    lines = [line for line in shown["status"].splitlines() if line.startswith("a-run-")]
    assert [line.split()[0][-4:] for line in lines] == ["-one", "-two"], "names are told apart"
    left_out = "drawn, sampler. --json prints all."
    assert left_out in shown[f"batches {names[0]}"]
    newest, _ = [line for line in shown[f"batches {names[0]}"].splitlines() if line[0] in " 1234567890"]
    assert newest.split()[-1] == "leased", "what is not committed says so"


def test_show_of_a_row_without_tokens_leaves_them_out(database_url: str, output: Say) -> None:
    execute(database_url, "INSERT INTO trinity.run (name, kind, config) VALUES ('set', 'data', '{{}}')")
    execute(
        database_url, "INSERT INTO trinity.experience (run_id, state) SELECT id, 'ready' FROM trinity.run"
    )
    assert "tokens" not in output(database_url, "show", "1")


def test_an_experience_that_is_not_there_is_one_line(url: str, complaint: Say) -> None:
    number = str(2**63 - 1)
    assert complaint(url, "show", number) == f"There is no experience {number}."


@pytest.mark.parametrize("command", [("show", "1"), ("status",), ("sql", "SELECT 1"), ("batches", "run")])
def test_a_reader_of_another_schema_hears_which_command_mends_it(
    database_url: str, complaint: Say, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(schema, "HEAD", "0999")
        assert "run: trinity-db db upgrade" in complaint(database_url, *command)
    execute(database_url, "UPDATE trinity.schema_version SET version_num = '9999'")
    assert "newer than this trinity-db" in complaint(database_url, *command)
    execute(database_url, "REVOKE ALL ON trinity.schema_version FROM trinity_reader")
    assert "GRANT trinity_reader" in complaint(database_url, *command)
