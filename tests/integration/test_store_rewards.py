"""Rewards: statements that add up, and everything that follows them in the same transaction."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psycopg
import pytest

from tests.rows import Scene, at_once, import_records, reward, rolled_back, trajectory
from trinity_db.database import Transaction
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.service import Processors
from trinity_db.store import rewards, rows
from trinity_db.store.rewards import RewardEvent

GROUP = "SELECT reward_count, reward_mean, reward_variance FROM trinity.rollout_group ORDER BY id"
REWARDS = "SELECT reward FROM trinity.experience ORDER BY id"


def record(scene: Scene, events: Sequence[RewardEvent], source: str = "person") -> None:
    with scene.database.transaction() as tx:
        rewards.record(tx, scene.run.id, source, events, created_by="ann")


def rollouts(scene: Scene) -> list[int]:
    return scene.values("SELECT id FROM trinity.rollout ORDER BY id")


def test_of_each_name_the_latest_event_counts(scene: Scene) -> None:
    scene.explore(1)
    first, second = rollouts(scene)
    record(scene, [reward(first, 1.0), reward(second, 0.25)])
    assert scene.values(REWARDS) == [1.0, 0.25]
    record(scene, [reward(first, -2.0)])
    assert scene.values(REWARDS) == [-2.0, 0.25]
    record(scene, [reward(first, 3.0), reward(first, 4.0)])
    assert scene.values(REWARDS) == [4.0, 0.25], "the later of one call counts"
    assert scene.value("SELECT count(*) FROM trinity.reward_event") == 5, "events are never changed"


def test_names_add_up_by_their_weights(scene: Scene) -> None:
    scene.explore(1, rewards=(1.0,))
    [only] = rollouts(scene)
    record(scene, [reward(only, 1.0, "match", 0.5), reward(only, 3.0, "style", -2.0)])
    assert scene.values(REWARDS) == [-5.5]
    record(scene, [reward(only, 1.0, "match", 2.0)])
    assert scene.values(REWARDS) == [-4.0], "a later event brings its own weight"


def test_who_said_what_is_kept(scene: Scene) -> None:
    scene.explore(1, rewards=(1.0,))
    record(scene, [reward(rollouts(scene)[0], 0.5, "helpful", 2.0)])
    assert scene.rows("SELECT source, name, value, weight, created_by FROM trinity.reward_event") == [
        ("person", "helpful", 0.5, 2.0, "ann")
    ]


def test_the_statistics_of_a_group_follow_in_the_same_transaction(scene: Scene) -> None:
    scene.make_ready(2, rewards=(1.0, 0.0, 0.5, 0.5))
    before = scene.rows(GROUP)
    assert before == [(4, 0.5, pytest.approx(1 / 6))] * 2
    first = rollouts(scene)[0]
    with rolled_back(scene.database) as tx:
        rewards.record(tx, scene.run.id, "person", [reward(first, 3.0)])
        inside = tx.execute(GROUP).fetchall()
    assert inside[0] == {"reward_count": 4, "reward_mean": 1.0, "reward_variance": pytest.approx(11 / 6)}
    assert tuple(inside[1].values()) == before[1], "the other group is as it was"
    assert scene.rows(GROUP) == before, "nothing of it was left by the rollback"
    assert scene.value(REWARDS + " LIMIT 1") == 1.0


def test_statistics_leave_out_dropped_members(scene: Scene) -> None:
    scene.make_ready(1, rewards=(1.0, 0.0, 0.5))
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = 'dropped' WHERE reward = 0")
    record(scene, [reward(rollouts(scene)[0], 1.5)])
    assert scene.rows(GROUP) == [(2, 1.0, 0.5)]


def test_rewards_recorded_at_the_same_time_are_all_in_the_statistics(scene: Scene) -> None:
    scene.make_ready(1, rewards=(0.0, 0.0, 0.0, 0.0))

    def record_one(rollout_id: int, tx: Transaction) -> None:
        rewards.record(tx, scene.run.id, "person", [reward(rollout_id, 1.0)])

    at_once(scene.database, [partial(record_one, rollout_id) for rollout_id in rollouts(scene)])
    assert scene.rows(GROUP) == [(4, 1.0, 0.0)]


def test_adopted_rows_follow_the_reward_of_the_row_they_were_copied_from(scene: Scene) -> None:
    import_records(scene.database, "set", [trajectory(0, "right", 1.0), trajectory(0, "wrong", 0.0)])
    runs = [Scene.open(scene.database, name, data=["set"]) for name in ("one", "two")]
    by_run = "SELECT array_agg(reward ORDER BY id) FROM trinity.experience GROUP BY run_id ORDER BY run_id"
    assert scene.values(by_run) == [[1.0, 0.0]] * 3
    record(runs[0], [reward(rollouts(scene)[0], -1.0, "reward")])
    assert scene.values(by_run) == [[-1.0, 0.0]] * 3
    assert scene.rows(GROUP) == [(2, -0.5, 0.5)], "members count once, however often they were adopted"


def test_a_late_reward_changes_the_next_draw(scene: Scene) -> None:
    scene.make_ready(2, rewards=(1.0, 0.0))
    items = "SELECT batch_id, reward, advantage FROM trinity.batch_item ORDER BY batch_id, ordinal"
    first = scene.draw(step=1, size=1)
    assert first is not None
    record(scene, [reward(rollout_id, 2.0) for rollout_id in rollouts(scene)[::2]])
    assert scene.rows(items) == [(first.id, 1.0, 0.5), (first.id, 0.0, -0.5)], "what a batch used stays"
    second = scene.draw(step=2, size=1)
    assert second is not None
    assert scene.rows(items)[2:] == [(second.id, 2.0, 1.0), (second.id, 0.0, -1.0)]
    scene.reopen(version=0)
    again = scene.draw(step=1, size=1)
    assert again is not None
    assert scene.rows(items)[4:] == [(again.id, 2.0, 1.0), (again.id, 0.0, -1.0)]


def test_a_late_reward_of_a_dropped_row_revives_nothing(scene: Scene) -> None:
    scene.make_ready(1, rewards=(1.0,))  # too small a group
    record(scene, [reward(rollouts(scene)[0], 5.0)])
    assert scene.rows("SELECT state, reward FROM trinity.experience") == [("dropped", 5.0)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_no_number_is_refused_by_name(scene: Scene, value: float) -> None:
    scene.explore(1, rewards=(1.0,))
    [only] = rollouts(scene)
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        record(scene, [reward(only, value)])
    assert error.value.diag.constraint_name == "reward_event_value_finite_check"
    assert scene.values(REWARDS) == [None]
    assert scene.value("SELECT count(*) FROM trinity.reward_event") == 0


@pytest.mark.parametrize("value", ["1e200", "1e308"])
def test_a_reward_of_absurd_size_does_not_stop_the_processors(
    scene: Scene, tmp_path: Path, value: str
) -> None:
    """Its square and its weighted sum are no numbers, so it must go the way of NaN: a failure of that row."""
    scene.explore(1, rewards=(float(value), -float(value)))
    scene.explore(1, rewards=(1.0, 0.0))
    function = tmp_path / "function.py"
    function.write_text("def said(response, task):\n    return float(response)\n")
    score = {"functions": [{"function": f"{function}:said", "weight": 10.0}]}
    config = ProcessorsConfig.model_validate({"score": score, "max_attempts": 1})
    processors = Processors(scene.database, scene.run, config)
    processors.worker_id = scene.processor
    while processors.work():
        pass
    assert scene.values("SELECT state FROM trinity.rollout_group ORDER BY id") == ["dropped", "ready"]


def test_a_row_without_a_judge_keeps_no_reward(scene: Scene) -> None:
    scene.explore(1)
    scene.judge(rows.CLEAN)
    assert scene.values(REWARDS) == [None, None]
