"""When a trainer records versions and checkpoints, and what it does before the disk is full."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import disk
from tests.support.bench import Bench, setup_of
from tests.support.recipes import recipe
from tests.support.replays import differences
from tests.support.rows import Scene
from tests.support.waiting import wait_until
from trinity_db.config.shared import ModelConfig, ScratchConfig
from trinity_db.errors import DiskFull
from trinity_db.explorer.engines.vllm.inside.trinity_worker import tensors
from trinity_db.insight import status
from trinity_db.insight.checks import learning
from trinity_db.io import durable
from trinity_db.models import build_scratch, load_model, rounding
from trinity_db.models.canary import read as read_canary
from trinity_db.schema.states import WorkerRole
from trinity_db.store import workers
from trinity_db.trainer.checkpoints import cadence, checkpoint
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner
from trinity_db.trainer.service import Trainer

WIDER = ModelConfig(scratch=ScratchConfig(hidden_size=48, layers=1, heads=1, context=64))
LINE = """
SELECT version, step, resume_hash IS NOT NULL, withdrawn_at IS NOT NULL FROM trinity.policy_version
WHERE run_id = %s AND version > 0 ORDER BY version
"""
FOLDERS = "SELECT coalesce(checkpoint, '') FROM trinity.policy_version WHERE run_id = %s ORDER BY version"
PROGRESS = """
SELECT visible, visible_last_ten, changed, noise FROM trinity.policy_progress
WHERE run = (SELECT name FROM trinity.run WHERE id = %s) ORDER BY version
"""
COMMITTED = "SELECT step FROM trinity.batch WHERE run_id = %s AND state = 'committed' ORDER BY step"


@pytest.fixture
def bench(scene: Scene, tmp_path: Path) -> Bench:
    return Bench(scene, tmp_path / "checkpoints")


def online(scene: Scene, folder: Path) -> tuple[Scene, Trainer]:
    """A run on rollout groups, one a step, at most one version stale, and its trainer."""
    live = scene.beside("live")
    settings = TrainerConfig(steps=9, batch_size=1)
    setup = replace(setup_of(settings, recipe("grpo"), folder), max_staleness=1)
    trainer = Trainer(scene.database, live.run, setup)
    trainer.worker_id = live.trainer
    return live, trainer


def test_a_version_is_recorded_during_a_step_of_one_micro_batch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are safe only after the next step has begun, and that step ends only after the record."""
    computes, flush, learn = threading.Event(), durable.flush_all, Learner.step

    def slow(folder: Path) -> None:
        if threading.current_thread().name == "publish":
            assert computes.wait(60)
        flush(folder)

    def step(learner: Learner, batch: Batch) -> dict[str, float]:
        if learner.steps_done:
            computes.set()
            wait_until(
                lambda: [row[0] for row in bench.rows(LINE)] == [1], "version 1 is recorded", seconds=30
            )
        return learn(learner, batch)

    monkeypatch.setattr(durable, "flush_all", slow)
    monkeypatch.setattr(Learner, "step", step)
    trainer = bench.trainer(micro_batch_size=2, publish_every=1)
    trainer.start()
    assert trainer.work()
    assert trainer.work()
    assert bench.rows(COMMITTED) == [(1,), (2,)]


