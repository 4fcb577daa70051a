"""The archive: payloads move to Lance and back into readers' hands, whatever happens in between."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import pytest

from tests.support.disk import fill, small_disk
from tests.support.rows import Scene, attempt, copy_of, payload, rollout, with_step
from trinity_db.arrays import archive, codec
from trinity_db.arrays.codec import encode
from trinity_db.errors import NotFound, TrinityError
from trinity_db.postgres import logins
from trinity_db.postgres.connection import Transaction, connect
from trinity_db.processors.config import ArchiveConfig
from trinity_db.processors.jobs.archive import Archiver
from trinity_db.schema.states import WorkerRole
from trinity_db.store import batches, instances, payloads, runs
from trinity_db.store.processing import CLEAN, SCORE

IN_POSTGRES = "SELECT count(*) FROM trinity.payload WHERE data IS NOT NULL"
IN_TRANSACTION = """
SELECT count(*) AS sessions FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND xact_start IS NOT NULL
  AND pid <> pg_backend_pid()
"""
ARCHIVED = "SELECT count(*) FROM trinity.payload WHERE archive_row IS NOT NULL"


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the archive lies."""
    monkeypatch.setenv("TRINITY_DB_LANCE_URI", str(tmp_path / "lance"))
    return tmp_path / "lance"


def archiver(scene: Scene, min_rows: int = 1) -> Archiver:
    return Archiver(scene.database, scene.run, ArchiveConfig(min_rows=min_rows), stopping=lambda: False)


def name(scene: Scene) -> str:
    """The run's Lance table, the newest where there are several."""
    return str(scene.values("SELECT name FROM trinity.archive ORDER BY number")[-1])


def folder(scene: Scene, place: Path) -> Path:
    return place / f"{name(scene)}.lance"


def train(scene: Scene, step: int, size: int = 2) -> batches.Batch:
    """A step on new groups of two rows each."""
    scene.make_ready(size)
    return scene.train(step, size)


def read(scene: Scene) -> dict[int, bytes]:
    """Every payload as a reader sees it."""
    found = payloads.read(scene.database, scene.values("SELECT id FROM trinity.experience"))
    return {id: encode(payload) for id, payload in found.items()}


def archive_rows(scene: Scene) -> list[tuple[int, int]]:
    return scene.rows("SELECT archive_row, experience_id FROM trinity.payload WHERE archive_row IS NOT NULL")


def assert_each_is_there_once(scene: Scene) -> None:
    """What each Lance table holds is what is pointed to."""
    for table, number, num_rows in scene.rows("SELECT name, number, num_rows FROM trinity.archive"):
        in_lance = [one for part in archive.Writer(table, must_exist=True).archive_rows() for one in part]
        pointed = scene.rows(
            "SELECT archive_row, experience_id FROM trinity.payload"
            " WHERE archive_row IS NOT NULL AND archive_number = %s",
            number,
        )
        assert sorted(in_lance) == sorted(pointed)
        assert num_rows == len(in_lance)


@pytest.fixture
def copy(scene: Scene, server: str) -> Iterator[Scene]:
    """A copy of a store that has archived a step, and has another one that is not archived yet."""
    train(scene, step=1)
    assert archiver(scene).finish(scene.processor)
    train(scene, step=2)
    with copy_of(scene, server) as copy:
        yield copy


