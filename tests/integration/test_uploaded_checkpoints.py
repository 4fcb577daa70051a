"""A trainer on another machine goes on from what an object store has, by a real server."""

import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench
from tests.support.object_store import ObjectStore, on_each_server
from tests.support.rows import Scene
from tests.support.waiting import wait_until
from trinity_db.config.shared import ModelConfig
from trinity_db.errors import TrinityError
from trinity_db.models import folder_digest
from trinity_db.store import policies
from trinity_db.trainer.checkpoints import fetched, retrying_bucket, run_files
from trinity_db.trainer.checkpoints.uploads import Checkpoints
from trinity_db.trainer.config import LoraConfig
from trinity_db.trainer.service import Trainer
from trinity_db.weights.bucket import REQUEST_SECONDS, Bucket

VERSIONS = """
SELECT version, step, weights IS NOT NULL, resume_address IS NOT NULL FROM trinity.policy_version
WHERE run_id = %s AND withdrawn_at IS NULL AND checkpoint IS NOT NULL ORDER BY version
"""
WITHDRAWN = "SELECT version FROM trinity.policy_version WHERE run_id = %s AND withdrawn_at IS NOT NULL"
ADDRESS = "SELECT resume_address FROM trinity.policy_version WHERE run_id = %s AND version = {}"
BATCHES = "SELECT step, state::text FROM trinity.batch WHERE run_id = %s ORDER BY id"
USES = """
SELECT count(*), min(e.use_count), max(e.use_count), bool_and(e.use_count = i.uses)
FROM trinity.experience e
JOIN LATERAL (SELECT count(*) AS uses FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id
              WHERE i.experience_id = e.id AND b.state = 'committed') i ON true
WHERE e.run_id = %s
"""


@pytest.fixture
def bench(scene: Scene, tmp_path: Path, objects: ObjectStore) -> Bench:
    bench = Bench(scene, tmp_path / "checkpoints")
    bench.weights = objects.address
    return bench


def worked(trainer: Trainer, steps: int) -> None:
    for _ in range(steps):
        assert trainer.work()


def trained(bench: Bench, *versions: int, **options: Any) -> None:
    """Two steps a version, each of them published, saved and uploaded."""
    trainer = bench.trainer(publish_every=2, **options)
    trainer.start()
    for _ in versions:
        worked(trainer, 2)
        trainer.release()


