"""Migrations, on the newest and the oldest server: up, down and up again, and equal to the models."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.exc import InternalError
from sqlalchemy.pool import NullPool

from tests.postgres import execute, new_database
from tests.rows import Scene
from tests.waiting import wait_until
from trinity_db import database, opening, schema, upgrades
from trinity_db.errors import SchemaMismatch, TrinityError
from trinity_db.schema.models import metadata
from trinity_db.schema.queries import query
from trinity_db.service import LEASE_SECONDS

ROOT = Path(__file__).parents[2]
VIEWS = {
    "agreement_view",
    "awaited_reward_view",
    "batch_view",
    "dispute_view",
    "drop_view",
    "evaluation_task_view",
    "evaluation_view",
    "experience_view",
    "failure_view",
    "lease_view",
    "overlap_view",
    "origin_view",
    "parked_view",
    "policy_progress",
    "reward_change_view",
    "reward_part_view",
    "run_view",
    "setting_view",
    "state_time_view",
    "verdict_agreement_view",
    "verdict_view",
}

# Everything that makes up a schema but rights and comments, with its definition in words.
CATALOGUE = """
SELECT 'column' AS kind, format('%I.%I', c.relname, a.attname) AS name,
       concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
                 pg_get_expr(d.adbin, d.adrelid)) AS definition
FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = to_regnamespace('trinity') AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'table', relname, concat_ws(' ', reloptions) FROM pg_class
WHERE relnamespace = to_regnamespace('trinity') AND relkind = 'r'
UNION ALL
SELECT 'view', relname, pg_get_viewdef(oid) FROM pg_class
WHERE relnamespace = to_regnamespace('trinity') AND relkind = 'v'
UNION ALL
SELECT 'sequence', relname, '' FROM pg_class
WHERE relnamespace = to_regnamespace('trinity') AND relkind = 'S'
UNION ALL
SELECT 'constraint', conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = to_regnamespace('trinity') AND contype <> 'n'
UNION ALL
SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'trinity'
UNION ALL
SELECT 'enum', t.typname, string_agg(e.enumlabel, ' ' ORDER BY e.enumsortorder)
FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid
WHERE t.typnamespace = to_regnamespace('trinity') GROUP BY t.typname
UNION ALL
SELECT 'function', proname, pg_get_functiondef(oid) FROM pg_proc
WHERE pronamespace = to_regnamespace('trinity')
"""

VISIBLE = (
    "SELECT pg_visible_in_snapshot(ready_xact::text::xid8, pg_current_snapshot()) AS is_seen FROM trinity.{}"
)

UPGRADE = """
import sys
from trinity_db import opening, upgrades
upgrades.known_versions()  # what takes long to import is imported
print("ready", flush=True)
sys.stdin.readline()
opening.upgrade(sys.argv[1])
"""


@pytest.fixture(scope="module", params=[("server", "template"), ("server15", "template15")], ids=["18", "15"])
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Each server in turn, and the name of its template with the schema at head."""
    server, template = request.param
    return request.getfixturevalue(server), request.getfixturevalue(template)


@pytest.fixture
def empty_url(place: tuple[str, str]) -> Iterator[str]:
    """A database with nothing in it."""
    with new_database(place[0], "template0") as url:
        yield url


@pytest.fixture(scope="module")
def upgraded_url(place: tuple[str, str]) -> Iterator[str]:
    """A database that was empty and is at head; the tests that look at it share it."""
    with new_database(place[0], "template0") as url:
        assert upgrades.schema_version(url) is None
        opening.upgrade(url)
        yield url


@pytest.fixture
def head_url(place: tuple[str, str]) -> Iterator[str]:
    """A database with the schema at head."""
    with new_database(*place) as url:
        yield url


def catalogue(url: str, *, without: tuple[str, ...] = ()) -> dict[tuple[str, str], str]:
    """The definition of everything in the schema, by kind and name."""
    with closing(database.connect(url)) as connection:
        connection.execute("SET search_path TO public")  # so that names are whole, whatever the database's is
        rows = connection.execute(CATALOGUE).fetchall()
    return {
        (row["kind"], row["name"]): row["definition"]
        for row in rows
        if row["kind"] not in without and not row["name"].startswith("alembic_version")
    }


