"""What the doctor finds in the store's tables, and of what roles left there; each remedy mends it."""

import re
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.support.command_line import CommandLine
from tests.support.complaints import Examine, one, session
from tests.support.postgres import execute
from tests.support.rows import Scene, claim_rows, finish_rows
from tests.support.waiting import wait_until
from trinity_db import schema
from trinity_db.insight.checks import tables, work
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import Outcome
from trinity_db.store import processing

ROWS = 12_000  # more than the doctor wants before it speaks of dead rows or statistics
ARCHIVE_OF_5 = (
    "INSERT INTO trinity.archive (run_id, number, store, name, num_rows)"
    " SELECT id, 0, gen_random_uuid(), 'payload_' || id || '_0', 5 FROM trinity.run"
)
MEASURED = "INSERT INTO trinity.metric (run_id, role, step, name, value) SELECT 1, 'train', n, 'loss', 0 "


def test_dead_rows_and_a_table_that_is_never_vacuumed_are_found(url: str, examine: Examine) -> None:
    make_metrics(url)
    execute(url, "DELETE FROM trinity.metric")
    switched_off, dead = examine(url)
    assert switched_off["remedy"] == "ALTER TABLE trinity.metric RESET (autovacuum_enabled)"
    assert f"metric has {ROWS} dead rows and 0 live ones; last vacuum: never" in dead["found"]
    execute(url, "VACUUM trinity.metric")
    execute(url, switched_off["remedy"])
    assert examine(url) == []


def test_dead_rows_of_the_arrays_are_found(
    url: str, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Database(url)) as store:
        Scene.open(store).make_ready(1)
    monkeypatch.setattr(tables, "DEAD_ROWS", 100)
    monkeypatch.setattr(tables, "BEHIND", 0)
    execute(url, "ALTER TABLE trinity.payload SET (toast.autovacuum_enabled = off)")
    execute(url, "UPDATE trinity.payload SET data = repeat('x', 200000)::bytea")
    execute(url, "UPDATE trinity.payload SET data = repeat('y', 200000)::bytea")
    assert any("the TOAST of payload has" in finding["found"] for finding in examine(url))


