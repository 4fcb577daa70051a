"""Migrations, on the newest and the oldest server: up, down and up again, and equal to the models."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.exc import InternalError
from sqlalchemy.pool import NullPool

from tests.support.command_line import CommandLine
from tests.support.postgres import execute, new_database
from tests.support.waiting import wait_until
from trinity_db import schema
from trinity_db.errors import SchemaMismatch, TrinityError
from trinity_db.postgres import opening, upgrades
from trinity_db.postgres.connection import Transaction, connect
from trinity_db.schema.tables.models import metadata
from trinity_db.worker.service import LEASE_SECONDS

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
    "sequence_view",
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

UPGRADE = """
import sys
from trinity_db.postgres import opening, upgrades
upgrades.known_versions()  # what takes long to import is imported
print("ready", flush=True)
sys.stdin.readline()
opening.upgrade(sys.argv[1])
"""


NEXT = f"{int(schema.HEAD) + 1:04d}"
NEXT_MIGRATION = f'''
"""The next version."""
from alembic import op

revision, down_revision, branch_labels, depends_on = "{NEXT}", "{schema.HEAD}", None, None


def upgrade() -> None:
{{steps}}


def downgrade() -> None:
    pass
'''
STORES = sorted((Path(__file__).parent / "stores").glob("*.sql"), key=lambda path: path.stem)


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


def write_next(migrations: Path, *statements: str) -> None:
    """Add a migration after the newest one."""
    steps = "\n".join(f"    op.execute({statement!r})" for statement in statements)
    (migrations / "versions" / f"{NEXT}_next.py").write_text(NEXT_MIGRATION.format(steps=steps))


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of the next version, which gives two tables a column."""
    migrations = tmp_path / "migrations"
    shutil.copytree(upgrades.MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
    columns = (f"ALTER TABLE trinity.{table} ADD COLUMN note text" for table in ("worker", "processing"))
    write_next(migrations, *columns)
    monkeypatch.setattr(upgrades, "MIGRATIONS", migrations)
    monkeypatch.setattr(schema, "HEAD", NEXT)


def catalogue(url: str, *, without: tuple[str, ...] = ()) -> dict[tuple[str, str], str]:
    """The definition of everything in the schema, by kind and name."""
    with closing(connect(url)) as connection:
        connection.execute("SET search_path TO public")  # so that names are whole, whatever the database's is
        rows = connection.execute(CATALOGUE).fetchall()
    return {
        (row["kind"], row["name"]): row["definition"]
        for row in rows
        if row["kind"] not in without and not row["name"].startswith("schema_version")
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
        "attempt_reward",
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
        "mean_interval",
        "oldest_within",
        "parked_members",
        "pass_at",
        "probes",
        "question",
        "reward_at_training",
        "reward_in",
        "reward_share",
        "share_interval",
        "shares_reward",
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
    with closing(connect(upgraded_url)) as connection:
        assert [row["name"] for row in connection.execute(SILENT)] == []
        shown = connection.execute("SELECT obj_description('trinity.run'::regclass, 'pg_class') AS said")
        assert shown.fetchone() == {"said": metadata.tables["trinity.run"].comment}


def test_a_client_finds_the_tables_without_their_schema_and_creates_its_own_elsewhere(
    upgraded_url: str,
) -> None:
    with closing(connect(upgraded_url)) as connection:
        connection.execute("SELECT FROM experience_view")
        assert connection.execute("SELECT current_schema() AS place").fetchone() == {"place": "public"}


def test_a_search_path_that_the_database_has_stays(empty_url: str) -> None:
    with closing(connect(empty_url, autocommit=True)) as connection:
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET search_path = pg_catalog'.encode())
    opening.upgrade(empty_url)
    with closing(connect(empty_url)) as connection:
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
    execute(head_url, "UPDATE trinity.schema_version SET version_num = '9999'")
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


FORMER = (
    "The database's schema is 0047 (before 0.1.0), which this trinity-db cannot upgrade. Export what you "
    "need with the last commit that opens it, and import that into a new store."
)
RUN = """
name: run
taskset: tasks
model: {scratch: {alphabet: "01"}}
algorithm: grpo
processors: {score: [exact_match]}
trainer: {steps: 1}
"""


@pytest.fixture
def former_url(head_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that was made before the first release. It is the one that commands open."""
    execute(head_url, "ALTER TABLE trinity.schema_version RENAME TO alembic_version")
    execute(head_url, "UPDATE trinity.alembic_version SET version_num = '0047'")
    monkeypatch.setenv("TRINITY_DB_URL", head_url)
    return head_url


@pytest.mark.parametrize(
    "command",
    [
        ("db", "upgrade"), ("db", "init"), ("db", "check"), ("run", "{config}"), ("train", "{config}"),
        ("status",), ("sql", "SELECT 1"), ("page",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_store_of_before_the_first_release_is_refused_in_one_line(
    former_url: str, command: tuple[str, ...], command_line: CommandLine, tmp_path: Path
) -> None:
    before = catalogue(former_url)
    config = tmp_path / "run.yaml"
    config.write_text(RUN)
    assert command_line(*(word.format(config=config) for word in command)).complaint == FORMER
    assert catalogue(former_url) == before


def test_alembic_itself_refuses_a_store_of_before_the_first_release(former_url: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(FORMER)):
        run_alembic(former_url, "upgrade", "head")


@pytest.mark.parametrize("path", STORES, ids=lambda path: path.stem)
def test_a_store_of_each_release_is_upgraded(empty_url: str, upgraded_url: str, path: Path) -> None:
    with closing(psycopg.connect(empty_url)) as connection:
        connection.execute(path.read_bytes())
        connection.commit()
    assert upgrades.schema_version(empty_url) == path.stem
    counts = [value(empty_url, f"SELECT count(*) FROM trinity.{table}") for table in FILLED]
    assert all(counts)
    opening.upgrade(empty_url)
    assert catalogue(empty_url) == catalogue(upgraded_url)
    assert [value(empty_url, f"SELECT count(*) FROM trinity.{table}") for table in FILLED] == counts


def test_there_is_a_store_of_the_first_release() -> None:
    assert STORES[0].stem == "0001"


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


FILLED = ("run", "task", "rollout", "experience", "payload", "reward_event", "batch", "batch_item")
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


@pytest.mark.usefixtures("newer")
def test_a_worker_that_froze_in_the_middle_of_a_pipeline_does_not_hold_an_upgrade_up(head_url: str) -> None:
    execute(head_url, AT_WORK)
    held = (
        "SELECT count(*) FROM pg_locks"
        " WHERE mode = 'RowExclusiveLock' AND relation = 'trinity.worker'::regclass"
    )
    named = "SELECT set_config('application_name', 'trinity-db worker ' || id, false) FROM trinity.worker"
    with (
        closing(connect(head_url)) as frozen,
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


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize(
    "held", ["SELECT FROM trinity.processing", "SELECT FROM trinity.worker FOR UPDATE"], ids=["table", "row"]
)
def test_an_upgrade_gives_up_what_another_session_keeps(
    head_url: str, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    execute(head_url, AT_WORK)
    before = catalogue(head_url)
    monkeypatch.setattr(upgrades, "LOCK_SECONDS", 1)
    with closing(connect(head_url)) as other:
        other.execute(held.encode())
        holder = rf"another session held one of its tables .*session {other.info.backend_pid} of login"
        with pytest.raises(TrinityError, match=holder):
            upgrade_beside_roles(head_url)
    assert catalogue(head_url) == before


@contextmanager
def reader_with_lock(url: str, held: str) -> Iterator[Transaction]:
    """A session with the rights of a reader, in a transaction."""
    with closing(connect(url)) as reader:
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
    assert upgrades.schema_version(upgraded_url) == schema.HEAD


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
    with closing(connect(upgraded_url, autocommit=True)) as connection:
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


def run_alembic(url: str, *arguments: str, root: Path = ROOT) -> str:
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


def copied(folder: Path) -> Path:
    """A copy of the code, for the command `alembic` to write to."""
    for name in ("trinity_db", "schema", "explorer", "processors", "trainer"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    shutil.copy(ROOT / "alembic.ini", folder)
    return folder


def test_alembic_itself_moves_a_store_and_says_where_it_is(place: tuple[str, str], tmp_path: Path) -> None:
    alembic = partial(run_alembic, root=copied(tmp_path))
    write_next(tmp_path / "schema/migrations", "SELECT 1")
    with new_database(place[0], "template0") as url:
        assert alembic(url, "current") == "", "there is nothing yet, and to look makes nothing"
        assert catalogue(url) == {}
        with pytest.raises(AssertionError, match="the store has no tables yet; make them first") as ended:
            alembic(url, "revision", "--autogenerate", "-m", "too early")
        assert "Traceback" not in str(ended.value)
        alembic(url, "upgrade", "head")
        assert upgrades.schema_version(url) == NEXT
        assert {name for kind, name in catalogue(url) if kind == "view"} == VIEWS
        alembic(url, "downgrade", "-1")
        assert alembic(url, "current") == f"{schema.HEAD}\n"
        alembic(url, "upgrade", "+1")
        assert alembic(url, "check") == "No new upgrade operations detected.\n"
        assert {name for kind, name in catalogue(url) if kind == "view"} == VIEWS
    assert alembic(url, "history").startswith(f"{schema.HEAD} -> {NEXT} (head)")


def test_alembic_writes_the_next_migration_from_the_models(head_url: str, tmp_path: Path) -> None:
    copied(tmp_path)
    execute(head_url, "DROP VIEW trinity.state_time_view")
    execute(head_url, "ALTER TABLE trinity.rollout_group DROP COLUMN ready_at")
    run_alembic(head_url, "revision", "--autogenerate", "-m", "times are back", root=tmp_path)
    [written] = (tmp_path / "schema/migrations/versions").glob(f"{NEXT}_*.py")
    text = written.read_text()
    assert written.name == f"{NEXT}_times_are_back.py"
    assert f"revision = {NEXT!r}" in text
    assert f"down_revision = {schema.HEAD!r}" in text
    assert text.count("op.add_column") == 1
    assert "'ready_at'" in text
    assert "state_time_view" not in {name for _, name in catalogue(head_url)}, "the store is as it was"


def test_a_store_that_is_away_ends_alembic_in_one_line() -> None:
    with pytest.raises(AssertionError, match="No database answers at"):
        run_alembic("postgresql://none@127.0.0.1:1/none", "current")