def test_a_copy_reads_its_originals_table_and_archives_into_one_of_its_own(
    scene: Scene, copy: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    train(scene, step=3)
    train(copy, step=3, size=4)
    before = read(scene), read(copy)
    for one in (copy, scene, copy, scene):
        assert archiver(one).finish(one.processor)
        train(one, step=1 + one.value("SELECT max(step) FROM trinity.batch"))
        assert (read(scene).items() >= before[0].items(), read(copy).items() >= before[1].items()) == (
            True,
            True,
        )
    assert "removed" not in caplog.text, "no row of the other was taken for an orphan"
    assert scene.values("SELECT number FROM trinity.archive") == [0]
    assert copy.values("SELECT number FROM trinity.archive ORDER BY number") == [0, 1]
    assert_each_is_there_once(scene)
    own = [one for part in archive.Writer(name(copy), must_exist=True).archive_rows() for one in part]
    pointed = copy.rows("SELECT archive_row, experience_id FROM trinity.payload WHERE archive_number = 1")
    assert sorted(own) == sorted(pointed)


def test_many_small_files_of_the_original_are_not_merged_by_its_copy(
    scene: Scene, copy: Scene, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MERGE_FILES", 1)
    original = {path: path.stat().st_mtime_ns for path in (place / f"{name(scene)}.lance").rglob("*")}
    assert archiver(copy).finish(copy.processor)
    assert {path: path.stat().st_mtime_ns for path in (place / f"{name(scene)}.lance").rglob("*")} == original


def test_a_store_that_was_moved_goes_on_with_its_table(scene: Scene, copy: Scene) -> None:
    table = name(scene)
    with copy.database.transaction() as tx:
        assert instances.declare_moved(tx)
    assert archiver(copy).finish(copy.processor)
    assert copy.values("SELECT name FROM trinity.archive") == [table]
    assert_each_is_there_once(copy)


def test_a_copy_that_has_archived_stays_a_copy(copy: Scene) -> None:
    assert archiver(copy).finish(copy.processor)
    with (
        pytest.raises(TrinityError, match="archived arrays as a copy"),
        copy.database.transaction() as tx,
    ):
        instances.declare_moved(tx)


def test_a_server_that_was_replaced_by_a_copy_moves_nothing_to_the_originals_table(
    scene: Scene, copy: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = archiver(scene)
    before = read(scene)
    after(monkeypatch, archive.Writer, "append", lambda: setattr(works, "_database", copy.database))
    assert not works.work(scene.processor), "the lease is the original's"
    assert copy.value(ARCHIVED) == 4
    assert archiver(scene).finish(scene.processor), "the original finds what was appended, and archives anew"
    assert read(scene) == before
    assert_each_is_there_once(scene)


def test_a_processor_archives_for_no_store_of_which_it_cannot_say_which_it_is(
    scene: Scene, copy: Scene, server: str
) -> None:
    with closing(connect(copy.database.url)) as owner, owner.transaction():
        logins.open_to_roles(owner)

    def claim(one: Scene) -> payloads.Lease | None:
        with one.database.transaction() as tx:
            tx.execute("SET LOCAL ROLE trinity_processor")
            return payloads.claim_archive(tx, one.run.id, one.processor, lease_seconds=30)

    with pytest.raises(TrinityError, match=r"a copy of another one, or was moved.*start its trainer"):
        claim(copy)
    with copy.database.transaction() as tx:
        own = instances.identify(tx)
    assert (lease := claim(copy)) is not None
    assert (lease.store, lease.number) == (own.id, 1)
    with copy.database.transaction() as tx:
        tx.execute("DELETE FROM trinity.store_instance")
    assert claim(copy) is not None, "the first role that owns files says which store this is"


def test_every_reader_gets_the_same_bytes_from_the_archive(scene: Scene) -> None:
    batch = train(scene, step=1)
    before = read(scene)
    rows_before = batches.read(scene.database, batch.id)
    assert archiver(scene).finish(scene.processor)
    assert scene.value(IN_POSTGRES) == 0
    assert read(scene) == before
    rows = batches.read(scene.database, batch.id)
    assert [encode(row.payload) for row in rows] == [encode(row.payload) for row in rows_before]
    assert [row.experience_id for row in rows] == [row.experience_id for row in rows_before]
    assert scene.rows("SELECT num_rows, num_bytes FROM trinity.archive") == [
        (4, sum(map(len, before.values())))
    ]
    assert_each_is_there_once(scene)


def test_temperatures_of_calls_go_with_their_tokens_to_the_trainer_and_into_the_archive(scene: Scene) -> None:
    """Also of rows that are written together with others that have none."""
    [group] = scene.claim(1)
    own = replace(payload((0, 0)), temperatures=np.array([0.5, 1.5], np.float32))
    steps = attempt(group, 1, ["1", "2"]).steps
    tempered = [steps[0], replace(steps[1], payload=own)]
    scene.write(
        [with_step(rollout(group, 0, "1.0"), payload=own), replace(attempt(group, 1, "12"), steps=tempered)]
    )
    scene.process()
    batch = scene.train(step=1, size=1)
    for _ in ("in Postgres", "in the archive"):
        found = [row.payload.temperatures for row in batches.read(scene.database, batch.id)]
        assert [None if one is None else one.tolist() for one in found] == [[0.5, 1.5], None, [0.5, 1.5]]
        archiver(scene).finish(scene.processor)
    assert scene.value(IN_POSTGRES) == 0


def test_a_row_that_is_drawn_again_is_read_from_the_archive(scene: Scene) -> None:
    train(scene, step=1)
    before = read(scene)
    archiver(scene).finish(scene.processor)
    assert scene.reopen(version=0) == 1
    batch = scene.train(step=1, size=2)
    rows = batches.read(scene.database, batch.id)
    assert {row.experience_id: encode(row.payload) for row in rows} == before


def test_no_transaction_stands_still_while_the_archive_is_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = train(scene, step=1)
    archiver(scene).finish(scene.processor)
    take, found = archive._take, list[Any]()
    with closing(connect(scene.database.url, autocommit=True)) as observer:

        def watched(*arguments: Any) -> dict[int, bytes]:
            found.append(observer.execute(IN_TRANSACTION).fetchone())
            return take(*arguments)

        monkeypatch.setattr(archive, "_take", watched)
        assert len(batches.read(scene.database, batch.id)) == len(read(scene)) == 4
    assert found == [{"sessions": 0}] * 2


def test_only_rows_that_are_done_with_are_archived(scene: Scene) -> None:
    train(scene, step=1)
    scene.make_ready(2)
    [group] = scene.claim(1)
    scene.write([rollout(group, 0)])
    scene.judge(CLEAN)
    scene.judge(SCORE)
    scene.explore(1)
    assert archiver(scene).finish(scene.processor)
    left = "SELECT e.state FROM trinity.experience e JOIN trinity.payload p ON p.experience_id = e.id"
    assert sorted(scene.values(f"{left} WHERE p.data IS NOT NULL")) == [
        *["raw"] * 2,
        *["ready"] * 4,
        "scored",
    ]
    with scene.database.transaction() as tx:
        runs.finish(tx, scene.run.id)
    assert archiver(scene).finish(scene.new_worker(WorkerRole.PROCESS)), "another one is alive"
    assert len(scene.values(f"{left} WHERE p.data IS NOT NULL")) == 7
    assert archiver(scene).finish(scene.processor)
    assert scene.values(f"{left} WHERE p.data IS NOT NULL") == ["raw", "raw"]


def test_while_the_run_goes_on_few_rows_are_left_where_they_are(scene: Scene) -> None:
    works = archiver(scene, min_rows=8)
    train(scene, step=1)
    assert not works.work(scene.processor)
    assert scene.value(ARCHIVED) == 0
    assert scene.value("SELECT count(*) FROM trinity.archive") == 0
    train(scene, step=2)
    assert archiver(scene, min_rows=8).work(scene.processor)
    assert scene.value(IN_POSTGRES) == 0


def test_one_of_two_archivers_works(scene: Scene) -> None:
    first, second = archiver(scene), archiver(scene)
    other = scene.new_worker(WorkerRole.PROCESS)
    train(scene, step=1)
    assert first.work(scene.processor)
    train(scene, step=2)
    assert not second.work(other)
    assert scene.value(ARCHIVED) == 4
    scene.lose(scene.processor)
    assert second.finish(other)
    assert scene.value(ARCHIVED) == 8
    assert scene.values("SELECT worker_id FROM trinity.archive") == [other]
    assert_each_is_there_once(scene)


def after(monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, then: Callable[[], None]) -> None:
    """Let something happen once, when a method has returned."""
    original = getattr(owner, method)

    def patched(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        monkeypatch.setattr(owner, method, original)
        then()
        return result

    monkeypatch.setattr(owner, method, patched)


def test_what_a_replaced_archiver_appended_is_removed_and_its_move_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train(scene, step=1)
    before = read(scene)
    other = scene.new_worker(WorkerRole.PROCESS)

    def replace() -> None:
        scene.lose(scene.processor)
        assert archiver(scene).finish(other)

    after(monkeypatch, archive.Writer, "append", replace)
    assert not archiver(scene).work(scene.processor)
    assert "removed 4 copies" in caplog.text
    assert "another has its place" in caplog.text
    assert read(scene) == before
    assert_each_is_there_once(scene)


def test_a_move_under_an_earlier_attempt_is_refused(scene: Scene) -> None:
    train(scene, step=1)
    with scene.database.transaction() as tx:
        early = payloads.claim_archive(tx, scene.run.id, scene.processor, lease_seconds=30)
        late = payloads.claim_archive(tx, scene.run.id, scene.processor, lease_seconds=30)
    assert early is not None
    assert late is not None
    ids = scene.values("SELECT experience_id FROM trinity.payload")
    for verb in (
        lambda tx: payloads.move(tx, early, dict(enumerate(ids)), 0),
        lambda tx: payloads.orphans(tx, early, [(1, ids[0])]),
        lambda tx: payloads.num_archived(tx, early),
    ):
        with pytest.raises(TrinityError, match="Another worker archives"), scene.database.transaction() as tx:
            verb(tx)
    assert scene.value(ARCHIVED) == 0


def test_a_silent_archiver_is_replaced(scene: Scene) -> None:
    other = scene.new_worker(WorkerRole.PROCESS)

    def claim(tx: Transaction, worker: int) -> bool:
        return payloads.claim_archive(tx, scene.run.id, worker, lease_seconds=30) is not None

    with scene.database.transaction() as tx:
        assert claim(tx, scene.processor)
        assert not claim(tx, other)
        tx.execute(
            "UPDATE trinity.worker SET heartbeat_at = now() - interval '31 s' WHERE id = %s",
            [scene.processor],
        )
        assert claim(tx, other)
        assert not claim(tx, scene.processor)


def test_what_a_killed_archiver_appended_is_removed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    train(scene, step=1)
    before = read(scene)

    def die() -> None:
        raise KeyboardInterrupt

    after(monkeypatch, archive.Writer, "append", die)
    with pytest.raises(KeyboardInterrupt):
        archiver(scene).finish(scene.processor)
    assert scene.value(ARCHIVED) == 0
    assert archive.Writer(name(scene), must_exist=True).count() == 4
    assert archiver(scene).finish(scene.processor)
    assert read(scene) == before
    assert_each_is_there_once(scene)


def test_merging_files_moves_no_row(scene: Scene, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MERGE_FILES", 4)
    works = archiver(scene)
    train(scene, step=1)
    works.finish(scene.processor)
    read(scene)
    reader = archive._table(str(place), name(scene))
    archive._table.cache_clear()  # the writer's is another process's, as it were
    works = archiver(scene)
    for step in range(2, 6):
        train(scene, step)
        before = read(scene)
        works.finish(scene.processor)
        assert read(scene) == before
    assert len(list((folder(scene, place) / "data").iterdir())) == 2
    assert_each_is_there_once(scene)
    monkeypatch.setattr(archive, "_table", lambda uri, name: reader)
    assert reader.count_rows() == 4, "a reader that has not looked since"
    assert read(scene) == before


def test_everything_is_flushed_before_postgres_lets_go(
    scene: Scene, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: dict[str, tuple[int, int]] = {}
    fsync, move = os.fsync, payloads.move
    moves: list[int] = []

    def stamp(path: str) -> tuple[int, int]:
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns

    def watched_fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        fsync(descriptor)
        flushed[path] = stamp(path)

    def watched_move(*arguments: Any) -> None:
        there = [place.parent, place, *folder(scene, place).rglob("*"), folder(scene, place)]
        assert {str(path): stamp(str(path)) for path in there}.items() <= flushed.items()
        moves.append(len(there))
        move(*arguments)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(payloads, "move", watched_move)
    works = archiver(scene)
    for step in range(1, 4):
        train(scene, step)
        works.finish(scene.processor)
    assert len(moves) == 3
    assert moves == sorted(set(moves)), "each append makes files"


def test_a_missing_archive_is_named_and_harms_no_other_run(
    scene: Scene, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(scene, step=1)
    archived = scene.values("SELECT id FROM trinity.experience")
    archiver(scene).finish(scene.processor)
    scene.make_ready(1)
    [*hot] = scene.values("SELECT id FROM trinity.experience WHERE state = 'ready'")
    monkeypatch.setenv("TRINITY_DB_LANCE_URI", str(place / "elsewhere"))
    assert payloads.read(scene.database, hot).keys() == set(hot)
    with pytest.raises(NotFound, match=r"no table run_\d+_.*TRINITY_DB_LANCE_URI"):
        payloads.read(scene.database, archived)
    assert not (place / "elsewhere").exists(), "to look makes no folder"
    train(scene, step=2)
    with pytest.raises(NotFound, match="TRINITY_DB_LANCE_URI"):
        archiver(scene).finish(scene.processor)
    assert not (place / "elsewhere").exists(), "a second archive would have the same row ids"


def test_a_row_that_the_archive_lost_is_named(scene: Scene) -> None:
    train(scene, step=1)
    archiver(scene).finish(scene.processor)
    [(row, lost), *_] = archive_rows(scene)
    archive.Writer(name(scene), must_exist=True).remove([row])
    with pytest.raises(NotFound, match=rf"experience {lost} are not in the archive"):
        read(scene)


def test_a_row_of_another_experience_is_not_taken_for_it(scene: Scene) -> None:
    train(scene, step=1)
    archiver(scene).finish(scene.processor)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.payload SET archive_row = (archive_row + 1) % 4")
    with pytest.raises(NotFound, match="and of 3 others are not in the archive"):
        read(scene)


def test_a_damaged_archive_is_said_in_one_line(scene: Scene, place: Path) -> None:
    train(scene, step=1)
    archiver(scene).finish(scene.processor)
    for file in (folder(scene, place) / "data").iterdir():
        os.truncate(file, 10)
    archive._table.cache_clear()
    archive.connection.cache_clear()
    with pytest.raises(TrinityError, match=r"cannot be read: .*TRINITY_DB_LANCE_URI") as raised:
        read(scene)
    assert "\n" not in str(raised.value)


def test_a_full_disk_leaves_everything_where_it_is(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "small") as disk:
        monkeypatch.setenv("TRINITY_DB_LANCE_URI", str(disk / "lance"))
        train(scene, step=1)
        archiver(scene).finish(scene.processor)
        ballast = fill(disk)
        train(scene, step=2)
        before = read(scene)
        works = archiver(scene)
        assert not works.work(scene.processor)
        assert "cannot be written" in caplog.text
        with pytest.raises(TrinityError, match="cannot be written"):
            works.finish(scene.processor)
        assert scene.value(IN_POSTGRES) == 4
        assert read(scene) == before
        ballast.unlink()
        assert works.finish(scene.processor)
        assert scene.value(IN_POSTGRES) == 0
        assert read(scene) == before
        assert_each_is_there_once(scene)


def test_others_read_the_table_of_a_run_without_us(scene: Scene, place: Path) -> None:
    """With lancedb and pyarrow alone."""
    [group] = scene.claim(1)
    scene.write([rollout(group, 0, "0.25", (0, 0)), rollout(group, 1, "-1.5", (0, 0))])
    scene.process()
    scene.train(step=1, size=1)
    expected = payloads.read(scene.database, scene.values("SELECT id FROM trinity.experience"))
    assert archiver(scene).finish(scene.processor)
    store = lancedb.connect(place)
    [table] = store.list_tables().tables
    assert table.startswith(f"run_{scene.run.id}_")
    found = store.open_table(table).to_arrow()
    assert found.schema.field("token_ids").type == pa.list_(pa.int32())
    names = ["experience_id", "run", "prompt", "response", "reward", "version_min", "version_max"]
    seen = scene.rows(
        "SELECT e.id, 'run' AS run, x.prompt, x.response, e.reward, e.version_min, e.version_max"
        " FROM trinity.experience e JOIN trinity.experience_text x ON x.experience_id = e.id ORDER BY e.id"
    )
    assert [tuple(row.values()) for row in found.select(names).to_pylist()] == seen
    assert [row[3] for row in seen] == ["0.25", "-1.5"]
    for row in found.to_pylist():
        payload = expected[row["experience_id"]]
        assert row["token_ids"] == payload.token_ids.tolist()
        assert row["action_mask"] == payload.action_mask.tolist()
        packed = codec.decode(row["codec"], row["data"], row["num_tokens"])
        assert packed.logprobs is not None
        assert payload.logprobs is not None
        assert packed.logprobs.tolist() == payload.logprobs.tolist()
    assert store.open_table(table).search().where("reward > 0").to_arrow().num_rows == 1


@pytest.mark.parametrize(
    ("called", "table"),
    [("gsm8k-0.5b", "gsm8k-0-5b"), ("../a b/ü?", "a-b"), ("数学", "run"), ("x" * 99, "x" * 60)],
)
def test_a_table_has_the_name_of_its_run(scene: Scene, called: str, table: str) -> None:
    other = scene.beside(called)
    with other.database.transaction() as tx:
        lease = payloads.claim_archive(tx, other.run.id, other.processor, lease_seconds=30)
    assert lease is not None
    assert lease.table.startswith(f"{table}_{other.run.id}_")
    archive.Writer(lease.table, must_exist=False)