def test_files_much_larger_than_their_rows_are_found(
    url: str, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_metrics(url)
    execute(url, f"DELETE FROM trinity.metric WHERE step < {ROWS - 99}")  # the last ones keep the file long
    wait_until(lambda: dead_metrics(url) > 0, "the ended session has said what it deleted")
    execute(url, "VACUUM (ANALYZE) trinity.metric")
    execute(url, "ALTER TABLE trinity.metric RESET (autovacuum_enabled)")
    monkeypatch.setattr(tables, "BLOATED_BYTES", 100_000)
    found = examine(url)
    assert {finding["what"] for finding in found} == {"table size"}
    assert any("metric takes" in finding["found"] for finding in found)
    for finding in found:
        if finding["remedy"].startswith("REINDEX"):
            execute(url, finding["remedy"])
    execute(url, "VACUUM FULL trinity.metric")
    assert examine(url) == []


def test_tables_that_the_planner_does_not_know_are_found(url: str, examine: Examine) -> None:
    make_metrics(url)
    never = examine(url)[-1]
    assert f"metric has {ROWS} rows and was never analyzed" in never["found"]
    execute(url, never["remedy"])
    execute(url, f"{MEASURED} FROM generate_series(1, {2 * ROWS}) n")
    changed = examine(url)[-1]
    assert f"metric: {2 * ROWS} of {3 * ROWS} rows were changed" in changed["found"]
    execute(url, changed["remedy"])
    execute(url, "ALTER TABLE trinity.metric RESET (autovacuum_enabled)")
    assert examine(url) == []


def test_a_store_close_to_the_last_transaction_is_found(
    url: str, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "OLD_AGE", -1)
    assert one(examine(url), "table age")["level"] == "warn"
    monkeypatch.setattr(tables, "LAST_AGE", -1)
    assert one(examine(url), "table age")["level"] == "fail"


def test_an_index_that_failed_to_be_built_is_found(url: str, examine: Examine) -> None:
    make_metrics(url)
    execute(url, "VACUUM (ANALYZE) trinity.metric")
    execute(url, "ALTER TABLE trinity.metric RESET (autovacuum_enabled)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        execute(url, "CREATE UNIQUE INDEX CONCURRENTLY mine ON trinity.metric (name)")
    finding = one(examine(url), "index valid")
    assert (finding["level"], finding["found"]) == ("fail", "mine is not valid")
    execute(url, "DELETE FROM trinity.metric WHERE step > 1")
    execute(url, "VACUUM trinity.metric")
    execute(url, finding["remedy"])
    assert examine(url) == []


def test_the_remedy_of_a_missing_index_makes_it(url: str, examine: Examine) -> None:
    execute(url, "DROP INDEX trinity.rollout_group_chance_idx, trinity.experience_import_key")
    execute(url, "ALTER TABLE trinity.rollout DROP CONSTRAINT rollout_group_id_ordinal_attempt_key")
    found = examine(url)
    levels = {finding["found"].split()[0]: finding["level"] for finding in found}
    assert levels == {
        "rollout_group_chance_idx": "warn",
        "experience_import_key": "fail",
        "rollout_group_id_ordinal_attempt_key": "fail",
    }
    for finding in found:
        execute(url, finding["remedy"])
    assert examine(url) == []


def test_a_missing_table_is_found(url: str, examine: Examine) -> None:
    execute(url, "DROP TABLE trinity.sweep")
    assert "missing: sweep" in {finding["found"] for finding in examine(url)}


@pytest.mark.parametrize(
    ("statement", "remedy"),
    [
        ("UPDATE trinity.schema_version SET version_num = '9999'", "pip install --upgrade trinity-db"),
        (
            "ALTER TABLE trinity.schema_version RENAME TO alembic_version",
            "trinity-db export, by an older trinity-db",
        ),
        ("DROP SCHEMA trinity CASCADE", "trinity-db db init"),
    ],
)
def test_a_schema_that_does_not_fit_is_found(url: str, examine: Examine, statement: str, remedy: str) -> None:
    execute(url, statement)
    finding = one(examine(url), "schema version")
    assert (finding["level"], finding["remedy"]) == ("fail", remedy)


def test_an_older_schema_is_found(url: str, examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "HEAD", "0999")
    finding = one(examine(url), "schema version")
    assert (finding["level"], finding["remedy"]) == ("fail", "trinity-db db upgrade")


def test_an_upgrade_that_is_under_way_is_named(url: str, examine: Examine) -> None:
    with session(url) as upgrading:
        upgrading.execute("LOCK TABLE trinity.schema_version IN ACCESS EXCLUSIVE MODE")
        finding = one(examine(url)[-1:], "schema version")
    assert finding["level"] == "warn"
    assert "is being upgraded" in finding["found"]


def test_a_locked_table_does_not_keep_the_doctor_waiting(
    url: str, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trinity_db.insight.checks import doctor

    monkeypatch.setattr(doctor, "LOCK_SECONDS", 0.05)
    with session(url) as locker:
        locker.execute("LOCK TABLE trinity.worker")
        found = examine(url)
    assert {finding["level"] for finding in found} == {"warn"}
    assert all(" timeout" in finding["found"] for finding in found)


def test_what_roles_left_behind_is_found(url: str, examine: Examine, tmp_path: Path) -> None:
    with closing(Database(url)) as store:
        scene = Scene.open(store)
        scene.explore(1)
        failed, held = claim_rows(scene)
        verdict = processing.StepVerdict(failed, 1, Outcome.FAILED, "error", {"error": "no such function"})
        finish_rows(scene, [verdict], max_attempts=1)
        assert examine(url)[0]["found"] == "run 'run': 1 rows were given up (clean_failed)"
        execute(url, "UPDATE trinity.worker SET heartbeat_at = now() - interval '31 s'")
        execute(url, ARCHIVE_OF_5)
        letters, leases, archive = examine(url)
        assert letters["what"] == "work failed"
        assert re.search(r"is silent for 3\d s and holds 1 rows", leases["found"])
        assert (archive["level"], str(tmp_path / "lance") in archive["found"]) == ("fail", True)
        assert scene.lose(scene.processor).experiences == 1
        assert [finding["what"] for finding in examine(url)] == ["work failed", "work archive"]
        assert held


def test_a_listener_that_does_not_hear_is_found(
    url: str, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "FULL_SHARE", -1)
    assert one(examine(url), "work notifications")["level"] == "warn"


def test_a_stopped_run_is_told_and_no_complaint(
    url: str, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> None:
    with closing(Database(url)) as store:
        Scene.open(store)
    execute(url, "UPDATE trinity.worker SET stopped_at = now()")
    monkeypatch.setenv("TRINITY_DB_URL", url)
    done = command_line("doctor")
    assert done.code == 0
    assert "run 'run' is stopped: all its workers signed off" in " ".join(done.stdout.split())


def make_metrics(url: str) -> None:
    """A table of some thousand rows that is neither vacuumed nor analyzed meanwhile."""
    execute(url, "ALTER TABLE trinity.metric SET (autovacuum_enabled = off)")
    execute(url, "INSERT INTO trinity.run (id, name, kind, config) VALUES (1, 'data', 'data', '{{}}')")
    execute(url, f"{MEASURED} FROM generate_series(1, {ROWS}) n")


def dead_metrics(url: str) -> int:
    """How many dead rows the server counts. A session that ends reports them a moment later."""
    with closing(psycopg.connect(url)) as connection:
        row = connection.execute("SELECT pg_stat_get_dead_tuples(to_regclass('trinity.metric'))").fetchone()
    assert row is not None
    return int(row[0])
