"""A run copied into another store: every table is equal, and what was there is as it was."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg.types.json import Jsonb
from sqlalchemy import BigInteger, Column, Identity, MetaData, Table

from tests.support.copied import OF_THE_STORE, Contents, contents
from tests.support.postgres import new_database
from tests.support.rows import (
    Scene,
    attempt,
    demonstration,
    import_records,
    labelled,
    payload,
    preference,
    reward,
    rollout,
    task,
    trajectory,
)
from tests.support.synthesis import make
from trinity_db.arrays.codec import encode
from trinity_db.data.copies import exporter, importer, tables
from trinity_db.data.copies import folder as folders
from trinity_db.data.copies.exporter import export_run
from trinity_db.data.copies.importer import import_run
from trinity_db.data.dataset import open_writer
from trinity_db.data.records.records import Demonstration
from trinity_db.errors import ConfigError, ImportFileError, NotFound, TrinityError
from trinity_db.models.folder_digest import digest, verify_checkpoint
from trinity_db.postgres.connection import Database
from trinity_db.processors.config import ArchiveConfig
from trinity_db.processors.jobs.archive import Archiver
from trinity_db.schema.states import WorkerRole
from trinity_db.schema.tables.models import metadata
from trinity_db.store import calls, parks, policies, processing, rewards, runs, synthesis, workers
from trinity_db.store.replay import find, first_difference
from trinity_db.store.selection import TaskSelection

DATA = ("trajectories", "demonstrations", "preferences")
TASKSETS = ("tasks", "made", *DATA)


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRINITY_DB_LANCE_URI", str(tmp_path / "lance"))


@pytest.fixture
def source(database_url: str) -> Iterator[Database]:
    with closing(Database(database_url)) as database:
        yield database


@pytest.fixture
def target(database_url_15: str) -> Iterator[Database]:
    """A store on the other major version, in which another run has been at work."""
    with closing(Database(database_url_15)) as database:
        busy = Scene.open(database, "other", num_tasks=3)
        busy.make_ready(2)
        busy.train(step=1, size=1)
        yield database


PEOPLE = """
WITH asked AS (
    INSERT INTO trinity.review
        (run_id, experience_id, other_id, source, name, weight, wanted, lowest, highest)
    SELECT e.run_id, min(e.id), max(e.id), 'human', 'human', 1, 1, -1, 1
    FROM trinity.experience e WHERE e.run_id = %s GROUP BY e.run_id
    RETURNING id
),
said AS (
    INSERT INTO trinity.label (review_id, author, state, value, swapped, seconds, decided_at)
    SELECT id, 'ann', 'submitted', 1, true, 2.5, now() FROM asked
)
INSERT INTO trinity.decision (review_id, side) SELECT id, 1 FROM asked
"""
COMPUTED = (
    "INSERT INTO trinity.group_priority (run_id, group_id, priority, computed_xact)"
    " VALUES (%s, %s, 0.5, pg_current_xact_id()::text::bigint)"
)


def lively(database: Database, name: str = "run") -> Scene:
    """A run in the middle of its work, with something in every table."""
    import_records(
        database, "trajectories", [trajectory(n, f"answer {m}", m / 4) for n in range(3) for m in range(4)]
    )
    import_records(database, "demonstrations", [demonstration(n) for n in range(5)])
    import_records(database, "preferences", [*(preference(n) for n in range(3))])
    import_records(database, "preferences", [labelled(n, bool(n % 2)) for n in range(3)])
    scene = Scene.open(database, name, data=DATA, seed=7)
    scene.encode()
    scene.record(1, {"loss": 0.1, "none": float("nan"), "all": float("inf")})
    scene.make_ready(6, rewards=(1.0, 0.0, 0.5))
    make(scene, [task(100), Demonstration(task(0), "an answer", {})], "made", "demonstrations")
    [group] = scene.claim(1, group_size=3)
    scene.write(
        [
            rollout(group, 0, "1.0"),
            rollout(group, 1, error='it raised\n"this" and é\\'),
            rollout(group, 2, "0"),
        ]
    )
    [steps] = scene.claim(1)
    scene.write([attempt(steps, member, ["1.0", "0.5"], ["s", None]) for member in steps.members])
    scene.process()
    scene.train(step=1, size=2)
    scene.publish(1, step=1)
    scene.train(step=2, size=1)
    scene.reopen(version=1)
    scene.train(step=2, size=1)
    scene.draw(step=3, size=1)  # and no trainer commits it
    scene.pair()
    scene.evaluate(2, version=1)
    judge_and_set_back(scene)
    late = scene.claim(1)[0]
    scene.lose(scene.explorer)
    again = scene.new_worker(WorkerRole.EXPLORE)
    [taken] = scene.claim(1, worker=again)
    scene.write([rollout(late, 0, "late")])
    scene.write([rollout(taken, 1, "1")], worker=again)
    with database.transaction() as tx:
        agent = calls.begin(tx, again, taken, member=0, retry=0, key="key")
        asked = calls.Call(agent, 0, b"digest", "prompt", payload((1, 1)), "stop")
        assert calls.record(tx, again, [asked])
        point = parks.Point({"draft": None}, 1, [([0], None, None)], 1, None)
        parks.park(tx, again, agent, parks.ticket(tx, again, agent), taken.attempt, point, [])
        parks.answer(tx, parks.ticket(tx, again, agent), None, "ann")
        processing.record_steps(tx, scene.run.id, "clean", [{"name": "not_empty", "version": 1}])
        processing.claim(tx, processing.CLEAN, scene.run.id, scene.processor, 1)
        tx.execute(COMPUTED, [scene.run.id, group.id])
        tx.execute(PEOPLE, [scene.run.id])
    return scene


def judge_and_set_back(scene: Scene) -> None:
    """People reward a row of the run and an imported one, a teacher scores a row, the server loses a step."""
    with scene.database.transaction() as tx:
        [first, *_] = tx.execute(
            "SELECT id FROM trinity.rollout WHERE run_id = %s ORDER BY id", [scene.run.id]
        )
        [shared] = tx.execute(
            "SELECT min(rollout_id) AS id FROM trinity.experience WHERE run_id <> %s", [scene.run.id]
        )
        rewards.record(tx, scene.run.id, "human", [reward(first["id"], 3.0, "human")], "ann")
        rewards.record(tx, scene.run.id, "human", [reward(shared["id"], 0.125, "human")], "bob")
        last = tx.execute("SELECT id FROM trinity.experience WHERE rollout_id = %s", [first["id"]]).fetchone()
        assert last is not None
        tx.execute(
            "INSERT INTO trinity.score (experience_id, name, digest, data)"
            " VALUES (%s, 'teacher', 'digest', %s)",
            [last["id"], bytes(range(8))],
        )
        tx.execute(
            "INSERT INTO trinity.setback"
            " (run_id, worker_id, known_version, known_step, last_step, resumed_version)"
            " VALUES (%s, %s, 1, 2, 3, 1)",
            [scene.run.id, scene.trainer],
        )


def archive(scene: Scene) -> None:
    """Move the payloads that are done with to Lance."""
    archiver = Archiver(scene.database, scene.run, ArchiveConfig(min_rows=1), stopping=lambda: False)
    archiver.work(scene.processor)
    assert scene.value("SELECT count(*) FROM trinity.payload WHERE archive_row IS NOT NULL")


def leave(scene: Scene) -> None:
    """End every worker of a run, as its copy has them."""
    with scene.database.transaction() as tx:
        tx.execute(
            "UPDATE trinity.worker SET stopped_at = heartbeat_at WHERE stopped_at IS NULL AND run_id = %s",
            [scene.run.id],
        )
        workers.release_leases(tx, scene.run.id, 30.0)


def export(
    database: Database, folder: Path, name: str = "run", checkpoints: bool = False
) -> exporter.Exported:
    return export_run(database, name, folder, checkpoints, lambda table, rows: None)


def load(database: Database, folder: Path, name: str | None = None) -> importer.Imported:
    return import_run(database, folder, name, lambda table, rows: None)


def everything(database: Database) -> dict[str, list[Any]]:
    """Every row of the store as text."""
    with database.transaction() as tx:
        names = [
            r["tablename"] for r in tx.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'trinity'")
        ]
        return {
            name: [
                r["row"]
                for r in tx.execute(f'SELECT t::text AS row FROM trinity."{name}" t ORDER BY 1'.encode())
            ]
            for name in names
        }


def renamed(found: Contents, names: dict[str, str]) -> Contents:
    """What a copy must be whose runs and tasksets have other names."""
    for row in (*found["run"], *found["taskset"]):
        row["name"] = names.get(row["name"], row["name"])
    for row in (row for table in found.values() for row in table if "config" in row):
        config = row["config"]
        row["config"] = (
            config | {"name": names.get(config["name"], config["name"])} if "name" in config else config
        )
    found["taskset"].sort(key=repr)
    return found


def ids_and_references() -> Iterator[tuple[str, Any]]:
    for table in metadata.tables.values():
        for column in table.columns:
            yield table.name, column


def give_files(scene: Scene, folder: Path) -> None:
    """Each version of the run has the files of a checkpoint."""
    for version in scene.values("SELECT version FROM trinity.policy_version WHERE run_id = %s", scene.run.id):
        place = folder / f"version-{version:06d}"
        (place / "adapter").mkdir(parents=True)
        (place / "model.safetensors").write_bytes(bytes([version]) * 3_000_000)
        (place / "adapter" / "config.json").write_text("{}")
        scene.rows(
            "UPDATE trinity.policy_version SET checkpoint = %s, checkpoint_hash = %s"
            " WHERE run_id = %s AND version = %s RETURNING 1",
            *(str(place), digest(place), scene.run.id, version),
        )
        state = folder / f"checkpoint-{version:06d}" / "part-00000"
        state.mkdir(parents=True)
        (state / "trainer_state.pt").write_bytes(bytes([version]))
        scene.values(
            "UPDATE trinity.policy_version SET resume_from = %s, resume_hash = %s"
            " WHERE run_id = %s AND version = %s AND resume_from IS NOT NULL RETURNING 1",
            *(str(state.parent), digest(state), scene.run.id, version),
        )


def test_a_copy_equals_its_original_on_another_major_version(
    source: Database, target: Database, tmp_path: Path
) -> None:
    scene = lively(source)
    archive(scene)
    exported = export(source, tmp_path / "copy")
    imported = load(target, tmp_path / "copy")
    assert imported.rows == exported.rows
    assert imported.data == {name: name for name in DATA}
    assert imported.tasksets == {
        **imported.data,
        "made": "made",
        "tasks": "tasks-2",
    }  # the other run explores "tasks"
    leave(scene)
    original = contents(source, ["run", *DATA], TASKSETS)
    assert {table for table, found in original.items() if not found} == set()
    copy = contents(target, ["run", *DATA], ["tasks-2", "made", *DATA])
    assert copy == renamed(original, {"tasks": "tasks-2"})


def test_a_copy_of_the_other_version_stands_beside_the_original(
    source: Database, target: Database, tmp_path: Path
) -> None:
    lively(target)
    export(target, tmp_path / "there")
    load(source, tmp_path / "there")
    export(source, tmp_path / "here")
    before = everything(source)
    with pytest.raises(ConfigError, match="already exists; name the copy with --name"):
        load(source, tmp_path / "here")
    imported = load(source, tmp_path / "here", "again")
    assert imported.data == {name: f"{name}-2" for name in DATA}
    assert imported.tasksets == {**imported.data, "made": "made", "tasks": "tasks"}
    assert imported.num_matched_tasks == 9
    after = everything(source)
    assert {name: set(found) - set(after[name]) for name, found in before.items()} == {
        name: set() for name in before
    }
    names = {"run": "again", **imported.data}
    original = contents(source, ["run", *DATA], TASKSETS)
    copy = contents(
        source, [names[name] for name in ("run", *DATA)], ["tasks", "made", *imported.data.values()]
    )
    assert copy == renamed(original, names)


def test_rows_come_in_chunks(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "CHUNK_ROWS", 3)
    monkeypatch.setattr(folders, "READ_ROWS", 2)
    scene = lively(source)
    export(source, tmp_path / "copy")
    assert pq.ParquetFile(tmp_path / "copy/tables/experience.parquet").num_row_groups > 5
    imported = load(target, tmp_path / "copy")
    leave(scene)
    copy = contents(target, ["run", *DATA], list(imported.tasksets.values()))
    assert copy == renamed(contents(source, ["run", *DATA], TASKSETS), imported.tasksets)


def test_an_export_sees_one_moment_of_a_run_that_goes_on(
    source: Database, target: Database, tmp_path: Path
) -> None:
    scene = lively(source)
    before = contents(source, ["run", *DATA], TASKSETS)
    went_on: list[list[int]] = []

    def go_on(table: str, rows: int) -> None:
        if not went_on:
            with closing(Database(source.url)) as other:
                running = replace(scene, database=other)
                went_on.append(running.make_ready(2))
                running.train(step=4, size=1)

    export_run(source, "run", tmp_path / "copy", False, go_on)
    assert went_on
    imported = load(target, tmp_path / "copy")
    copy = contents(target, ["run", *DATA], list(imported.tasksets.values()))
    assert {table: len(found) for table, found in copy.items()} == {
        table: len(found) for table, found in before.items()
    }


def test_the_files_can_be_read_without_the_store(source: Database, tmp_path: Path) -> None:
    scene = lively(source)
    export(source, tmp_path / "copy")
    read = pq.read_table(tmp_path / "copy/tables/experience.parquet")
    assert read.schema.field("reward").type == pa.float64()
    assert str(read.schema.field("created_at").type) == "timestamp[us, tz=UTC]"
    own = [row for row in read.to_pylist() if row["run_id"] == scene.run.id]
    assert [row["id"] for row in own] == scene.values(
        "SELECT id FROM trinity.experience WHERE run_id = %s ORDER BY id", scene.run.id
    )
    text = (tmp_path / "copy/README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    found: dict[str, Any] = {}
    exec(code, found)
    row = next(
        row
        for row in pq.read_table(tmp_path / "copy/tables/payload.parquet").to_pylist()
        if row["num_tokens"] == 5
    )
    tokens, mask, logprobs, versions, temperatures, routing = found["arrays"](row["data"], row["num_tokens"])
    assert temperatures is None
    assert routing is None
    sampled = payload((1, 2))
    tempered = replace(sampled, temperatures=np.array([0.5, 1.5], np.float32))
    *_, temperatures, _ = found["arrays"](encode(tempered), tempered.num_tokens)
    assert temperatures.tolist() == [0.5, 1.5]
    experts = np.arange(sampled.num_tokens * 6 - 6, dtype=np.uint16).reshape(-1, 3, 2)
    for one in (replace(sampled, routing=experts), replace(tempered, routing=experts)):
        *_, routing = found["arrays"](encode(one), one.num_tokens)
        np.testing.assert_array_equal(routing, experts)
    assert (tokens.tolist(), mask.tolist()) == ([0, 1, 2, 3, 4], [0, 0, 0, 1, 1])
    assert logprobs is None or (len(logprobs), len(versions)) == (2, 2)


def test_a_copy_goes_on_and_its_new_draws_can_be_checked(
    source: Database, target: Database, tmp_path: Path
) -> None:
    give_files(lively(source), tmp_path / "run")
    export(source, tmp_path / "copy", checkpoints=True)
    load(target, tmp_path / "copy")
    with target.transaction() as tx:
        run = runs.find(tx, "run")
        explorer, processor, trainer = (workers.register(tx, run, role) for role in WorkerRole)
        tasks = TaskSelection({runs.find_taskset(tx, "tasks-2"): 1.0}, seed=0, walk="sequential")
    scene = Scene(target, run, tasks, explorer, processor, trainer)
    last = scene.value("SELECT max(id) FROM trinity.batch")
    with target.transaction() as tx, pytest.raises(TrinityError, match="another server"):
        first_difference(tx, find(tx, last))
    assert (
        scene.reopen(version=1) == 2
    )  # the step that no version includes, and the one that no trainer committed
    scene.process()
    scene.make_ready(2)
    for step in (2, 3, 4):
        scene.train(step, size=1)
    assert scene.draw_rows(step=5, size=4) is not None
    new = scene.values("SELECT id FROM trinity.batch WHERE id > %s ORDER BY id", last)
    assert len(new) == 4
    with target.transaction() as tx:
        assert [first_difference(tx, find(tx, batch)) for batch in new] == [None] * 4


def test_leases_of_processes_elsewhere_are_given_back(
    source: Database, target: Database, tmp_path: Path
) -> None:
    lively(source)
    held = "SELECT count(*) FROM trinity.{} WHERE worker_id IS NOT NULL"
    held += " AND state::text IN ('open', 'raw', 'clean', 'scored')"
    export(source, tmp_path / "copy")
    imported = load(target, tmp_path / "copy")
    assert imported.released.groups > 0
    assert imported.released.experiences > 0
    with target.transaction() as tx:
        counts = [
            tx.execute(held.format(table).encode()).fetchone() for table in ("rollout_group", "experience")
        ]
        alive = tx.execute(
            "SELECT count(*) AS n FROM trinity.worker w JOIN trinity.run r ON r.id = w.run_id"
            " WHERE r.name = 'run' AND w.stopped_at IS NULL"
        ).fetchone()
    assert counts == [{"count": 0}, {"count": 0}]
    assert alive == {"n": 0}


def test_a_data_set_is_a_run_too(source: Database, target: Database, tmp_path: Path) -> None:
    lively(source)
    export(source, tmp_path / "copy", "trajectories")
    assert load(target, tmp_path / "copy").rows["experience"] == 12
    original = contents(source, ["trajectories"], ["trajectories"])
    said = [row for row in original["reward_event"] if row["run_id"] == "none of these"]
    assert [row["created_by"] for row in said] == [
        "bob"
    ]  # who said it by way of the run that adopted the row
    said[0]["run_id"] = 0
    assert contents(target, ["trajectories"], ["trajectories"]) == original
    again = load(source, tmp_path / "copy", "some-more")
    assert (again.name, again.tasksets) == ("some-more", {"trajectories": "some-more"})


def test_a_copy_knows_what_was_made_and_its_caps_count_it(
    source: Database, target: Database, tmp_path: Path
) -> None:
    scene = Scene.open(source)
    made = {"taskset": "harder", "data": "answers", "total": 3}
    with source.transaction() as tx:
        tx.execute(
            "UPDATE trinity.run SET config = jsonb_set(config, '{processors,made}', %s)", [Jsonb(made)]
        )
    make(scene, [task(100), Demonstration(task(0), "an answer", {})], "harder", "answers")
    import_records(target, "answers", [demonstration(1)])
    open_writer(target, "tasks", "harder")([task(7)])
    assert export(source, tmp_path / "copy").data == ["answers"]
    load(target, tmp_path / "copy", "again")
    found = (
        "SELECT o.step, o.source_run, g.payload ->> 'prompt' AS source, t.payload ->> 'prompt' AS made,"
        " x.response, e.group_id = o.source_group_id AS is_shown, o.source_reward"
        " FROM trinity.origin_view o JOIN trinity.task g ON g.id = o.source_task_id"
        " JOIN trinity.experience e ON e.id = o.source_experience_id"
        " LEFT JOIN trinity.task t ON t.id = o.task_id"
        " LEFT JOIN trinity.experience_text x ON x.experience_id = o.experience_id ORDER BY t.id"
    )
    with target.transaction() as tx:
        assert [tuple(row.values()) for row in tx.execute(found)] == [
            ("maker", "again", "task 0", "task 100", None, True, 1.0),
            ("maker", "again", "task 0", None, "an answer", True, 1.0),
        ]
        run = runs.find(tx, "again")
        assert synthesis.count_made(tx, run.id) == 2
        [kept] = tx.execute(
            "SELECT config -> 'processors' -> 'made' AS made FROM trinity.run WHERE id = %s", [run.id]
        )
        assert kept["made"] == {"taskset": "harder-2", "data": "answers-2", "total": 3}
        [one] = tx.execute(
            "SELECT count(*) AS due FROM trinity.synthesis WHERE refused = '{\"duplicate\": 1}'"
        )
        assert one["due"] == 1


def test_checkpoints_come_along_on_request(source: Database, target: Database, tmp_path: Path) -> None:
    give_files(lively(source), tmp_path / "run")
    assert export(source, tmp_path / "bare").checkpoints == []
    assert load(target, tmp_path / "bare", "bare").checkpoints == []
    assert sorted(export(source, tmp_path / "copy", checkpoints=True).checkpoints) == [0, 1]
    shutil.rmtree(tmp_path / "run")  # the original's files are not needed any more
    assert sorted(load(target, tmp_path / "copy").checkpoints) == [0, 1]
    with target.transaction() as tx:
        kept = policies.with_checkpoint(tx, runs.find(tx, "run").id)
        assert policies.with_checkpoint(tx, runs.find(tx, "bare").id) == []
    assert [policy.version for policy in kept] == [1, 0]
    for policy in kept:
        assert policy.checkpoint.is_relative_to(tmp_path / "home")
        assert digest(policy.checkpoint) == policy.checkpoint_hash
    [resumed, none] = [policy.resumed for policy in kept]
    assert resumed is not None
    assert none is None
    assert resumed.folder.is_relative_to(tmp_path / "home")
    assert verify_checkpoint(resumed.folder, resumed.hash)


@pytest.mark.parametrize(
    ("moment", "gone", "copied", "is_checkpoint"),
    [
        ("run", 2, [2, 1, 0], True),
        ("checkpoint 1", 1, [2, 0], True),
        ("checkpoint 2", 2, None, True),
        ("checkpoint 1", 1, None, False),
    ],
)
def test_a_run_may_delete_old_checkpoints_while_it_is_copied(
    source: Database,
    target: Database,
    tmp_path: Path,
    moment: str,
    gone: int,
    copied: list[int] | None,
    is_checkpoint: bool,
) -> None:
    """But for the newest, and the newest that a trainer goes on from."""
    scene = lively(source)
    scene.publish(2, step=2, with_checkpoint=is_checkpoint)
    give_files(scene, tmp_path / "run")

    def trainer(now: str, _: int) -> None:
        if now == moment:
            shutil.rmtree(tmp_path / "run" / f"version-{gone:06d}")
            with closing(Database(source.url)) as other, other.transaction() as tx:
                tx.execute(
                    "UPDATE trinity.policy_version SET checkpoint = NULL, resume_from = NULL"
                    " WHERE version = %s",
                    [gone],
                )

    def export_now() -> list[int]:
        return export_run(source, "run", tmp_path / "copy", True, trainer).checkpoints

    if copied is None:
        with pytest.raises(TrinityError, match=f"Version {gone}: the run deleted it during the export"):
            export_now()
        return
    assert export_now() == copied
    assert sorted(load(target, tmp_path / "copy").checkpoints) == sorted(copied)


@pytest.mark.parametrize(("gone", "newest"), [(1, 2), (2, 2), (1, 1)])
def test_a_run_may_delete_an_old_checkpoint_and_keep_its_weights_while_it_is_copied(
    source: Database, target: Database, tmp_path: Path, gone: int, newest: int
) -> None:
    """But for the latest checkpoint. Then the weights come along without it."""
    scene = lively(source)
    scene.publish(2, step=2, with_checkpoint=newest == 2)
    give_files(scene, tmp_path / "run")

    def trainer(now: str, _: int) -> None:
        if now == f"checkpoint {gone}":
            shutil.rmtree(tmp_path / "run" / f"checkpoint-{gone:06d}")
            with closing(Database(source.url)) as other, other.transaction() as tx:
                forget = "UPDATE trinity.policy_version SET resume_from = NULL WHERE version = %s"
                tx.execute(forget, [gone])

    if gone == newest:
        with pytest.raises(TrinityError, match=f"Version {gone}: the run deleted it during the export"):
            export_run(source, "run", tmp_path / "copy", True, trainer)
        return
    assert export_run(source, "run", tmp_path / "copy", True, trainer).checkpoints == [2, 1, 0]
    assert sorted(load(target, tmp_path / "copy").checkpoints) == [0, 1, 2]
    with target.transaction() as tx:
        kept = policies.with_checkpoint(tx, runs.find(tx, "run").id)
    assert all(digest(policy.checkpoint) == policy.checkpoint_hash for policy in kept)
    assert [policy.resumed is None for policy in kept] == [False, True, True]


def test_a_damaged_checkpoint_is_not_copied(source: Database, target: Database, tmp_path: Path) -> None:
    give_files(lively(source), tmp_path / "run")
    export(source, tmp_path / "copy", checkpoints=True)
    weights = tmp_path / "run/version-000001/model.safetensors"
    weights.write_bytes(b"x" * 3_000_000)
    with pytest.raises(TrinityError, match=r"Version 1: its files in .* differ from the published ones"):
        export(source, tmp_path / "another", checkpoints=True)
    assert not (tmp_path / "another").exists()
    assert not list(tmp_path.glob(".another*"))
    before = everything(target)
    for damaged in ("checkpoint-000001/part-00000/trainer_state.pt", "version-000001/model.safetensors"):
        (tmp_path / "copy/checkpoints" / damaged).write_bytes(b"x" * 3_000_000)
        with pytest.raises(ImportFileError, match=f"{damaged[:10]}.*their digest differs"):
            load(target, tmp_path / "copy")
    assert everything(target) == before


def test_a_damaged_checkpoint_beside_whole_weights_is_not_copied(source: Database, tmp_path: Path) -> None:
    scene = lively(source)
    scene.publish(2, step=2)
    give_files(scene, tmp_path / "run")
    (tmp_path / "run/checkpoint-000001/part-00000/trainer_state.pt").write_bytes(b"damaged")
    with pytest.raises(TrinityError, match=r"Version 1: its files in .*checkpoint-000001 differ from"):
        export(source, tmp_path / "copy", checkpoints=True)
    assert not (tmp_path / "copy").exists()


def test_an_import_that_ends_in_between_leaves_nothing(
    source: Database, target: Database, tmp_path: Path
) -> None:
    give_files(lively(source), tmp_path / "run")
    export(source, tmp_path / "copy", checkpoints=True)
    before = everything(target)

    def stop(table: str, rows: int) -> None:
        if table == "reward_event":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_run(target, tmp_path / "copy", None, stop)
    assert everything(target) == before
    assert list((tmp_path / "home").rglob("*.safetensors")) == []
    load(target, tmp_path / "copy")


def manifest(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rewrite(folder: Path, table: str, **columns: Any) -> None:
    """Another content for columns of a table, with the digest that belongs to it."""
    path = folder / f"tables/{table}.parquet"
    read = pq.read_table(path)
    for name, value in columns.items():
        field = read.schema.field(name)
        read = read.set_column(
            read.schema.get_field_index(name), field, pa.array([value] * read.num_rows, field.type)
        )
    pq.write_table(read, path)
    content = json.loads((folder / "manifest.json").read_text())
    content["tables"][table]["sha256"] = folders.file_digest(path)
    (folder / "manifest.json").write_text(json.dumps(content))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def other_ids(folder: Path, ids: list[int]) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    content["tables"]["experience"]["ids"] = ids
    (folder / "manifest.json").write_text(json.dumps(content))


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".elsewhere"))
    path.unlink()
    path.symlink_to(path.with_suffix(".elsewhere"))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "manifest.json: is missing"),
    "no JSON": (lambda f: (f / "manifest.json").write_text("{"), "cannot be read"),
    "deep JSON": (lambda f: (f / "manifest.json").write_text("[" * 100_000), "cannot be read"),
    "no object": (lambda f: (f / "manifest.json").write_text("[]"), "is not a manifest"),
    "a newer format": (lambda f: manifest(f, format=2, more=1), "newer than this trinity-db supports"),
    "another key": (lambda f: manifest(f, path="/etc/passwd"), "is not a manifest"),
    "another schema": (lambda f: manifest(f, schema_version="0000"), "was written at schema '0000'"),
    "no tables": (lambda f: manifest(f, tables={}), "does not match schema"),
    "a path for a table": (
        lambda f: manifest(f, tables={"../../x": {"rows": 0, "sha256": "0" * 64}}), "does not match schema"
    ),
    "another run": (lambda f: manifest(f, run="../other"), "is not a valid"),
    "a run that it does not name": (lambda f: manifest(f, run="other"), "does not name"),
    "a data set that it does not name": (lambda f: manifest(f, data=[]), "does not name"),
    "a checkpoint that is missing": (
        lambda f: manifest(f, checkpoints=[{"version": 1, "sha256": "0" * 64}]), "version-000001: is missing"
    ),
    "a table that is missing": (lambda f: (f / "tables/score.parquet").unlink(), "score.parquet: is missing"),
    "a changed byte": (lambda f: flip(f / "tables/payload.parquet"), "its digest differs"),
    "a cut file": (lambda f: os.truncate(f / "tables/metric.parquet", 100), "its digest differs"),
    "a link": (lambda f: link(f / "tables/task.parquet"), "is not a regular file"),
    "a folder for a file": (lambda f: make_folder(f / "tables/task.parquet"), "is not a regular file"),
    "ids that are too many": (lambda f: other_ids(f, [1, 2**60]), "the ids of experience reach from 1 to"),
    "ids below zero": (lambda f: other_ids(f, [-5, 10]), "the ids of experience reach from -5"),
    "ids of other rows": (lambda f: other_ids(f, [1, 3]), "refers to a row of experience that is not in"),
    "no such state": (lambda f: rewrite(f, "experience", state="odd"), "rejects rows of table experience"),
    "a broken rule": (lambda f: rewrite(f, "batch", size=0), "rejects rows of table batch"),
    "a broken key": (lambda f: rewrite(f, "batch", policy_version=77), "rejects rows of table batch"),
    "JSON that is none": (lambda f: rewrite(f, "task", payload="{"), "rejects rows of table task"),
    "NUL": (lambda f: rewrite(f, "experience_text", prompt="a\0b"), "rejects rows of table experience_text"),
    "the same id twice": (lambda f: rewrite(f, "metric", id=1), "rejects rows of table metric"),
    "no such task": (lambda f: rewrite(f, "rollout_group", task_id=2**40), "refers to a row of task"),
}  # fmt: skip


@pytest.fixture(scope="module")
def good(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to spoil."""
    folder = tmp_path_factory.mktemp("good") / "copy"
    with new_database(server, template) as url, closing(Database(url)) as database:
        lively(database)
        export(database, folder)
    return folder


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_one_line_and_nothing_is_written(
    shared_database: Database, good: Path, tmp_path: Path, name: str
) -> None:
    spoil, message = BAD[name]
    shutil.copytree(good, tmp_path / "copy")
    spoil(tmp_path / "copy")
    before = everything(shared_database)
    with pytest.raises(TrinityError) as refused:
        load(shared_database, tmp_path / "copy")
    assert message in str(refused.value)
    assert str(refused.value).isprintable()
    assert everything(shared_database) == before