def downgrade(url: str, to: str = "base") -> None:
    with opening.alembic_config(url) as config:
        command.downgrade(config, to)


def test_an_empty_database_gets_every_table_and_view(upgraded_url: str) -> None:
    assert upgrades.schema_version(upgraded_url) == schema.HEAD
    made = catalogue(upgraded_url)
    assert {name for kind, name in made if kind == "table"} == {
        table.name for table in metadata.sorted_tables
    }
    assert {name for kind, name in made if kind == "view"} == VIEWS
    assert {name for kind, name in made if kind == "function"} == {
        "adoptable_rows",
        "cell_bits",
        "chance",
        "derived_priority",
        "distance",
        "drawable",
        "drawable_groups",
        "evaluation_at",
        "evaluation_difference",
        "floor_of",
        "follow_labels",
        "is_alive",
        "is_awaited",
        "is_learned_from",
        "kept_for",
        "kept_until",
        "key",
        "label_in",
        "lineage",
        "oldest_within",
        "parked_members",
        "pass_at",
        "probes",
        "question",
        "reward_at_training",
        "reward_in",
        "reward_share",
        "side_in",
        "staleness",
        "unbroken_since",
        "unit",
    }


SILENT = """
SELECT c.relname AS name FROM pg_class c
WHERE c.relnamespace = 'trinity'::regnamespace AND c.relkind IN ('r', 'v')
  AND obj_description(c.oid, 'pg_class') IS NULL
UNION ALL
SELECT format('%s.%s', c.relname, a.attname)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'trinity'::regnamespace AND c.relkind IN ('r', 'v')
  AND col_description(c.oid, a.attnum) IS NULL
UNION ALL
SELECT p.proname FROM pg_proc p
WHERE p.pronamespace = 'trinity'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL
"""


def test_every_table_column_view_and_function_says_what_it_holds(upgraded_url: str) -> None:
    with closing(database.connect(upgraded_url)) as connection:
        assert [row["name"] for row in connection.execute(SILENT)] == []
        shown = connection.execute("SELECT obj_description('trinity.run'::regclass, 'pg_class') AS said")
        assert shown.fetchone() == {"said": metadata.tables["trinity.run"].comment}


def test_a_client_finds_the_tables_without_their_schema_and_creates_its_own_elsewhere(
    upgraded_url: str,
) -> None:
    with closing(database.connect(upgraded_url)) as connection:
        connection.execute("SELECT FROM experience_view")
        assert connection.execute("SELECT current_schema() AS place").fetchone() == {"place": "public"}


def test_a_search_path_that_the_database_has_stays(empty_url: str) -> None:
    with closing(database.connect(empty_url, autocommit=True)) as connection:
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET search_path = pg_catalog'.encode())
    opening.upgrade(empty_url)
    with closing(database.connect(empty_url)) as connection:
        assert connection.execute("SHOW search_path").fetchone() == {"search_path": "pg_catalog"}


def test_upgrading_again_changes_nothing(upgraded_url: str) -> None:
    made = catalogue(upgraded_url)
    opening.upgrade(upgraded_url)
    assert catalogue(upgraded_url) == made


def test_down_to_nothing_and_up_again_is_the_same_schema(empty_url: str) -> None:
    opening.upgrade(empty_url)
    made = catalogue(empty_url)
    downgrade(empty_url)
    assert catalogue(empty_url) == {}
    assert upgrades.schema_version(empty_url) is None
    opening.upgrade(empty_url)
    assert catalogue(empty_url) == made


def test_rows_from_before_snapshots_can_be_seen_by_the_draws_that_follow(head_url: str) -> None:
    downgrade(head_url, "0001")
    execute(
        head_url,
        """
        INSERT INTO trinity.run (name, kind, config) VALUES ('old', 'train', '{{}}');
        INSERT INTO trinity.taskset (name) VALUES ('tasks');
        INSERT INTO trinity.task (taskset_id, key, payload)
        SELECT id, 'a', '{{"prompt": ""}}' FROM trinity.taskset;
        INSERT INTO trinity.rollout_group (run_id, task_id, expected, state, completed_at)
        SELECT r.id, t.id, 1, 'ready', now() FROM trinity.run r, trinity.task t;
        INSERT INTO trinity.experience (run_id, state) SELECT id, 'ready' FROM trinity.run;
        INSERT INTO trinity.experience (run_id, source_id, state)
        SELECT run_id, id, 'ready' FROM trinity.experience
        """,
    )
    opening.upgrade(head_url)
    with closing(database.connect(head_url)) as connection:
        groups = connection.execute(VISIBLE.format("rollout_group WHERE true")).fetchall()
        adopted = connection.execute(VISIBLE.format("experience WHERE source_id IS NOT NULL")).fetchall()
    assert groups == adopted == [{"is_seen": True}]


