"""What a processor with a login of its own may change: the arrays of finished rows, and its own metrics."""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres import by_login, execute
from tests.support.rows import WAIT_SECONDS, Scene, in_a_thread, rollout
from tests.support.waiting import wait_until
from trinity_db.errors import TrinityError
from trinity_db.postgres.connection import Database, connect
from trinity_db.postgres.logins import make_login, open_to_roles
from trinity_db.processors.config import ArchiveConfig
from trinity_db.processors.jobs.archive import Archiver
from trinity_db.schema.states import WorkerRole
from trinity_db.store import payloads, runs, workers
from trinity_db.store.processing import CLEAN, SCORE
from trinity_db.worker.service import LEASE_SECONDS

LOGIN = f"processor_{os.getpid()}"
ARCHIVE = "UPDATE trinity.payload SET data = NULL, archive_row = experience_id, archive_number = 0"
PRUNE = "UPDATE trinity.payload SET data = NULL, archive_row = NULL, pruned_at = now()"
MOVE = "UPDATE trinity.experience SET state = %s WHERE state = %s"
OF_STATE = " WHERE experience_id IN (SELECT id FROM trinity.experience WHERE state = %s)"
HERE = (
    "SELECT DISTINCT e.state FROM trinity.experience e JOIN trinity.payload p ON p.experience_id = e.id"
    " WHERE p.data IS NOT NULL ORDER BY 1"
)
METRIC = "INSERT INTO trinity.metric (run_id, role, step, name, value) VALUES (%s, %s, 1, 'eval/loss', 0)"


@pytest.fixture(scope="module")
def login(shared_database: Database) -> Iterator[None]:
    with closing(connect(shared_database.url)) as owner:
        open_to_roles(owner)
        make_login(owner, LOGIN, "trinity_processor")
    yield
    execute(shared_database.url, "DROP ROLE {}", LOGIN)


@pytest.fixture
def rows(scene: Scene) -> None:
    """Rows in each state that has arrays. The processor of the owner's login has stopped."""
    scene.make_ready(1)
    scene.train(1, 1)
    scene.evaluate(1)
    scene.make_ready(1)
    for stages in ((CLEAN, SCORE), (CLEAN,), ()):
        [group] = scene.claim(1)
        scene.write([rollout(group, 0)])
        for stage in stages:
            scene.judge(stage)
    scene.lose(scene.processor)


@pytest.fixture
def processor(
    scene: Scene, login: None, rows: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Scene]:
    """The same run by a login that may do what a processor needs, with an archive of the run."""
    monkeypatch.setenv("TRINITY_DB_LANCE_URI", str(tmp_path / "lance"))
    with closing(Database(by_login(scene.database.url, LOGIN))) as database:
        processor = replace(scene, database=database)
        processor = replace(processor, processor=processor.new_worker(WorkerRole.PROCESS))
        with database.transaction() as tx:
            assert payloads.claim_archive(tx, scene.run.id, processor.processor, lease_seconds=30)
        yield processor


def change(scene: Scene, statement: str, *values: object) -> int:
    with scene.database.transaction() as tx:
        return tx.execute(statement.encode(), values).rowcount


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        ("UPDATE trinity.payload SET data = 'x'", "trained"),
        ("UPDATE trinity.payload SET archive_number = 0", "trained"),
        (ARCHIVE.replace("number = 0", "number = 9"), "trained"),
        (ARCHIVE, "evaluated"),
        (PRUNE, "trained"),
    ],
    ids=["other bytes", "the bytes stay", "no such archive", "an evaluation", "pruned before its time"],
)
def test_arrays_of_a_finished_row_are_only_archived_or_pruned(
    processor: Scene, statement: str, state: str
) -> None:
    with pytest.raises(TrinityError, match="row-level security"):
        change(processor, statement + OF_STATE, state)


@pytest.mark.parametrize("statement", [ARCHIVE, PRUNE, "UPDATE trinity.payload SET data = 'x'"])
def test_arrays_of_a_row_that_a_step_may_draw_stay(scene: Scene, processor: Scene, statement: str) -> None:
    before = scene.value("SELECT count(*) FROM trinity.payload WHERE length(data) > 1")
    for state in ("raw", "clean", "scored", "ready"):
        assert scene.value("SELECT count(*) FROM trinity.experience WHERE state = %s", state) > 0
        assert change(processor, statement + OF_STATE, state) == 0
    assert scene.value("SELECT count(*) FROM trinity.payload WHERE length(data) > 1") == before