@pytest.mark.parametrize("name", ["", "a b", "../x", "é", "x" * 300, "a\nb"])
def test_a_name_that_is_none_for_a_run_is_refused(shared_database: Database, good: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="--name"):
        load(shared_database, good, name)


def test_an_export_writes_over_nothing(source: Database, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no run 'run'"):
        export(source, tmp_path / "copy")
    lively(source)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    for taken in (tmp_path / "full", tmp_path / "file"):
        with pytest.raises(ConfigError, match="already exists"):
            export(source, taken)
    with pytest.raises(ConfigError, match="does not exist"):
        export(source, tmp_path / "no/folder")
    export(source, tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "lance") == [
        "empty",
        "file",
        "full",
    ]


def test_a_taskset_is_matched_where_all_of_its_tasks_are_there(
    source: Database, target: Database, tmp_path: Path
) -> None:
    Scene.open(source, num_tasks=5).make_ready(5)
    export(source, tmp_path / "copy")
    first = load(target, tmp_path / "copy")
    assert (first.tasksets, first.num_matched_tasks) == (
        {"tasks": "tasks-2"},
        0,
    )  # the one there has three of the five
    open_writer(target, "tasks", "tasks")([task(number) for number in range(9, -1, -1)])
    second = load(target, tmp_path / "copy", "second")
    assert (second.tasksets, second.num_matched_tasks) == ({"tasks": "tasks"}, 5)
    names = [
        "SELECT t.payload ->> 'prompt' AS prompt FROM trinity.rollout_group g"
        " JOIN trinity.task t ON t.id = g.task_id"
        f" JOIN trinity.run r ON r.id = g.run_id WHERE r.name = '{name}' ORDER BY g.id"
        for name in ("run", "second")
    ]
    with target.transaction() as tx:
        assert [[row["prompt"] for row in tx.execute(name.encode())] for name in names] == [
            [f"task {number}" for number in range(5)]
        ] * 2


def test_every_table_has_a_place_in_a_copy() -> None:
    covered = {copied.name for copied in tables.copied_tables()}
    assert {table.name for table in metadata.tables.values()} - covered == OF_THE_STORE & {
        table.name for table in metadata.tables.values()
    }


def test_every_column_that_may_hold_an_id_says_of_what() -> None:
    numbers = {"seed"}  # bigints that count nothing that the server gives out
    found = {copied.name: copied for copied in tables.copied_tables()}
    for table, column in ids_and_references():
        if table not in found or column.computed is not None or not isinstance(column.type, BigInteger):
            continue
        known = {**found[table].references, **found[table].places}
        declared = column.name in known or column.identity is not None or "copied_as" in column.info
        assert declared or column.name in numbers, f"{table}.{column.name}"


def test_a_table_of_no_run_must_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    more = MetaData(schema="trinity")
    Table("loose", more, Column("id", BigInteger, Identity(), primary_key=True))
    monkeypatch.setattr(tables, "metadata", more)
    with pytest.raises(tables.Uncovered, match="which rows of loose belong to a run"):
        tables.copied_tables()
