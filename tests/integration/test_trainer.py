"""The trainer in this process: where it starts, and how it ends when another trainer has taken its place."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.rows import Scene, import_records, trajectory
from trinity_db.config import ModelConfig, ScratchConfig
from trinity_db.errors import ConfigError, LeaseLost, TrinityError
from trinity_db.schema.states import WorkerRole
from trinity_db.store import batches, runs, workers
from trinity_db.trainer.config import SftConfig, TrainerConfig
from trinity_db.trainer.service import Trainer, TrainerSetup
from trinity_db.trainer.step import Batch, Learner

VERSIONS = """
SELECT version, step, checkpoint IS NOT NULL FROM trinity.policy_version WHERE run_id = %s ORDER BY version
"""
REFUSED = "SELECT value FROM trinity.metric WHERE run_id = %s AND name = 'refused/batches'"
BATCHES = "SELECT step, state::text FROM trinity.batch WHERE run_id = %s ORDER BY id"


class Bench:
    """Trainers of one run over eight rows, two a step, one after the other; not started yet."""

    def __init__(self, scene: Scene, checkpoints: Path) -> None:
        self._scene = scene
        self.checkpoints = checkpoints
        import_records(scene.database, "set", [trajectory(number, "a response", 1.0) for number in range(8)])
        with scene.database.transaction() as tx:
            self.run = runs.open_run(tx, "imitation", {}, ["set"], holdout=0.0)

    def trainer(self, micro_batch_size: int = 2) -> Trainer:
        setup = TrainerSetup(
            trainer=TrainerConfig(epochs=2, batch_size=2, micro_batch_size=micro_batch_size, publish_every=2),
            algorithm=SftConfig(),
            model=ModelConfig(scratch=ScratchConfig(hidden_size=8, layers=1, heads=1, context=64)),
            seed=0,
            max_staleness=None,
            temperature=1.0,
            checkpoints=self.checkpoints,
        )
        trainer = Trainer(self._scene.database, self.run, setup)
        with self._scene.database.transaction() as tx:
            trainer.worker_id = workers.register(tx, self.run.id, WorkerRole.TRAIN)
        return trainer

    def take_over(self) -> None:
        """What another trainer does to the run when it starts."""
        with self._scene.database.transaction() as tx:
            batches.reopen(tx, self.run.id, 0)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What a statement finds of the run."""
        return self._scene.rows(statement, self.run.id)

    def folders(self) -> list[str]:
        return sorted(path.name for path in self.checkpoints.iterdir())


@pytest.fixture
def bench(scene: Scene, tmp_path: Path) -> Bench:
    return Bench(scene, tmp_path / "checkpoints")


def test_a_step_that_comes_too_late_is_refused_and_counted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = Learner.step

    def overtaken(learner: Learner, batch: Batch) -> dict[str, float]:
        bench.take_over()
        return learn(learner, batch)

    trainer = bench.trainer()
    trainer.start()
    monkeypatch.setattr(Learner, "step", overtaken)
    with pytest.raises(LeaseLost, match="was taken from this trainer"):
        trainer.work()
    assert bench.rows(REFUSED) == [(1.0,)]
    assert bench.rows(BATCHES) == [(1, "reopened")]
    assert bench.rows(VERSIONS) == [(0, 0, True)]


def test_a_version_that_comes_too_late_is_refused_and_counted(bench: Bench) -> None:
    trainer = bench.trainer()
    trainer.start()
    assert trainer.work()
    bench.take_over()
    with pytest.raises(LeaseLost, match="Version 1 was not published"):
        trainer.release()
    assert bench.rows(REFUSED) == [(1.0,)]
    assert bench.rows(BATCHES) == [(1, "reopened")]
    assert bench.rows(VERSIONS) == [(0, 0, True)]


def test_a_checkpoint_of_a_trainer_that_was_replaced_is_in_nobodys_way(bench: Bench) -> None:
    replaced, second = bench.trainer(), bench.trainer()
    replaced.start()
    assert replaced.work()
    second.start()
    with pytest.raises(LeaseLost):
        replaced.release()
    assert second.work()
    second.release()
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 1, True)]
    assert bench.folders() == ["version-000000", "version-000001", "version-000001-2"]
    third = bench.trainer()
    third.start()
    assert bench.folders() == ["version-000000", "version-000001-2"]


def test_a_damaged_checkpoint_is_kept_aside(bench: Bench) -> None:
    trainer = bench.trainer()
    trainer.start()
    for _ in range(3):
        assert trainer.work()
    (bench.checkpoints / "version-000001" / "config.json").unlink()
    for _ in range(2):
        bench.trainer().start()
        assert bench.folders() == ["version-000000", "version-000001.damaged"]
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 2, False)]
    assert {state for _, state in bench.rows(BATCHES)} == {"reopened"}


def test_a_disk_that_is_not_there_withdraws_nothing(bench: Bench) -> None:
    trainer = bench.trainer()
    trainer.start()
    assert trainer.work()
    trainer.release()
    elsewhere = bench.checkpoints.rename(bench.checkpoints.with_name("not-mounted"))
    with pytest.raises(TrinityError, match="checkpoints is missing: mount or restore it"):
        bench.trainer().start()
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 1, True)]
    elsewhere.rename(bench.checkpoints)
    bench.trainer().start()
    assert bench.rows(BATCHES) == [(1, "committed")]


def test_nothing_is_withdrawn_where_nothing_is_whole(bench: Bench) -> None:
    trainer = bench.trainer()
    trainer.start()
    assert trainer.work()
    trainer.release()
    for folder in bench.checkpoints.iterdir():
        shutil.rmtree(folder)
    with pytest.raises(ConfigError, match="no checkpoint is whole"):
        bench.trainer().start()
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 1, True)]
    assert bench.rows(BATCHES) == [(1, "committed")]


def test_what_cannot_be_written_at_the_start_leaves_no_version(bench: Bench) -> None:
    bench.checkpoints.touch()
    with pytest.raises(TrinityError, match=r"checkpoints/version-000000 cannot be written: Not a directory"):
        bench.trainer().start()
    assert bench.rows(VERSIONS) == []
    bench.checkpoints.unlink()
    bench.trainer().start()
    assert bench.rows(VERSIONS) == [(0, 0, True)]


@pytest.mark.parametrize(("micro_batch_size", "state"), [(2, "committed"), (1, "reopened")])
def test_a_stop_finishes_a_micro_batch_and_publishes_what_is_committed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, micro_batch_size: int, state: str
) -> None:
    learn = Learner.step

    def stopped(learner: Learner, batch: Batch) -> dict[str, float]:
        trainer.stop()
        return learn(learner, batch)

    trainer = bench.trainer(micro_batch_size)
    trainer.start()
    assert trainer.work()
    monkeypatch.setattr(Learner, "step", stopped)
    assert trainer.work()
    trainer.release()
    assert bench.rows(BATCHES) == [(1, "committed"), (2, state)]
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 2 if state == "committed" else 1, True)]