def test_staleness_counts_to_the_weights_of_the_step_while_they_are_written(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first step, each step trains weights whose version is still being written."""
    computes, flush, learn = threading.Event(), durable.flush_all, Learner.step
    read: list[list[int]] = []

    def slow(folder: Path) -> None:
        if threading.current_thread().name == "publish":
            assert computes.wait(60)
        flush(folder)

    def step(learner: Learner, batch: Batch) -> dict[str, float]:
        read.append(batch.columns["staleness"].tolist())
        computes.set()
        return learn(learner, batch)

    monkeypatch.setattr(durable, "flush_all", slow)
    monkeypatch.setattr(Learner, "step", step)
    live, trainer = online(scene, tmp_path)
    trainer.start()
    for version in (0, 0, 1):
        computes.clear()
        live.make_ready(1, version=version)
        assert trainer.work()
    computes.clear()
    live.make_ready(1, version=1)  # two versions before version 3, which the trainer begins to write
    live.make_ready(1, version=2)
    assert trainer.work()
    expected = [0, 1, 1, 1]
    assert read == [[staleness] * 2 for staleness in expected]
    items = "SELECT b.step, i.staleness FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id"
    assert dict(scene.rows(items)) == dict(enumerate(expected, 1))
    measured = "SELECT value FROM trinity.metric WHERE name = 'sample/staleness_max' ORDER BY step"
    assert scene.values(measured) == expected
    lineage = "SELECT DISTINCT step, staleness FROM trinity.lineage(3, 'live')"
    assert dict(scene.rows(lineage)) == dict(enumerate(expected[:3], 1))
    assert scene.values('SELECT detail FROM trinity."drop"') == [{"staleness": 2}] * 2
    assert differences(live) == []


def test_a_checkpoint_waits_until_the_one_before_is_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer computes further steps meanwhile, and publishes their versions."""
    monkeypatch.setattr(cadence, "interval", lambda cost: 0.0)
    may_write, write = threading.Event(), checkpoint._write

    def slow(*arguments: Any) -> str:
        assert may_write.wait(60)
        return write(*arguments)

    monkeypatch.setattr(checkpoint, "_write", slow)
    trainer = bench.trainer(publish_every=1, checkpoint_every="auto")
    trainer.start()
    for _ in range(4):
        assert trainer.work()
    assert bench.rows(LINE)[:3] == [(1, 1, False, False), (2, 2, False, False), (3, 3, False, False)]
    may_write.set()
    trainer.release()
    saved = [row[0] for row in bench.rows(LINE) if row[2]]
    assert saved == [1, 4]


def test_versions_are_in_the_16_bits_that_all_living_explorers_compute_in(bench: Bench, scene: Scene) -> None:
    with scene.database.transaction() as tx:
        one, other = (workers.register(tx, bench.run, WorkerRole.EXPLORE) for _ in range(2))

    def record(worker: int, dtype: str) -> None:
        with scene.database.transaction() as tx:
            workers.record_engine_dtype(tx, worker, dtype)

    def stop(worker: int) -> None:
        with scene.database.transaction() as tx:
            workers.stop(tx, worker)

    def nothing() -> None:
        """An engine that rounds by itself reports no format."""

    events: list[tuple[Callable[[], None], str]] = [
        (nothing, "F32"),
        (partial(record, one, "bfloat16"), "F32"),
        (partial(record, other, "bfloat16"), "BF16"),
        (partial(record, other, "float32"), "F32"),
        (partial(stop, other), "BF16"),
        (partial(stop, one), "BF16"),  # another explorer is expected
    ]
    trainer = bench.trainer(publish_every=1)
    trainer.start()
    for version, (happens, expected) in enumerate(events, 1):
        happens()
        assert trainer.work()
        trainer._publisher.publish_rest()
        folder = Path(bench.rows(FOLDERS)[version][0])
        assert {dtype for dtype, _ in tensors(folder).values()} == {expected}
        canary = read_canary(folder)
        assert canary is not None
        tokens = torch.tensor([canary.token_ids])
        with torch.no_grad():
            said = load_model(folder, "cpu")(tokens).logits[0, :-1].log_softmax(-1)
        exact = said.gather(-1, tokens[0, 1:, None])[:, 0].tolist()
        assert canary.logprobs == pytest.approx(exact, abs=1e-4)
    trainer.release()


@pytest.mark.parametrize("rounds", ["by thresholds", "to nearest"])
def test_an_alert_is_raised_if_versions_hide_the_update(
    bench: Bench, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: str
) -> None:
    """The model is one that was released in bfloat16, and explorers compute in it."""
    start = tmp_path / "start"
    build_scratch(ScratchConfig(hidden_size=48, layers=1, heads=1, context=64), 3, start)
    load_model(start, "cpu").bfloat16().save_pretrained(start)
    if rounds == "to nearest":
        monkeypatch.setattr(
            rounding,
            "_thresholds",
            lambda _name, _start, count, _device: torch.full((count,), 1 << 15, dtype=torch.int32),
        )
    with scene.database.transaction() as tx:
        explorer = workers.register(tx, bench.run, WorkerRole.EXPLORE)
        workers.record_engine_dtype(tx, explorer, "bfloat16")
    trainer = bench.trainer(model=ModelConfig(path=str(start)), publish_every=1)
    trainer.start()
    for _ in range(3):
        assert trainer.work()
    trainer._publisher.publish_rest()
    progress = bench.rows(PROGRESS)
    assert progress[0] == (None, None, None, None), "version 0 is the model's file"
    assert len(progress) == 4
    for visible, last_ten, changed, noise in progress[1:]:
        if rounds == "to nearest":
            assert visible < 0.1
        else:
            assert visible == pytest.approx(1.0, abs=0.2)
        assert last_ten == visible, "the tenth version before is not there yet"
        assert 0 < changed < 0.2
        assert 0 < noise < 0.004
    with scene.database.transaction() as tx:
        [finding] = learning.hidden_updates(tx, bench.run.id)
    assert finding.level == ("warn" if rounds == "to nearest" else "ok")


def test_status_counts_the_steps_since_the_last_checkpoint(bench: Bench) -> None:
    trainer = bench.trainer(publish_every=1, checkpoint_every=3)
    trainer.start()
    assert checkpoint_of(trainer) == "none yet"
    assert trainer.work()
    assert checkpoint_of(trainer) == "none yet; a crash repeats 1 step"
    for _ in range(4):
        assert trainer.work()
    trainer._publisher.record_checkpoint()
    said = checkpoint_of(trainer)
    assert said is not None
    assert said.startswith("2 steps since the last checkpoint (version 3, step 3, ")
    bench.trainer(publish_every=1, checkpoint_every=3).start()  # as after a crash
    said = checkpoint_of(trainer)
    assert said is not None
    assert said.startswith("0 steps since the last checkpoint (version 3, step 3, ")


def checkpoint_of(trainer: Trainer) -> str | None:
    return status.words(status.detail(trainer.database, trainer.run.name))["checkpoint"]


def test_a_trainer_stops_with_a_checkpoint_before_the_disk_is_full(bench: Bench, tmp_path: Path) -> None:
    with disk.small_disk(tmp_path / "disk") as small:
        bench.checkpoints = small / "checkpoints"
        trainer = bench.trainer(model=WIDER, publish_every=1, checkpoint_every=100)
        trainer.start()
        assert trainer.work()
        assert trainer.work()
        trainer._publisher.record()
        version = trainer._learner.policy.version_bytes
        saved = checkpoint.num_bytes(trainer._learner)
        ballast = disk.fill(small)
        with ballast.open("r+b") as file:  # room for a version and a checkpoint, and for no second version
            file.truncate(ballast.stat().st_size - version - saved - version // 2)
        with pytest.raises(DiskFull, match=r"MB are free, .*Step 2 is saved\. Free space there, lower"):
            trainer.work()
        assert bench.rows(LINE)[-1] == (2, 2, True, False)
        ballast.unlink()
        resumed = bench.trainer(model=WIDER, publish_every=1)
        resumed.start()
        assert bench.rows(COMMITTED) == [(1,), (2,)]
        assert resumed.work()
        resumed.release()
