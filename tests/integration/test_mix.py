"""The trainer in this process, over live groups with imported rows beside them."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import setup_of
from tests.support.recipes import recipe
from tests.support.replays import differences
from tests.support.rows import Scene, demonstration, import_records, rollout
from trinity_db.errors import TrinityError
from trinity_db.schema.states import WorkerRole
from trinity_db.store import workers
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.learner import Learner
from trinity_db.trainer.service import Trainer

METRIC = "SELECT value FROM trinity.metric WHERE run_id = %s AND name = %s ORDER BY step"
BATCHES = "SELECT step, state::text FROM trinity.batch WHERE run_id = %s ORDER BY id"
USES = """
SELECT state::text, use_count FROM trinity.experience WHERE run_id = %s AND source_id IS NOT NULL ORDER BY id
"""
GROUPS = "SELECT state::text FROM trinity.rollout_group WHERE run_id = %s ORDER BY id"


class Bench:
    """A run over tasks and demonstrations, and its trainers: steps of two groups and two demonstrations."""

    def __init__(self, scene: Scene, checkpoints: Path, num_demonstrations: int = 3) -> None:
        records = [demonstration(number) for number in range(num_demonstrations)]
        import_records(scene.database, "set", records)
        self.scene = scene.beside("mixed", {"seed": 3}, ["set"])
        self._checkpoints = checkpoints

    def trainer(self, name: str = "mix", **options: Any) -> Trainer:
        """A new one, which takes the place of others."""
        setup = setup_of(
            TrainerConfig(
                steps=4,
                batch_size=2,
                micro_batch_size=1,
                learning_rate=0.01,
                publish_every=2,
                checkpoint_every=1,
            ),
            recipe(name, expert_rows=2, **options),
            self._checkpoints,
            seed=3,
        )
        trainer = Trainer(self.scene.database, self.scene.run, setup)
        with self.scene.database.transaction() as tx:
            trainer.worker_id = workers.register(tx, self.scene.run, WorkerRole.TRAIN)
            workers.replace_others(tx, trainer.worker_id)
        trainer.start()
        return trainer

    def explore(self, num_groups: int = 2) -> None:
        """Groups of a good and a bad response."""
        for group in self.scene.claim(num_groups):
            self.scene.write([rollout(group, 0, "1.0"), rollout(group, 1, "0.0")])
        self.scene.process()

    def metric(self, name: str) -> list[float]:
        return self.scene.values(METRIC, self.scene.run.id, name)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self.scene.rows(statement, self.scene.run.id)


@pytest.fixture
def bench(scene: Scene, tmp_path: Path) -> Bench:
    return Bench(scene, tmp_path / "checkpoints")


@pytest.mark.parametrize("name", ["mix", "chord"])
def test_steps_over_groups_and_demonstrations_are_committed_until_the_run_ends(
    bench: Bench, name: str
) -> None:
    trainer = bench.trainer(name, kl="k3", entropy_coefficient=0.01)
    assert not trainer.work(), "there is no group yet"
    bench.explore(8)
    while trainer.work():
        pass
    assert trainer.is_done()
    assert bench.rows(BATCHES) == [(step, "committed") for step in (1, 2, 3, 4)]
    assert sorted(bench.rows(USES)) == [("ready", 2), ("ready", 3), ("ready", 3)]
    assert {state for (state,) in bench.rows(GROUPS)} == {"trained"}
    assert bench.metric("mu") == [0.1] * 4
    losses, policy, expert = (bench.metric(one) for one in ("loss", "policy_loss", "expert/loss"))
    assert len(losses) == 4
    assert all(value > 0 for value in expert)
    assert all(loss != pytest.approx(0.9 * one) for loss, one in zip(losses, policy, strict=True))
    assert differences(bench.scene) == []


def test_a_step_that_no_checkpoint_includes_is_made_again_with_the_same_demonstrations(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.explore(8)
    trainer = bench.trainer(mu=0.4, mu_valley=0.0, mu_decay_steps=4)
    for _ in range(3):
        assert trainer.work()
    lost = bench.metric("loss")[2]

    def killed(learner: Learner, batch: object) -> dict[str, float]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            trainer.work()
    assert bench.rows(USES).count(("leased", 2)) + bench.rows(USES).count(("leased", 3)) == 2
    another = bench.trainer(mu=0.4, mu_valley=0.0, mu_decay_steps=4)
    assert sorted(bench.rows(USES)) == [("ready", 1), ("ready", 1), ("ready", 2)]
    while another.work():
        pass
    assert bench.rows(BATCHES) == [
        *((1, "committed"), (2, "committed"), (3, "reopened"), (4, "reopened")),
        *((3, "committed"), (4, "committed")),
    ]
    # The step that was lost, and the one that was made in its place.
    assert bench.metric("loss")[2:4] == pytest.approx([lost, lost])
    assert bench.metric("mu") == pytest.approx([0.3414214, 0.2, 0.0585786, 0.0585786, 0.0])
    assert sorted(bench.rows(USES)) == [("ready", 2), ("ready", 3), ("ready", 3)]
    assert differences(bench.scene) == []


def test_a_run_with_too_few_demonstrations_stops_before_its_first_step(scene: Scene, tmp_path: Path) -> None:
    bench = Bench(scene, tmp_path / "checkpoints", num_demonstrations=1)
    with pytest.raises(TrinityError, match="takes 2 rows to imitate in each step, and the run has 1:"):
        bench.trainer()


def test_demonstrations_that_are_imported_later_come_in_with_the_next_trainer(bench: Bench) -> None:
    bench.explore(4)
    first = bench.trainer()
    assert first.work()
    import_records(bench.scene.database, "set", [demonstration(number) for number in range(3, 6)])
    bench.scene.adopt_again("set")
    first.release()
    assert bench.trainer().work()
    drawn = "SELECT count(DISTINCT experience_id) FROM trinity.batch_item WHERE advantage IS NULL"
    assert bench.scene.value(drawn) == 4, "those that were used least are the next"