def test_the_models_ask_for_no_further_migration(upgraded_url: str) -> None:
    with opening.alembic_config(upgraded_url) as config:
        command.check(config)


def test_the_migrations_make_what_the_models_describe(place: tuple[str, str], upgraded_url: str) -> None:
    """Checks, enums, predicates of indexes and the like, which Alembic does not compare."""
    with new_database(place[0], "template0") as described:
        execute(described, "CREATE SCHEMA trinity")
        driver, connect = "postgresql+psycopg://", lambda: psycopg.connect(described)
        metadata.create_all(create_engine(driver, creator=connect, poolclass=NullPool))
        by_migrations = catalogue(upgraded_url, without=("view", "function"))
        by_models = catalogue(described)
    assert {key for key in by_migrations if by_migrations[key] != by_models.get(key)} == set()
    assert by_models.keys() == by_migrations.keys()


def test_the_version_of_the_code_is_that_of_the_newest_migration() -> None:
    scripts = ScriptDirectory(str(Path(schema.__file__).parent / "migrations"))
    assert scripts.get_heads() == [schema.HEAD]
    assert schema.HEAD in upgrades.known_versions()


def test_every_migration_says_what_it_is_for_and_whether_old_workers_may_run_on() -> None:
    scripts = ScriptDirectory(str(Path(schema.__file__).parent / "migrations"))
    for script in scripts.walk_revisions():
        first, *rest = script.longdoc.split("\n\n")
        assert first
        assert any("workers" in paragraph for paragraph in rest), script.path