def test_a_finished_run_is_archived_and_its_ready_rows_are_not_pruned(scene: Scene, processor: Scene) -> None:
    archiver = Archiver(processor.database, processor.run, ArchiveConfig(min_rows=1), stopping=lambda: False)
    assert archiver.finish(processor.processor)
    assert scene.values(HERE) == ["raw", "clean", "scored", "ready", "evaluated"]
    with scene.database.transaction() as tx:
        runs.finish(tx, scene.run.id)
    with pytest.raises(TrinityError, match="row-level security"):
        change(processor, PRUNE + OF_STATE, "ready")
    assert archiver.finish(processor.processor)
    assert scene.values(HERE) == ["raw", "clean", "evaluated"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ready", "dropped"),
        ("trained", "dropped"),
        ("trained", "ready"),
        ("evaluated", "dropped"),
        ("dropped", "scored"),
        ("scored", "trained"),
        ("scored", "leased"),
        ("clean", "expired"),
    ],
)
def test_a_processor_moves_no_row_that_is_ready_or_finished(
    scene: Scene, processor: Scene, before: str, after: str
) -> None:
    if before == "dropped":
        assert change(processor, MOVE, "dropped", "clean") > 0, "rows that are not ready may be dropped"
    assert scene.value("SELECT count(*) FROM trinity.experience WHERE state = %s", before) > 0
    with pytest.raises(TrinityError, match="only a trainer moves rows that are ready or finished"):
        change(processor, MOVE, after, before)
    assert change(scene, MOVE, before, before) > 0, "the owner may"


@pytest.mark.parametrize(
    ("before", "after"),
    [("ready", "dropped"), ("trained", "dropped"), ("trained", "ready"), ("ready", "trained")],
)
def test_a_processor_moves_no_group_that_is_ready_or_finished(
    processor: Scene, before: str, after: str
) -> None:
    with pytest.raises(TrinityError, match="only a trainer moves groups"):
        change(processor, MOVE.replace("experience", "rollout_group"), after, before)


def test_a_processor_moves_no_pair(processor: Scene) -> None:
    with pytest.raises(TrinityError, match="permission denied for table preference"):
        change(processor, "UPDATE trinity.preference SET state = 'ready'")


PAIR = """
INSERT INTO trinity.preference (run_id, chosen_id, rejected_id, source, held_out)
SELECT run_id, min(id), max(id), 'pair', true FROM trinity.experience GROUP BY run_id
"""


@pytest.mark.parametrize("table", ["experience", "preference"])
def test_a_processor_lets_nothing_be_drawn_that_is_held_out(
    scene: Scene, processor: Scene, table: str
) -> None:
    assert change(scene, PAIR) == 1
    with pytest.raises(TrinityError, match="it is held out, and a seed would have it drawn"):
        change(processor, f"UPDATE trinity.{table} SET seed = 1 WHERE held_out")
    assert change(processor, f"UPDATE trinity.{table} SET seed = NULL WHERE held_out") > 0


MADE = PAIR.replace("source, held_out", "source, held_out, seed").replace("'pair', true", "'pair', %s, %s")


def test_a_processor_pairs_nothing_that_is_held_out_for_a_draw(scene: Scene, processor: Scene) -> None:
    of_evaluation = MADE.replace("GROUP BY", "WHERE held_out GROUP BY")
    for is_held_out, seed in ((False, 1), (False, None), (True, 1)):
        with pytest.raises(TrinityError, match="row-level security"):
            change(processor, of_evaluation, is_held_out, seed)
    other = scene.beside("other")
    other.publish(0, step=0)
    other.make_ready(1)
    of_two_runs = MADE.replace("GROUP BY run_id", "").replace("SELECT run_id", "SELECT max(run_id)")
    with pytest.raises(TrinityError, match="row-level security"):
        change(processor, of_two_runs, False, 1)
    assert processor.pair() > 0, "rows that are not held out"


