"""What the store and the trainer's service measure of a step, beside the algorithm."""

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.bench import setup_of
from tests.support.recipes import recipe
from tests.support.rows import Scene, import_records, reward, rollout, trajectory
from trinity_db.schema.states import WorkerRole
from trinity_db.store import adoption, batches, rewards, runs, workers
from trinity_db.store.metrics import Outcomes, outcomes_of
from trinity_db.trainer import service
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner
from trinity_db.trainer.service import Trainer

METRICS = "SELECT name, value FROM trinity.metric WHERE run_id = %s AND step = %s"


def outcomes(scene: Scene, batch: batches.Batch | None) -> Outcomes:
    assert batch is not None
    with scene.database.transaction() as tx:
        return outcomes_of(tx, batch.id)


def ready_groups(scene: Scene) -> None:
    """Two groups of rewards 1 and 0, whose second member ended by its length."""
    for group in scene.claim(2):
        first, second = (
            rollout(group, member, text) for member, text in zip(group.members, "10", strict=True)
        )
        scene.write([first, replace(second, finish_reason="length")])
    scene.process()


def trainer(
    scene: Scene, run: runs.Run, algorithm: AlgorithmConfig, folder: Path, **settings: int | None
) -> Trainer:
    setup = setup_of(
        TrainerConfig.model_validate({"batch_size": 2, **settings}),
        algorithm,
        folder,
    )
    one = Trainer(scene.database, run, setup)
    with scene.database.transaction() as tx:
        one.worker_id = workers.register(tx, run, WorkerRole.TRAIN)
    return one


def test_what_the_store_knows_of_a_batch_are_ends_and_rewards_by_name(scene: Scene) -> None:
    ready_groups(scene)
    first = scene.value("SELECT min(id) FROM trinity.rollout")
    with scene.database.transaction() as tx:
        for value in (5.0, 7.0):  # the latest of a name counts
            rewards.record(tx, scene.run.id, "people", [reward(first, value, "style", 0.1)])
    found = outcomes(scene, scene.draw(1, 2))
    assert found.clipped == 0.5
    assert found.rewards["style"] == (7.0, 0.0)
    assert found.rewards["score"] == pytest.approx((0.5, (1 / 3) ** 0.5))


def test_a_batch_of_imported_rows_has_no_rollouts(scene: Scene) -> None:
    import_records(scene.database, "set", [trajectory(number, "a response", 1.0) for number in range(2)])
    scene.adopt_again("set")
    scene.encode()
    assert outcomes(scene, scene.draw_rows(1, 2)) == Outcomes(None, {})


def test_a_step_on_rollout_groups_has_their_measures(scene: Scene, tmp_path: Path) -> None:
    with scene.database.transaction() as tx:
        run = runs.open_run(tx, "live", {}, "groups")
        explorer = workers.register(tx, run, WorkerRole.EXPLORE)
        processor = workers.register(tx, run, WorkerRole.PROCESS)
    one = trainer(scene, run, recipe("grpo"), tmp_path, steps=2)
    one.start()
    live = replace(scene, run=run, explorer=explorer, processor=processor, trainer=one.worker_id)
    ready_groups(live)
    assert one.work()
    found = dict(scene.rows(METRICS, run.id, 1))
    assert found["reward"] == found["completions/clipped_ratio"] == found["rewards/score/mean"] == 0.5
    assert (found["frac_reward_zero_std"], found["sample/staleness_max"]) == (0.0, 0.0)
    assert (found["completions/mean_length"], found["num_tokens"]) == (2.0, 20.0)
    assert found["step_time"] == found["time/step"] + found["time/wait_for_batch"]
    assert found["perf/throughput"] == pytest.approx(20 / found["step_time"])
    assert "epoch" not in found


def test_passes_and_tokens_are_counted_on_after_a_restart(scene: Scene, tmp_path: Path) -> None:
    import_records(scene.database, "set", [trajectory(number, "a response", 1.0) for number in range(4)])
    with scene.database.transaction() as tx:
        run = runs.open_run(tx, "imitation", {}, "rows", adoption.Sources(["set"]))
    first = trainer(scene, run, recipe("sft"), tmp_path, epochs=2)
    first.start()
    assert first.work()
    first.release()
    second = trainer(scene, run, recipe("sft"), tmp_path, epochs=2)
    second.start()
    assert second.work()
    found = [dict(scene.rows(METRICS, run.id, step)) for step in (1, 2)]
    assert [one["epoch"] for one in found] == [0.5, 1.0]
    assert found[1]["num_tokens"] == 2 * found[0]["num_tokens"] > 0
    assert "reward" not in found[0]


def test_an_offline_run_ends_after_its_steps_and_later_goes_on_with_the_rows_that_are_left(
    scene: Scene, tmp_path: Path
) -> None:
    import_records(scene.database, "set", [trajectory(number, "a response", 1.0) for number in range(6)])
    with scene.database.transaction() as tx:
        run = runs.open_run(tx, "imitation", {}, "rows", adoption.Sources(["set"]))
    steps = "SELECT count(*) FROM trinity.batch WHERE run_id = %s AND state = 'committed'"
    state = "SELECT state::text FROM trinity.run WHERE id = %s"

    def train(limit: int | None) -> Trainer:
        one = trainer(scene, run, recipe("sft"), tmp_path, steps=limit)
        one.start()
        while one.work():
            pass
        assert one.is_done()
        with scene.database.transaction() as tx:
            workers.stop(tx, one.worker_id)
        return one

    train(limit=2)
    assert (scene.value(steps, run.id), scene.value(state, run.id)) == (2, "finished")
    assert dict(scene.rows(METRICS, run.id, 2))["epoch"] == pytest.approx(2 / 3)
    train(limit=None)
    assert scene.value(steps, run.id) == 3
    assert dict(scene.rows(METRICS, run.id, 3))["epoch"] == 1.0


def test_an_evaluation_is_no_part_of_a_step_nor_of_the_wait_for_its_batch(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_records(scene.database, "set", [trajectory(number, "a response", 1.0) for number in range(20)])
    with scene.database.transaction() as tx:
        run = runs.open_run(tx, "imitation", {}, "rows", adoption.Sources(["set"], 0.5))
    one = trainer(scene, run, recipe("sft"), tmp_path, eval_every=1)
    one.start()
    hours: list[float] = []
    evaluate = Learner.evaluate

    def slow(learner: Learner, batch: Batch) -> dict[str, float]:
        hours.append(3600.0)
        return evaluate(learner, batch)

    monkeypatch.setattr(Learner, "evaluate", slow)
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + sum(hours)))
    assert one.work()
    assert one.work()
    assert len(hours) == 2
    for step in (1, 2):
        found = dict(scene.rows(METRICS, run.id, step))
        assert 0 <= found["time/wait_for_batch"] < found["step_time"] < 3600
        assert found["perf/throughput"] > 0
