"""`trinity-db delete`: what goes, what stays, and what other runs notice."""

import io
import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tests.support.rows import Scene, copy_of, demonstration, import_records, task
from tests.support.synthesis import make
from trinity_db.arrays import archive
from trinity_db.data.records.records import Demonstration
from trinity_db.errors import ConfigError, NotFound
from trinity_db.postgres.connection import Database
from trinity_db.processors.config import ArchiveConfig
from trinity_db.processors.jobs.archive import Archiver
from trinity_db.schema.states import WorkerRole
from trinity_db.store import deletion, instances, payloads, pruning, runs, workers
from trinity_db.trainer.checkpoints import folder

Delete = Callable[..., tuple[Any, str]]

LEFT = """
SELECT (SELECT count(*) FROM trinity.run), (SELECT count(*) FROM trinity.experience),
       (SELECT count(*) FROM trinity.rollout), (SELECT count(*) FROM trinity.payload),
       (SELECT count(*) FROM trinity.batch_item), (SELECT count(*) FROM trinity.metric),
       (SELECT count(*) FROM trinity.reward_event), (SELECT count(*) FROM trinity.worker)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRINITY_DB_LANCE_URI", str(tmp_path / "lance"))
    return tmp_path / "home"


@pytest.fixture
def stopped(scene: Scene) -> Scene:
    """A run with two groups, one of them trained on, an evaluation, and no worker alive."""
    scene.explore(2)
    scene.process()
    scene.train(1, 1)
    scene.evaluate(1)
    scene.record(1, {"loss": 0.5})
    stop(scene)
    return scene


def stop(scene: Scene) -> None:
    with scene.database.transaction() as tx:
        for worker in (scene.explorer, scene.processor, scene.trainer):
            workers.stop(tx, worker)


@pytest.fixture
def delete(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Delete:
    """Runs the command on the store of a scene: exit code and stdout."""

    def delete(scene: Scene, *arguments: str) -> tuple[Any, str]:
        monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
        done = command_line("delete", *arguments)
        return done.code, done.stdout

    return delete


def test_a_run_goes_with_all_its_rows_and_another_one_stays(
    stopped: Scene, home: Path, delete: Delete
) -> None:
    other = Scene.open(stopped.database, "other")
    other.explore(1)
    before = other.rows("SELECT id, state::text FROM trinity.experience WHERE run_id = %s", other.run.id)
    code, out = delete(stopped, "run", "--yes", "--json")
    assert code == 0
    assert json.loads(out)["deleted"] | {"marks": 0, "task statistics": 0} == {
        "batches": 1,
        "preferences": 0,
        "experiences": 6,
        "groups": 10,
        "evaluations": 1,
        "versions": 1,
        "metrics": 1,
        "marks": 0,
        "task statistics": 0,
    }
    assert stopped.rows(LEFT) == [(1, 2, 2, 2, 0, 0, 0, 3)]
    assert before == other.rows("SELECT id, state::text FROM trinity.experience")


def test_a_run_that_is_served_stays_and_its_workers_are_named(
    scene: Scene, home: Path, delete: Delete
) -> None:
    code, _ = delete(scene, "run", "--yes")
    assert "alive (explore on" in code
    assert "trinity-db stop run, then delete it" in code
    assert scene.value("SELECT count(*) FROM trinity.run WHERE deleting_at IS NULL") == 1


def test_without_a_yes_nothing_is_deleted(
    stopped: Scene, home: Path, monkeypatch: pytest.MonkeyPatch, delete: Delete
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, _ = delete(stopped, "run")
    assert code == 1
    assert stopped.value("SELECT count(*) FROM trinity.run WHERE deleting_at IS NULL") == 1


def test_what_a_run_made_stays_and_the_command_says_what_it_forgets(
    scene: Scene, home: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    make(scene, [task(100), task(101), Demonstration(task(0), "an answer", {})], "others", "answers")
    stop(scene)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    asked = command_line("delete", "run")
    assert asked.stderr.startswith("Made from rows of 'run': 2 tasks and 1 response. They stay")
    assert "Delete train run 'run'" in asked.stderr
    assert scene.value("SELECT count(*) FROM trinity.origin_view") == 3
    done = command_line("delete", "run", "--yes", "--json")
    assert json.loads(done.stdout)["lost_origins"] == {"tasks": 2, "responses": 1}
    assert scene.value("SELECT count(*) FROM trinity.origin_view") == 0
    assert scene.values("SELECT response FROM trinity.experience_text") == ["an answer"]
    left = (
        "SELECT count(*) FROM trinity.task t JOIN trinity.taskset s ON s.id = t.taskset_id WHERE s.name = %s"
    )
    assert scene.value(left, "others") == 2


def test_a_data_set_stays_while_a_run_trains_on_it_and_goes_after_that(
    scene: Scene, home: Path, delete: Delete
) -> None:
    import_records(scene.database, "set", [demonstration(number) for number in range(5)])
    user = scene.beside("user", {"data": ["set"]}, ["set"])
    stop(user)
    code, _ = delete(scene, "set", "--yes")
    assert "other runs train on rows of it ('user')" in code
    for name in ("user", "set"):
        assert delete(scene, name, "--yes")[0] == 0
    assert scene.values("SELECT name FROM trinity.run") == ["run"]
    assert scene.value("SELECT count(*) FROM trinity.experience_text") == 0


def test_a_run_stays_while_another_one_started_from_its_checkpoint(
    stopped: Scene, home: Path, delete: Delete
) -> None:
    stopped.beside("next", {"model": {"run": "run"}}).publish(0, step=0)
    code, _ = delete(stopped, "run", "--yes")
    assert "started from a checkpoint of it ('next')" in code


def test_a_deletion_that_was_killed_is_repeated_and_finishes(
    stopped: Scene, home: Path, delete: Delete
) -> None:
    def die(name: str, count: int) -> None:
        if name == "experiences":
            raise KeyboardInterrupt

    with stopped.database.transaction() as tx:
        deletion.begin(tx, stopped.run, 30)
    with pytest.raises(KeyboardInterrupt):
        deletion.delete_rows(stopped.database, stopped.run, die)
    with stopped.database.transaction() as tx:
        assert runs.is_finished(tx, stopped.run.id)
        with pytest.raises(ConfigError, match="is being deleted; to finish that, run: trinity-db delete run"):
            runs.open_run(tx, "run", stopped.run.config, "groups")
    with pytest.raises(ConfigError), stopped.database.transaction() as tx:
        workers.register(tx, stopped.run, WorkerRole.TRAIN)
    assert delete(stopped, "run", "--yes")[0] == 0
    assert stopped.rows(LEFT) == [(0,) * 8]


def test_a_copy_deletes_its_own_archive_and_leaves_the_originals(
    stopped: Scene, home: Path, server: str, delete: Delete
) -> None:
    def archive_all(scene: Scene) -> None:
        worker = scene.new_worker(WorkerRole.PROCESS)
        works = Archiver(scene.database, scene.run, ArchiveConfig(), stopping=lambda: False)
        assert works.finish(worker)
        with scene.database.transaction() as tx:
            workers.stop(tx, worker)

    archive_all(stopped)
    with copy_of(stopped, server) as copy, copy_of(stopped, server) as reading:
        ids = copy.values("SELECT id FROM trinity.experience")
        with copy.database.transaction() as tx:
            runs.finish(tx, copy.run.id)
        archive_all(copy)
        (original, own) = copy.values("SELECT name FROM trinity.archive ORDER BY number")
        code, out = delete(copy, "run", "--yes", "--json")
        assert code == 0
        assert json.loads(out)["kept"] == [
            f"table {original} of the archive, which the store that this one was copied from may need"
        ]
        assert (archive.exists(original), archive.exists(own)) == (True, False)
        assert payloads.read(stopped.database, ids).keys() == set(ids)
        assert delete(stopped, "run", "--yes")[0] == 0
        assert not archive.exists(original)
        with pytest.raises(NotFound, match=f"no table {original} .*when its original deletes the run"):
            payloads.read(reading.database, ids)


def test_only_a_folder_that_names_the_run_loses_its_checkpoints(
    stopped: Scene, home: Path, delete: Delete
) -> None:
    with stopped.database.transaction() as tx:
        instance = instances.identify(tx)
    own = folder.claim(home / "checkpoints" / "run", {"store": str(instance.id)} | stopped.run.identity)
    (own.version_folder(1)).mkdir()
    strange = home / "elsewhere" / "version-000001"
    strange.mkdir(parents=True)
    (strange / "thesis.txt").write_text("years of work")
    with stopped.database.transaction() as tx:
        tx.execute(
            "INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)"
            " VALUES (%s, 1, 1, %s, %s)",
            [stopped.run.id, str(strange), ""],
        )
    code, out = delete(stopped, "run", "--yes", "--json")
    assert code == 0
    said = json.loads(out)
    assert said["folders"] == [str(own.path)]
    assert [line.split(",")[0] for line in said["kept"]] == [str(strange)]
    assert not own.path.exists()
    assert (strange / "thesis.txt").read_text() == "years of work"


def test_a_deletion_that_was_killed_finds_checkpoints_in_another_folder_again(
    stopped: Scene, home: Path, delete: Delete
) -> None:
    with stopped.database.transaction() as tx:
        instance = instances.identify(tx)
    own = folder.claim(home / "elsewhere" / "run", {"store": str(instance.id)} | stopped.run.identity)
    (own.version_folder(1)).mkdir()
    with stopped.database.transaction() as tx:
        tx.execute(
            "INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)"
            " VALUES (%s, 1, 1, %s, %s)",
            [stopped.run.id, str(own.path / "version-000001"), ""],
        )
    delete_rows = deletion.delete_rows
    with pytest.MonkeyPatch.context() as dying:
        dying.setattr(
            deletion, "delete_rows", lambda *arguments: (delete_rows(*arguments), sys.exit("killed"))
        )
        assert delete(stopped, "run", "--yes")[0] == "killed"
    assert delete(stopped, "run", "--yes")[0] == 0
    assert not own.path.exists()


def test_what_an_import_brought_is_said_to_stay(stopped: Scene, home: Path, delete: Delete) -> None:
    brought, model = home / "copies" / "run-1a2b3c4d" / "version-000000", home / "model"
    for place in (brought, model):
        place.mkdir(parents=True)
    with stopped.database.transaction() as tx:
        tx.execute("UPDATE trinity.policy_version SET checkpoint = %s WHERE version = 0", [str(brought)])
    other = stopped.beside("other", {})
    stop(other)
    other.publish(0, step=0)
    with stopped.database.transaction() as tx:
        tx.execute(
            "UPDATE trinity.policy_version SET checkpoint = %s WHERE run_id = %s", [str(model), other.run.id]
        )
    kept = {}
    for name in ("run", "other"):
        code, out = delete(stopped, name, "--yes", "--json")
        assert code == 0
        kept[name] = [line.split(",")[0] for line in json.loads(out)["kept"]]
    assert kept == {"run": [str(brought)], "other": []}


def test_a_run_goes_whose_checkpoint_is_a_place_that_cannot_be_looked_at(
    stopped: Scene, home: Path, delete: Delete
) -> None:
    with stopped.database.transaction() as tx:
        tx.execute(
            "INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)"
            " VALUES (%s, 1, 1, %s, '')",
            [stopped.run.id, "/" + "x/" * 5_000],
        )
    assert delete(stopped, "run", "--yes")[0] == 0


@pytest.mark.timeout(120)
def test_ids_that_lie_far_apart_are_no_work(stopped: Scene) -> None:
    other = Scene.open(stopped.database, "other")
    for table in ("experience", "metric"):
        other.value(f"SELECT setval('trinity.{table}_id_seq', {2**60})")
    other.explore(1)
    other.record(1, {"loss": 0.5})
    with stopped.database.transaction() as tx:
        limits = pruning.limits(tx, stopped.run, None, 0)
    for family in (pruning.PAYLOADS, pruning.METRICS, pruning.PROCESSING):
        pruning.prune(stopped.database, stopped.run, family, limits, dry_run=True)
    with stopped.database.transaction() as tx:
        deletion.begin(tx, stopped.run, 30)
    assert deletion.delete_rows(stopped.database, stopped.run)["experiences"] == 6
    stop(other)
    with stopped.database.transaction() as tx:
        deletion.begin(tx, other.run, 30)
    assert deletion.delete_rows(stopped.database, other.run)["experiences"] == 2


def test_other_runs_write_while_one_is_deleted(stopped: Scene) -> None:
    other = Scene.open(stopped.database, "other")
    with closing(Database(stopped.database.url)) as second, second.transaction() as tx:
        deletion.begin(tx, stopped.run, 30)
        deletion.empty(tx, stopped.run.id)  # all of it in one open transaction: worse than the command
        other.explore(1)
        other.process()
        other.train(1, 1)
        trained = other.value("SELECT count(*) FROM trinity.batch WHERE run_id = %s", other.run.id)
    assert trained == 1