OPERATORS = f"""
CREATE SCHEMA elsewhere AUTHORIZATION {LOGIN};
SET ROLE {LOGIN};
CREATE TABLE elsewhere.own ();
CREATE FUNCTION elsewhere.is_own(one oid, other oid) RETURNS boolean LANGUAGE sql AS $$
    SELECT $1 OPERATOR(pg_catalog.=) 'elsewhere.own'::regclass::oid $$;
CREATE OPERATOR elsewhere.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = elsewhere.is_own);
CREATE FUNCTION elsewhere.nothing(content jsonb, path text[]) RETURNS text LANGUAGE sql AS $$ SELECT '0 s' $$;
CREATE OPERATOR elsewhere.#>> (LEFTARG = jsonb, RIGHTARG = text[], FUNCTION = elsewhere.nothing);
RESET ROLE;
"""


@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        (MOVE.replace("%s", "'dropped'", 1).replace("%s", "'trained'"), "only a trainer moves rows"),
        (PRUNE + OF_STATE.replace("%s", "'trained'"), "row-level security"),
    ],
    ids=["moves a row", "prunes arrays"],
)
def test_operators_of_a_processor_change_no_rule(
    scene: Scene, processor: Scene, statement: str, refusal: str
) -> None:
    execute(scene.database.url, OPERATORS)
    try:
        change(processor, "SET search_path = elsewhere, pg_catalog")
        with pytest.raises(TrinityError, match=refusal):
            change(processor, statement)
    finally:
        execute(scene.database.url, "DROP SCHEMA elsewhere CASCADE")


def test_a_processor_gives_archived_arrays_no_other_place(scene: Scene, processor: Scene) -> None:
    archiver = Archiver(processor.database, processor.run, ArchiveConfig(min_rows=1), stopping=lambda: False)
    assert archiver.finish(processor.processor)
    assert scene.value("SELECT count(*) FROM trinity.payload WHERE archive_row IS NOT NULL") > 0
    with pytest.raises(TrinityError, match="its arrays are archived or pruned already"):
        change(processor, "UPDATE trinity.payload SET archive_row = 9" + OF_STATE, "trained")


def test_a_login_writes_metrics_of_its_own_role_alone(scene: Scene, processor: Scene) -> None:
    assert change(processor, METRIC, scene.run.id, "process") == 1
    processor.record(1, {"seconds": 1.0}, WorkerRole.PROCESS)
    for role in ("train", "explore"):
        with pytest.raises(TrinityError, match="row-level security"):
            change(processor, METRIC, scene.run.id, role)


def test_a_processor_gives_no_setting_to_a_run_that_another_login_creates_meanwhile(
    scene: Scene, processor: Scene
) -> None:
    coming = scene.value("SELECT last_value + 1 FROM trinity.run_id_seq")
    waits = "WITH run AS (SELECT id FROM trinity.run WHERE id = %s FOR NO KEY UPDATE)"
    writes = "INSERT INTO trinity.run_setting (run_id, config) SELECT %s, '{}' FROM run"
    with closing(connect(scene.database.url)) as holder:
        holder.execute("SELECT FROM trinity.run WHERE id = %s FOR UPDATE", [scene.run.id])
        late = in_a_thread(
            processor.database, lambda: change(processor, f"{waits} {writes}", scene.run.id, coming)
        )
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND usename = %s"
        wait_until(lambda: scene.value(blocked, LOGIN), "the statement waits")
        assert scene.beside("other").run.id == coming
        holder.commit()
        with pytest.raises(TrinityError, match="may write settings only of a run that it creates"):
            late.result(WAIT_SECONDS)


def test_a_processor_ends_the_session_of_a_silent_worker_of_its_login(scene: Scene, processor: Scene) -> None:
    with closing(connect(processor.database.url)) as frozen:
        frozen.execute(
            "SELECT set_config('application_name', %s, false)", [f"trinity-db worker {processor.processor}"]
        )
        silent = "UPDATE trinity.worker SET heartbeat_at = now() - interval '1 h' WHERE id = %s"
        assert change(scene, silent, processor.processor) == 1
        with processor.database.transaction() as tx:
            workers.release_leases(tx, scene.run.id, LEASE_SECONDS)
        with pytest.raises(psycopg.OperationalError):
            frozen.execute("SELECT 1")