def test_a_database_of_a_newer_version_is_refused_in_one_line(
    head_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(head_url, "UPDATE trinity.alembic_version SET version_num = '9999'")
    before = catalogue(head_url)
    monkeypatch.setenv("TRINITY_DB_URL", head_url)
    for refuse in (lambda: opening.upgrade(head_url), opening.open_database):
        with pytest.raises(SchemaMismatch) as error:
            refuse()
        assert str(error.value) == (
            f"The database's schema is 9999, newer than this trinity-db knows ({schema.HEAD}); "
            "run: pip install --upgrade trinity-db"
        )
    assert catalogue(head_url) == before


def test_a_database_without_a_schema_says_what_makes_one(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", empty_url)
    with pytest.raises(SchemaMismatch, match=r"no trinity-db schema yet; run: trinity-db db init"):
        opening.open_database()
    assert catalogue(empty_url) == {}


def test_two_processes_that_upgrade_at_the_same_moment_both_succeed(empty_url: str) -> None:
    upgrading = [
        subprocess.Popen(
            [sys.executable, "-c", UPGRADE, empty_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in upgrading:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in upgrading:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = [process.communicate(timeout=60)[1] for process in upgrading]
    assert [process.returncode for process in upgrading] == [0, 0], errors
    assert upgrades.schema_version(empty_url) == schema.HEAD
    assert {name for kind, name in catalogue(empty_url) if kind == "view"} == VIEWS


def test_a_migration_that_fails_leaves_the_store_as_it_was(head_url: str) -> None:
    execute(head_url, "CREATE VIEW public.mine AS SELECT id FROM trinity.run")
    before = catalogue(head_url)
    with pytest.raises(InternalError, match=r"view mine depends on table trinity\.run"):
        downgrade(head_url)
    assert catalogue(head_url) == before


AT_WORK = """
INSERT INTO trinity.run (name, kind, config, draws) VALUES ('run', 'train', '{{}}', 'rows');
INSERT INTO trinity.run_setting (run_id, config) SELECT id, config FROM trinity.run;
INSERT INTO trinity.worker (run_id, setting_id, role, host, pid, heartbeat_at)
SELECT run_id, id, 'explore', 'host', 1, clock_timestamp() - interval '1 h' FROM trinity.run_setting
"""


def value(url: str, statement: str) -> object:
    with closing(psycopg.connect(url)) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def upgrade_beside_roles(url: str) -> None:
    opening.upgrade(url, lambda lock: upgrades.make_room(lock, url, LEASE_SECONDS, lambda workers: None))


def test_a_worker_that_froze_in_the_middle_of_a_pipeline_does_not_hold_an_upgrade_up(head_url: str) -> None:
    downgrade(head_url, "0044")
    execute(head_url, AT_WORK)
    held = (
        "SELECT count(*) FROM pg_locks"
        " WHERE mode = 'RowExclusiveLock' AND relation = 'trinity.worker'::regclass"
    )
    named = "SELECT set_config('application_name', 'trinity-db worker ' || id, false) FROM trinity.worker"
    with (
        closing(database.connect(head_url)) as frozen,
        suppress(psycopg.OperationalError),  # its session is ended
        frozen.pipeline(),
    ):
        frozen.execute(named.encode())
        frozen.commit()
        frozen.execute("UPDATE trinity.worker SET heartbeat_at = heartbeat_at")
        frozen.pgconn.flush()  # without a synchronization, so that no time-out of the server runs
        wait_until(lambda: value(head_url, held) == 1, "it holds the row")
        upgrade_beside_roles(head_url)
    assert upgrades.schema_version(head_url) == schema.HEAD
    assert value(head_url, "SELECT count(*) FROM trinity.worker WHERE stopped_at IS NULL") == 0


@pytest.mark.parametrize(
    "held", ["SELECT FROM trinity.processing", "SELECT FROM trinity.worker FOR UPDATE"], ids=["table", "row"]
)
def test_an_upgrade_gives_up_what_another_session_keeps(
    head_url: str, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    downgrade(head_url, "0044")
    execute(head_url, AT_WORK)
    before = catalogue(head_url)
    monkeypatch.setattr(upgrades, "LOCK_SECONDS", 1)
    with closing(database.connect(head_url)) as other:
        other.execute(held.encode())
        holder = rf"another session held one of its tables .*session {other.info.backend_pid} of login"
        with pytest.raises(TrinityError, match=holder):
            upgrade_beside_roles(head_url)
    assert catalogue(head_url) == before


@contextmanager
def reader_with_lock(url: str, held: str) -> Iterator[database.Transaction]:
    """A session with the rights of a reader, in a transaction."""
    with closing(database.connect(url)) as reader:
        reader.execute("SET ROLE trinity_reader")
        reader.execute(held.encode())
        yield reader


UPGRADE_LOCK = "SELECT pg_advisory_lock(hashtext('trinity_db upgrade'))"


def test_a_reader_delays_no_upgrade_by_a_lock_of_its_own(
    upgraded_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrades, "LOCK_SECONDS", 1)
    with reader_with_lock(upgraded_url, UPGRADE_LOCK):
        opening.upgrade(upgraded_url)


def test_an_upgrade_that_a_reader_delays_ends_and_names_the_session(
    head_url: str, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrades, "LOCK_SECONDS", 1)
    for url, held in ((head_url, "SELECT FROM trinity.run_view"), (empty_url, UPGRADE_LOCK)):
        with reader_with_lock(url, held) as reader:
            named = (
                rf"session {reader.info.backend_pid} of login '\w+' \(trinity-db\), in a transaction since"
            )
            with pytest.raises(TrinityError, match=named):
                opening.upgrade(url)
        opening.upgrade(url)


def test_a_view_of_the_user_s_own_that_stands_in_the_way_is_named(head_url: str) -> None:
    execute(head_url, "CREATE VIEW public.mine AS SELECT id, reward FROM trinity.experience_view")
    before = catalogue(head_url)
    with pytest.raises(TrinityError, match="mine"):
        opening.upgrade(head_url)
    assert catalogue(head_url) == before


def test_the_reader_reads_everything_and_writes_nothing(upgraded_url: str) -> None:
    with closing(database.connect(upgraded_url, autocommit=True)) as connection:
        connection.execute("SET ROLE trinity_reader")
        for kind, name in catalogue(upgraded_url):
            if kind in ("table", "view"):
                connection.execute(f'SELECT * FROM trinity."{name}"')
            if kind == "table":
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(f'DELETE FROM trinity."{name}"')
        connection.execute("SELECT * FROM trinity.lineage(0)")
        for statement in (
            "INSERT INTO trinity.run (name, kind, config) VALUES ('x', 'train', '{}')",
            "UPDATE trinity.run SET name = 'x'",
            "TRUNCATE trinity.run CASCADE",
            "SELECT nextval('trinity.run_id_seq')",
            "CREATE TABLE trinity.mine (n int)",
            "DROP VIEW trinity.experience_view",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def test_an_owner_who_may_not_make_roles_gets_the_schema_all_the_same(empty_url: str) -> None:
    owner = f"owner_{os.getpid()}"
    name = urlsplit(empty_url).path.strip("/")
    execute(empty_url, "CREATE ROLE {} LOGIN", owner)
    execute(empty_url, "GRANT CREATE ON DATABASE {} TO {}", name, owner)
    try:
        opening.upgrade(psycopg.conninfo.make_conninfo(empty_url, user=owner))
        assert {name for kind, name in catalogue(empty_url) if kind == "view"} == VIEWS
    finally:
        execute(empty_url, "DROP OWNED BY {}", owner)
        execute(empty_url, "DROP ROLE {}", owner)


# A data set of twelve rows and their pairs, adopted by a run with a seed, in the middle of an epoch: a row is
# leased, one used up, one held out, one without tokens, one badly rewarded.
MID_EPOCH = """
INSERT INTO trinity.run (name, kind, config) VALUES ('set', 'data', '{{}}');
INSERT INTO trinity.run (name, kind, config)
VALUES ('run', 'train', '{{"seed": 5, "processors": {{"pair": {{}}}}}}');
INSERT INTO trinity.worker (run_id, role, host, pid)
SELECT id, 'train', 'host', 1 FROM trinity.run WHERE name = 'run';
INSERT INTO trinity.experience (run_id, state)
SELECT id, 'ready' FROM trinity.run, generate_series(1, 12) WHERE name = 'set';
INSERT INTO trinity.experience
    (run_id, source_id, state, worker_id, use_count, held_out, prompt_length, reward, ready_xact)
SELECT r.id, s.id,
       CASE s.id % 12 WHEN 4 THEN 'leased' WHEN 6 THEN 'trained' ELSE 'ready' END::trinity.experience_state,
       CASE WHEN s.id % 12 = 4 THEN w.id END, s.id % 5 / 2, s.id % 12 = 8,
       CASE WHEN s.id % 12 <> 10 THEN 3 END,
       CASE WHEN s.id % 12 = 0 THEN -1 END, 3
FROM trinity.run r, trinity.worker w, trinity.experience s
WHERE r.name = 'run'
ORDER BY s.id;
INSERT INTO trinity.preference (run_id, chosen_id, rejected_id, source, use_count, held_out)
SELECT c.run_id, c.id, d.id, 'import', c.use_count, c.held_out
FROM trinity.experience c JOIN trinity.experience d ON d.source_id = c.source_id + 1
WHERE c.source_id % 3 = 0
"""
NEXT_ROWS = """
SELECT e.id FROM trinity.experience e
WHERE e.run_id = (SELECT id FROM trinity.run WHERE name = 'run') AND e.state = 'ready' AND NOT e.held_out
  AND e.prompt_length IS NOT NULL AND (e.reward IS NULL OR e.reward > 0)
  AND NOT EXISTS (SELECT FROM trinity.preference p WHERE p.rejected_id = e.id)
ORDER BY e.use_count, hashint8extended(e.source_id, 5 + e.use_count), e.id
"""
NEXT_PAIRS = """
SELECT p.id FROM trinity.preference p
JOIN trinity.experience chosen ON chosen.id = p.chosen_id
JOIN trinity.experience rejected ON rejected.id = p.rejected_id
WHERE p.run_id = (SELECT id FROM trinity.run WHERE name = 'run') AND p.state = 'ready' AND NOT p.held_out
  AND chosen.prompt_length IS NOT NULL AND rejected.prompt_length IS NOT NULL
ORDER BY p.use_count, hashint8extended(chosen.source_id, 5 + p.use_count), p.id
"""


def test_a_run_in_the_middle_of_an_epoch_goes_on_in_its_order(head_url: str) -> None:
    downgrade(head_url, "0002")
    execute(head_url, MID_EPOCH)
    with closing(database.connect(head_url, autocommit=True)) as connection:
        run = connection.execute("SELECT id FROM trinity.run WHERE name = 'run'").fetchall()[0]
        definitions = {"draw_rows": NEXT_ROWS, "draw_pairs": NEXT_PAIRS}
        expected = {
            name: [row["id"] for row in connection.execute(definition)]
            for name, definition in definitions.items()
        }
        opening.upgrade(head_url)
        drawn = {
            name: [row["id"] for row in connection.execute(query(name), {"run_id": run["id"], "limit": 100})]
            for name in definitions
        }
    assert drawn == expected
    assert {name: len(ids) for name, ids in drawn.items()} == {"draw_rows": 6, "draw_pairs": 2}


def test_groups_lose_the_uses_that_an_older_trainer_left_on_them(head_url: str) -> None:
    uses = "SELECT use_count FROM trinity.rollout_group ORDER BY id"
    with closing(database.Database(head_url)) as store:
        scene = Scene.open(store)
        scene.make_ready(3)
        for step in (1, 2):
            scene.commit(scene.draw(step, size=step), max_uses=3)
            scene.publish(step, step)
        scene.reopen(version=1)
        assert scene.values(uses) == [1, 0, 0]
        execute(head_url, "UPDATE trinity.rollout_group SET use_count = 2 - id % 2")
        before = scene.values(uses)
        downgrade(head_url, "0045")
        opening.upgrade(head_url)
        assert scene.values(uses) == [1, 0, before[2]], "no reopened batch had the third"


def test_places_stay_what_they_were_where_bad_rows_may_have_one_too(head_url: str) -> None:
    downgrade(head_url, "0003")
    execute(head_url, MID_EPOCH)
    execute(head_url, "UPDATE trinity.experience SET seed = 5 WHERE source_id IS NOT NULL AND NOT held_out")
    places = "SELECT id, place FROM trinity.experience ORDER BY id"
    with closing(database.connect(head_url, autocommit=True)) as connection:
        before = connection.execute(places).fetchall()
        opening.upgrade(head_url)
        assert connection.execute(places).fetchall() == before
        marks = "SELECT DISTINCT draws_labels FROM trinity.experience"
        assert connection.execute(marks).fetchall() == [{"draws_labels": False}]
    assert sum(row["place"] is not None for row in before) == 9


STORED_ALGORITHMS = {
    '{"name": "grpo"}': "groups",
    '{"name": "chord", "expert_rows": 4}': "groups",
    '{"name": "raft", "reward_above": 0.0}': "groups",
    '{"name": "raft", "reward_above": null}': "rows",
    '{"name": "sft", "reward_above": null}': "rows",
    '{"name": "sft", "reward_above": 0.5}': "groups",
    '{"name": "dpo"}': "pairs",
    '{"name": "kto"}': "labels",
    '"kto"': "labels",
    '"dft"': "rows",
    '"raft"': "groups",
    "null": "groups",
}


def test_runs_that_exist_say_what_their_algorithm_draws(head_url: str) -> None:
    downgrade(head_url, "0016")
    with closing(database.connect(head_url, autocommit=True)) as connection:
        insert = "INSERT INTO trinity.run (name, kind, config) VALUES (%s, %s, %s::jsonb)"
        connection.execute(insert, ["set", "data", "{}"])
        for algorithm in STORED_ALGORITHMS:
            connection.execute(insert, [algorithm, "train", f'{{"algorithm": {algorithm}}}'])
        opening.upgrade(head_url)
        found = connection.execute("SELECT name, draws FROM trinity.run").fetchall()
        assert {row["name"]: row["draws"] for row in found} == STORED_ALGORITHMS | {"set": None}
        downgrade(head_url, "0016")
        labels = connection.execute(
            "SELECT name FROM trinity.run WHERE draws_labels ORDER BY name"
        ).fetchall()
    assert [row["name"] for row in labels] == ['"kto"', '{"name": "kto"}']


def alembic(url: str, *arguments: str, root: Path = ROOT) -> str:
    """What the command of that name says, in the root of a tree."""
    done = subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=root,
        env=os.environ | {"TRINITY_DB_URL": url, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_alembic_itself_moves_a_store_and_says_where_it_is(place: tuple[str, str]) -> None:
    with new_database(place[0], "template0") as url:
        assert alembic(url, "current") == "", "there is nothing yet, and to look makes nothing"
        assert catalogue(url) == {}
        with pytest.raises(AssertionError, match="the store has no tables yet; make them first") as ended:
            alembic(url, "revision", "--autogenerate", "-m", "too early")
        assert "Traceback" not in str(ended.value)
        alembic(url, "upgrade", "head")
        assert alembic(url, "current") == f"{schema.HEAD} (head)\n"
        assert {name for kind, name in catalogue(url) if kind == "view"} == VIEWS
        alembic(url, "downgrade", "-1")
        assert alembic(url, "current") == f"{int(schema.HEAD) - 1:04d}\n"
        alembic(url, "upgrade", "+1")
        assert alembic(url, "check") == "No new upgrade operations detected.\n"
        assert {name for kind, name in catalogue(url) if kind == "view"} == VIEWS
    assert alembic(url, "history").startswith(f"{int(schema.HEAD) - 1:04d} -> {schema.HEAD} (head)")


def test_alembic_writes_the_next_migration_from_the_models(head_url: str, tmp_path: Path) -> None:
    for name in ("trinity_db", "schema", "explorer", "processors", "trainer"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    shutil.copy(ROOT / "alembic.ini", tmp_path)
    execute(head_url, "DROP VIEW trinity.state_time_view")
    execute(head_url, "ALTER TABLE trinity.rollout_group DROP COLUMN ready_at")
    alembic(head_url, "revision", "--autogenerate", "-m", "times are back", root=tmp_path)
    number = f"{int(schema.HEAD) + 1:04d}"
    [written] = (tmp_path / "schema/migrations/versions").glob(f"{number}_*.py")
    text = written.read_text()
    assert written.name == f"{number}_times_are_back.py"
    assert f"revision = {number!r}" in text
    assert f"down_revision = {schema.HEAD!r}" in text
    assert text.count("op.add_column") == 1
    assert "'ready_at'" in text
    assert "state_time_view" not in {name for _, name in catalogue(head_url)}, "the store is as it was"


def test_a_store_that_is_away_ends_alembic_in_one_line() -> None:
    with pytest.raises(AssertionError, match="No database answers at"):
        alembic("postgresql://none@127.0.0.1:1/none", "current")


def test_tasks_that_exist_are_numbered_in_the_order_of_import(head_url: str) -> None:
    downgrade(head_url, "0017")
    execute(
        head_url,
        """
        INSERT INTO trinity.run (name, kind, config, draws)
        VALUES ('a', 'train', '{{"explorer": {{"order": "sequential"}}}}', 'groups'),
               ('b', 'train', '{{}}', 'rows');
        INSERT INTO trinity.taskset (name) VALUES ('one'), ('two');
        INSERT INTO trinity.task (taskset_id, key, payload)
        SELECT s.id, n,
               jsonb_build_object('prompt', n, 'level', (ARRAY['"x"', '1.5', '1e400', '-1e-400'])[n]::jsonb)
        FROM generate_series(1, 4) n, trinity.taskset s ORDER BY n, s.id
        """,
    )
    opening.upgrade(head_url)
    with closing(database.connect(head_url)) as connection:
        tasks = connection.execute(
            "SELECT key, ordinal, level FROM trinity.task ORDER BY taskset_id, ordinal"
        )
        numbered = [(row["key"], row["ordinal"], row["level"]) for row in tasks]
        assert numbered == [("1", 0, None), ("2", 1, 1.5), ("3", 2, None), ("4", 3, 0.0)] * 2
        configs = [row["config"] for row in connection.execute("SELECT config FROM trinity.run ORDER BY id")]
        assert configs == [{"explorer": {"tasks": {"name": "sequential"}}}, {}]
