"""Each version of a run in 16 bits stays: as a delta once it need not be whole, until the disk is full."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.bench import Bench
from tests.support.rows import Scene
from trinity_db.data.copies.model import export_model
from trinity_db.models import folder_digest
from trinity_db.schema.states import WorkerRole
from trinity_db.store import adoption, policies, runs
from trinity_db.store.metrics import record_metrics
from trinity_db.trainer.checkpoints import older_versions
from trinity_db.trainer.service import Trainer
from trinity_db.weights import cache, packed

KEPT = {"publish_dtype": "bfloat16", "checkpoint_every": 100, "keep_checkpoints": 2}
STEPS = 8


class Disk(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def bench(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))
    # A version of a tiny model has hardly more bytes in its weights than in the files beside them.
    monkeypatch.setattr(older_versions, "CHAIN_SHARE", 100.0)
    return Bench(scene, tmp_path / "run")


def started(bench: Bench, **options: Any) -> Trainer:
    """A trainer that publishes a version each step."""
    trainer = bench.trainer(publish_every=1)
    chosen = trainer._setup.trainer.model_copy(update=KEPT | options)
    trainer._setup = replace(trainer._setup, trainer=chosen)
    trainer.start()
    return trainer


def train(trainer: Trainer, steps: int) -> None:
    """Take steps, each with its version recorded and with the older versions converted."""
    for _ in range(steps):
        assert trainer.work()
        trainer._publisher.record()
        trainer._publisher._older.wait()


def trained(bench: Bench, steps: int = STEPS, **options: Any) -> Trainer:
    """A trainer that has stopped, and whose older versions are converted."""
    trainer = started(bench, **options)
    train(trainer, steps)
    trainer.release()
    trainer._publisher._older.wait()
    return trainer


def recorded(scene: Scene, bench: Bench) -> list[policies.PolicyVersion]:
    with scene.database.transaction() as tx:
        return policies.with_checkpoint(tx, bench.run.id)


def forms(bench: Bench) -> dict[int, str]:
    """Which versions the folder has, whole or as deltas."""
    found = {}
    for path in sorted(bench.checkpoints.glob("version-*")):
        number = int(path.name[8:14])
        assert number not in found, "in one form"
        found[number] = "delta" if path.name.endswith(packed.SUFFIX) else "whole"
    return found


def check_all_load(scene: Scene, bench: Bench) -> None:
    for policy in recorded(scene, bench):
        folder = cache.whole(policy.checkpoint, policy.version, policy.checkpoint_hash)
        assert folder_digest.verify(folder, policy.checkpoint_hash)


def test_each_version_of_a_run_can_be_loaded_and_exported(scene: Scene, bench: Bench, tmp_path: Path) -> None:
    trained(bench)
    assert forms(bench) == dict.fromkeys([0, 7, 8], "whole") | dict.fromkeys(range(1, 7), "delta")
    assert [policy.version for policy in recorded(scene, bench)] == list(range(STEPS, -1, -1))
    check_all_load(scene, bench)
    for version in range(1, STEPS + 1):
        target = tmp_path / f"model-{version}"
        assert export_model(scene.database, "imitation", target, version) == version
        assert (target / "model.safetensors").is_file()


def test_versions_in_float32_go_as_before(bench: Bench) -> None:
    trained(bench, publish_dtype="float32")
    assert forms(bench) == dict.fromkeys([0, 7, 8], "whole")


def test_without_deltas_older_versions_go(bench: Bench) -> None:
    trained(bench, keep_deltas=0.0)
    assert forms(bench) == dict.fromkeys([0, 7, 8], "whole")


def test_versions_that_are_kept_on_request_stay_whole(scene: Scene, bench: Bench) -> None:
    trained(bench, keep_every=3)
    assert forms(bench) == dict.fromkeys([0, 3, 6, 7, 8], "whole") | dict.fromkeys([1, 2, 4, 5], "delta")
    check_all_load(scene, bench)


def test_the_best_version_stays_whole_and_becomes_a_delta_after_it(scene: Scene, bench: Bench) -> None:
    trainer = started(bench, keep_best="eval/mine")
    train(trainer, 2)
    record(scene, bench, 1, 5.0)
    train(trainer, 3)
    assert forms(bench) == dict.fromkeys([0, 1, 3, 4], "whole") | {2: "delta"}
    record(scene, bench, 3, 6.0)
    train(trainer, 2)
    assert forms(bench) == dict.fromkeys([0, 3, 5, 6], "whole") | dict.fromkeys([1, 2, 4], "delta")
    check_all_load(scene, bench)
    trainer._publisher.abandon()


def record(scene: Scene, bench: Bench, step: int, value: float) -> None:
    with scene.database.transaction() as tx:
        record_metrics(tx, bench.run.id, WorkerRole.TRAIN, step, {"eval/mine": value})


def test_a_version_with_a_checkpoint_stays_whole_and_becomes_a_delta_after_it(
    scene: Scene, bench: Bench
) -> None:
    trained(bench, checkpoint_every=3)  # 3, 6, and 8 at the stop; two are kept
    assert forms(bench) == dict.fromkeys([0, 6, 7, 8], "whole") | dict.fromkeys(range(1, 6), "delta")
    check_all_load(scene, bench)


def test_the_oldest_go_where_the_disk_is_full(
    scene: Scene, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trained(bench, steps=6)
    assert forms(bench) == dict.fromkeys([0, 5, 6], "whole") | dict.fromkeys(range(1, 5), "delta")
    places = [packed.delta_folder(bench.checkpoints / f"version-{number:06d}") for number in range(1, 5)]
    sizes = [sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) for place in places]
    # A quarter of what is free and of the deltas is two and a half deltas.
    free = int(4 * (sizes[3] + sizes[2] + sizes[1] / 2) - sum(sizes))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(10**12, 0, free))
    with scene.database.transaction() as tx:
        assert trainer._publisher._older.kept(tx) == [6, 5, 4, 3]
    with trainer._hold.lock, scene.database.transaction() as tx:
        pruned = trainer._publisher._prune(tx, None)
    trainer._publisher._drop(pruned)
    assert forms(bench) == dict.fromkeys([0, 5, 6], "whole") | dict.fromkeys([3, 4], "delta")
    check_all_load(scene, bench)


def test_a_version_that_another_run_starts_from_stays_whole(scene: Scene, bench: Bench) -> None:
    trainer = started(bench)
    train(trainer, 2)
    first = recorded(scene, bench)[-2]
    with scene.database.transaction() as tx:
        other = runs.open_run(tx, "other", {}, "rows", adoption.Sources(["set"]))
        policies.publish(tx, other.id, replace(first, version=0, step=0))
    train(trainer, 4)
    trainer.release()
    trainer._publisher._older.wait()
    assert forms(bench) == dict.fromkeys([0, 1, 5, 6], "whole") | dict.fromkeys([2, 3, 4], "delta")


def test_a_long_chain_ends_at_a_whole_version(
    scene: Scene, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(older_versions, "MOST_LINKS", 2)
    trained(bench)
    assert forms(bench) == dict.fromkeys([0, 3, 6, 7, 8], "whole") | dict.fromkeys([1, 2, 4, 5], "delta")
    check_all_load(scene, bench)


def test_a_large_chain_ends_at_a_whole_version(
    scene: Scene, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(older_versions, "CHAIN_SHARE", 1e-6)
    trained(bench)
    assert forms(bench) == dict.fromkeys([0, 2, 4, 6, 7, 8], "whole") | dict.fromkeys([1, 3, 5], "delta")
    check_all_load(scene, bench)


def test_the_next_start_redoes_what_a_crash_left_unfinished(scene: Scene, bench: Bench) -> None:
    trained(bench, steps=6)
    [policy] = [one for one in recorded(scene, bench) if one.version == 3]
    made = cache.whole(policy.checkpoint, policy.version, policy.checkpoint_hash)
    shutil.copytree(made, policy.checkpoint)  # its delta had its name, and the whole folder was still there
    (bench.checkpoints / "version-000003.0123abcd.tmp").mkdir()
    trained(bench, steps=2)  # version 6 has the checkpoint of the stop
    assert forms(bench) == dict.fromkeys([0, 6, 7, 8], "whole") | dict.fromkeys(range(1, 6), "delta")
    assert not list(bench.checkpoints.glob("*.tmp"))
    check_all_load(scene, bench)


def test_a_damaged_version_stays_whole_and_is_named(
    scene: Scene, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = started(bench)
    train(trainer, 2)
    (bench.checkpoints / "version-000001" / "config.json").write_text("{}")
    train(trainer, 3)
    assert forms(bench)[1] == "whole"
    assert "version 1: " in caplog.text
    trainer._publisher.abandon()