def move_to_another_machine(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the next trainer see neither the folder nor the home of those before. Returns the folder."""
    away = bench.checkpoints.rename(bench.checkpoints.with_name("unplugged"))
    bench.checkpoints = bench.checkpoints.with_name("another-machine")
    monkeypatch.setenv("TRINITY_DB_HOME", str(bench.checkpoints.with_name("another-home")))
    return away


def damage(bench: Bench, version: int, how: str) -> None:
    """Damage the objects of a checkpoint."""
    [(address,)] = bench.rows(ADDRESS.format(version))
    url, _, name = address.rpartition("/")
    bucket, tensors = Bucket(url), f"{name}/files/tensors.safetensors.00000"
    content = bytearray(bucket.get(tensors))
    content[len(content) // 2] ^= 1
    match how:
        case "missing":
            bucket.delete([tensors])
        case "changed":
            bucket.put(tensors, bytes(content))
        case "cut":
            bucket.put(tensors, bytes(content[:-1]))
        case "manifest":
            bucket.delete([f"{name}/manifest.json"])


def uploaded(objects: ObjectStore) -> list[int]:
    """The numbers of the checkpoints that have objects."""
    found = {part for name in objects.names() for part in name.split("/") if part.startswith("checkpoint-")}
    return sorted(int(name.split("-")[1]) for name in found)


@on_each_server
def test_a_trainer_on_another_machine_goes_on_to_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(bench, 1, 2)
    assert bench.rows(VERSIONS) == [(0, 0, True, False), (1, 2, True, True), (2, 4, True, True)]
    move_to_another_machine(bench, monkeypatch)
    trainer = bench.trainer(publish_every=2)
    trainer.start()
    assert bench.rows(WITHDRAWN) == []
    assert bench.rows(BATCHES) == [(step, "committed") for step in range(1, 5)]
    worked(trainer, 4)
    while not trainer.is_done():
        trainer.work()
    assert bench.rows(BATCHES) == [(step, "committed") for step in range(1, 9)]
    assert bench.rows(USES) == [(8, 2, 2, True)]


def test_what_is_fetched_is_whole_and_in_the_runs_own_folder(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(bench, 1)
    move_to_another_machine(bench, monkeypatch)
    bench.trainer().start()
    [(weights, weights_hash, resume, resume_hash)] = bench.rows(
        "SELECT checkpoint, checkpoint_hash, resume_from, resume_hash FROM trinity.policy_version"
        " WHERE run_id = %s AND version = 1"
    )
    assert Path(weights) == bench.checkpoints / "version-000001"
    assert Path(resume) == bench.checkpoints / "checkpoint-000001"
    assert folder_digest.verify(Path(weights), weights_hash)
    assert folder_digest.verify_checkpoint(Path(resume), resume_hash)
    assert list(bench.checkpoints.glob("*.tmp")) == []


def test_versions_that_only_the_lost_machine_had_are_withdrawn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(bench, 1)
    trainer = bench.trainer(publish_every=2)
    trainer.start()
    worked(trainer, 2)
    trainer._publisher.publish()
    trainer._publisher.record_checkpoint()  # on record with its folder; its upload is not
    assert bench.rows(VERSIONS) == [(0, 0, True, False), (1, 2, True, True), (2, 4, True, False)]
    trainer._publisher.abandon()
    away = move_to_another_machine(bench, monkeypatch)
    trained(bench, 3)
    assert bench.rows(WITHDRAWN) == [(2,)]
    states = ["committed", "committed", "reopened", "reopened", "committed", "committed"]
    assert bench.rows(BATCHES) == list(zip([1, 2, 3, 4, 3, 4], states, strict=True))
    # The first machine comes back: what it has of its own is of a line that the run has left.
    shutil.rmtree(bench.checkpoints)
    bench.checkpoints = away
    bench.trainer().start()
    assert bench.rows(WITHDRAWN) == [(2,)]
    assert bench.saved() == ["checkpoint-000001", "checkpoint-000003"]


def test_the_newest_of_folder_and_object_store_is_taken(
    bench: Bench, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(bench, 1, 2)
    shutil.rmtree(bench.checkpoints / "checkpoint-000002")
    bench.trainer().start()
    assert bench.rows(WITHDRAWN) == []
    assert bench.saved() == ["checkpoint-000001", "checkpoint-000002"]
    damage(bench, 2, "missing")  # and what is here is not asked of the object store
    bench.trainer().start()
    assert bench.rows(WITHDRAWN) == []


@pytest.mark.parametrize("how", ["missing", "changed", "cut", "manifest"])
def test_a_checkpoint_with_damaged_objects_falls_back_to_the_one_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    trained(bench, 1, 2)
    damage(bench, 2, how)
    move_to_another_machine(bench, monkeypatch)
    bench.trainer().start()
    assert bench.rows(WITHDRAWN) == [(2,)]
    [said] = [one.getMessage() for one in caplog.records if "cannot be fetched" in one.getMessage()]
    assert said.startswith("version 2: its checkpoint at ")
    assert "\n" not in said
    assert bench.rows(BATCHES)[2:] == [(3, "reopened"), (4, "reopened")]
    assert bench.saved() == ["checkpoint-000001"]


def test_if_no_checkpoint_can_be_fetched_the_trainer_does_not_start_over_by_itself(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(bench, 1)
    damage(bench, 1, "missing")
    move_to_another_machine(bench, monkeypatch)
    with pytest.raises(
        TrinityError, match=r"none of its checkpoints is whole \(version 1\); .* --from-start"
    ):
        bench.trainer().start()
    assert bench.rows(WITHDRAWN) == []


def test_an_object_store_that_is_away_withdraws_nothing(
    bench: Bench, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(bench, 1)
    move_to_another_machine(bench, monkeypatch)
    monkeypatch.setattr(retrying_bucket, "AWAY_SECONDS", 0.0)
    monkeypatch.setattr(retrying_bucket, "PAUSE_SECONDS", 0.0)
    bench.weights = None  # so that it is asked for the checkpoint alone
    objects.go_away()
    with pytest.raises(TrinityError, match=r"the object store fails: .* start again"):
        bench.trainer().start()
    assert bench.rows(WITHDRAWN) == []
    objects.come_back()
    bench.trainer().start()
    assert bench.rows(VERSIONS)[-1][:2] == (1, 2)


def test_parts_of_several_ranks_are_fetched_too(scene: Scene, bench: Bench, tmp_path: Path) -> None:
    trainer = bench.trainer()
    trainer.start()
    folder = tmp_path / "checkpoint-000007"
    for part in range(3):
        (folder / f"part-{part:05d}").mkdir(parents=True)
        (folder / f"part-{part:05d}" / "tensors.safetensors").write_bytes(bytes([part]) * 1000)
    together = folder_digest.together([folder_digest.digest(part) for part in folder_digest.parts_of(folder)])
    files = trainer._files
    assert files.uploads is not None
    address = files.uploads.checkpoints.upload(7, folder, together, [])
    shutil.rmtree(folder)
    (first,) = bench.rows("SELECT checkpoint, checkpoint_hash FROM trinity.policy_version WHERE run_id = %s")
    saved = policies.Checkpoint(folder, together, address)
    found = fetched.fetch_all(files, policies.PolicyVersion(7, 7, Path(first[0]), first[1], saved))
    assert found is not None
    assert found.resumed is not None
    assert folder_digest.verify_checkpoint(found.resumed.folder, together)


def test_an_upload_that_takes_long_holds_up_nothing_and_keeps_its_files(
    bench: Bench, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, upload = threading.Event(), Checkpoints.upload

    def slow(to: Checkpoints, version: int, folder: Path, digest: str, kept: Iterable[str]) -> str:
        assert gate.wait(60)
        return upload(to, version, folder, digest, kept)

    monkeypatch.setattr(Checkpoints, "upload", slow)
    trainer = bench.trainer(publish_every=1, keep=2)
    trainer.start()
    for version in range(1, 7):
        worked(trainer, 1)
        trainer._publisher.publish()
        trainer._publisher.record_checkpoint()
        assert len(bench.rows(VERSIONS)) <= 5
        assert f"checkpoint-{version:06d}" in bench.saved()
    assert bench.saved() == ["checkpoint-000001", "checkpoint-000005", "checkpoint-000006"]
    gate.set()
    trainer.release()
    assert [row[0] for row in bench.rows(VERSIONS) if row[3]] == [1, 6], "those between are passed over"
    worked(trainer, 1)
    trainer.release()
    assert [row[0] for row in bench.rows(VERSIONS) if row[3]] == [6, 7]
    assert bench.saved() == ["checkpoint-000006", "checkpoint-000007"]
    assert uploaded(objects) == [6, 7]


def test_the_newest_uploaded_checkpoint_is_kept(scene: Scene, bench: Bench) -> None:
    trained(bench, 1)
    bench.weights = None  # so that none is uploaded after it
    trainer = bench.trainer(publish_every=1, keep=2)
    trainer.start()
    for _ in range(4):
        worked(trainer, 1)
        trainer._publisher.publish()
        trainer._publisher.record_checkpoint()
    assert bench.saved() == ["checkpoint-000001", "checkpoint-000004", "checkpoint-000005"]


def test_what_a_crash_left_of_an_upload_goes_at_the_next_start(bench: Bench, objects: ObjectStore) -> None:
    trained(bench, 1)
    [(address,)] = bench.rows(ADDRESS.format(1))
    half = Bucket(address.rpartition("/")[0])
    half.put("checkpoint-000002-12345678/files/tensors.safetensors.00000", b"half")
    assert uploaded(objects) == [1, 2]
    bench.trainer().start()
    assert uploaded(objects) == [1]


def test_a_checkpoint_without_an_upload_gets_one_at_the_next_start(bench: Bench) -> None:
    bench.weights, address = None, bench.weights
    trained(bench, 1)
    assert bench.rows(VERSIONS)[-1] == (1, 2, False, False)
    bench.weights = address
    trainer = bench.trainer()
    trainer.start()
    trainer.release()
    assert bench.rows(VERSIONS)[-1] == (1, 2, True, True)


def test_a_trainer_that_is_to_stop_gives_up_an_object_store_that_is_away(
    bench: Bench, objects: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = bench.trainer(publish_every=2)
    trainer.start()
    worked(trainer, 2)
    objects.go_away()
    trainer._publisher.publish()
    wait_until(lambda: "Retrying" in caplog.text, "the first failure")
    trainer.stop()
    begun = time.monotonic()
    trainer.release()
    assert time.monotonic() - begun < 40, "its supervisor kills it after 60 s"
    assert bench.rows(VERSIONS) == [(0, 0, True, False), (1, 2, False, False)]
    assert "version 1 is not uploaded" in caplog.text
    assert "checkpoint 1 is not uploaded" in caplog.text
    objects.come_back()
    trainer = bench.trainer()
    trainer.start()
    assert bench.rows(BATCHES) == [(1, "committed"), (2, "committed")]
    trainer.release()
    assert bench.rows(VERSIONS) == [(0, 0, True, False), (1, 2, True, True)]


def test_a_trainer_that_is_to_stop_gives_up_an_object_store_that_hangs(
    bench: Bench, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retrying_bucket, "STOP_SECONDS", 1.0)
    trainer = bench.trainer(publish_every=2)
    trainer.start()
    worked(trainer, 2)
    objects.fall_silent()
    trainer._publisher.publish()
    wait_until(objects.is_asked, "a request")
    begun = time.monotonic()
    trainer.stop()
    trainer.release()
    assert time.monotonic() - begun < REQUEST_SECONDS / 3
    assert bench.rows(VERSIONS) == [(0, 0, True, False), (1, 2, False, False)]
    assert "version 1 is not uploaded" in caplog.text
    assert "checkpoint 1 is not uploaded" in caplog.text
    objects.come_back()
    trainer = bench.trainer()
    trainer.start()
    trainer.release()
    assert bench.rows(VERSIONS) == [(0, 0, True, False), (1, 2, True, True)]


def test_an_upload_that_takes_long_ends_soon_after_a_stop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = bench.trainer(publish_every=2)
    trainer.start()
    worked(trainer, 2)
    monkeypatch.setattr(retrying_bucket, "STOP_SECONDS", -1.0)
    trainer.stop()
    trainer.release()
    assert bench.rows(VERSIONS)[-1] == (1, 2, False, False)
    assert "the object store takes too long" in caplog.text


def test_an_adapters_base_is_fetched_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    lora = LoraConfig(rank=2)
    trained(bench, 1, lora=lora, publish="adapter")
    move_to_another_machine(bench, monkeypatch)
    trained(bench, 2, lora=lora, publish="adapter")
    assert bench.folders() == ["version-000000", "version-000001", "version-000002"]
    assert bench.rows(WITHDRAWN) == []
    trained(bench, 3, lora=lora, publish="adapter")
    assert bench.folders() == [f"version-{version:06d}" for version in range(4)]


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_a_run_starts_from_another_machines_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, lora: LoraConfig | None
) -> None:
    trained(bench, 1, lora=lora, publish="adapter" if lora else None)
    [(expected,)] = bench.rows(
        "SELECT checkpoint_hash FROM trinity.policy_version WHERE run_id = %s AND version = 1"
    )
    move_to_another_machine(bench, monkeypatch)
    bench.run = bench.open("successor")
    bench.weights = None
    bench.trainer(model=ModelConfig(run="imitation")).start()
    [(place, found)] = bench.rows(
        "SELECT checkpoint, checkpoint_hash FROM trinity.policy_version WHERE run_id = %s"
    )
    assert Path(place).parent == bench.checkpoints
    assert folder_digest.verify(Path(place), found)
    assert (found == expected) == (lora is None), "an adapter is merged"


def test_a_run_does_not_start_from_objects_that_are_damaged(
    bench: Bench, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(bench, 1)
    [(address,)] = bench.rows("SELECT weights FROM trinity.policy_version WHERE run_id = %s AND version = 1")
    url, _, name = address.rpartition("/")
    Bucket(url).delete([f"{name}/files/model.safetensors.00000"])
    move_to_another_machine(bench, monkeypatch)
    bench.run = bench.open("successor")
    with pytest.raises(TrinityError, match=r"^model.run: the checkpoint of 'imitation' is not at .* no such"):
        bench.trainer(model=ModelConfig(run="imitation")).start()


def test_the_folder_may_be_missing_where_a_checkpoint_is_uploaded(bench: Bench) -> None:
    trained(bench, 1)
    shutil.rmtree(bench.checkpoints)
    trainer = bench.trainer()
    trainer.start()
    assert bench.rows(WITHDRAWN) == []
    assert not run_files.is_elsewhere([])
