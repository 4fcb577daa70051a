"""Rewards: statements that add up, and everything that follows them in the same transaction."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest

from tests.support.rows import (
    WAIT_SECONDS,
    Scene,
    at_once,
    demonstration,
    import_records,
    in_a_thread,
    reward,
    rolled_back,
    trajectory,
    wait_until_blocked,
)
from tests.support.steps import process
from trinity_db.errors import NotFound
from trinity_db.postgres.connection import Database, Transaction, connect
from trinity_db.store import adoption, processing, rewards, runs
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


CHANGES = (
    "SELECT run, experience_id, step, included_version, reward_used, reward_now, source, changed_by"
    " FROM trinity.reward_change_view ORDER BY step, experience_id"
)


def test_a_contradiction_after_the_training_is_listed_and_changes_nothing_else(scene: Scene) -> None:
    scene.make_ready(2, rewards=(1.0, 0.0))
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    trained = "SELECT state, use_count FROM trinity.experience ORDER BY id LIMIT 2"
    items = "SELECT experience_id, reward, advantage, weight FROM trinity.batch_item ORDER BY ordinal"
    before = scene.rows(trained), scene.rows(items)
    assert scene.rows(CHANGES) == []
    first, _, third, _ = rollouts(scene)
    record(scene, [reward(first, 0.25), reward(third, 0.25)])
    assert (scene.rows(trained), scene.rows(items)) == before
    experience = before[1][0][0]
    assert scene.rows(CHANGES) == [("run", experience, 1, 1, 1.0, 0.25, "person", "ann")]
    said_at = "SELECT max(created_at) FROM trinity.reward_event"
    assert scene.value("SELECT changed_at FROM trinity.reward_change_view") == scene.value(said_at)
    record(scene, [reward(first, 1.0)])
    assert scene.rows(CHANGES) == [], "as it was used"
    record(scene, [reward(first, 0.25)])
    scene.reopen(version=0)
    assert scene.rows(CHANGES) == [], "nothing is trained on it any more"


def test_a_contradiction_of_an_imitated_row_is_listed(scene: Scene) -> None:
    import_records(scene.database, "set", [trajectory(0, "right", 1.0), trajectory(1, "fine", 1.0)])
    offline = Scene.open(scene.database, "offline", data=["set"])
    offline.encode()
    offline.commit(offline.draw_rows(step=1, size=2))
    assert offline.rows(CHANGES) == []
    record(offline, [reward(rollouts(offline)[0], -1.0, "reward")])
    [change] = offline.rows(CHANGES)
    assert (change[0], change[5:]) == ("offline", (-1.0, "person", "ann"))


def test_rows_of_refused_rollouts_count_in_no_statistics(scene: Scene) -> None:
    scene.make_ready(1, rewards=(1.0, 0.0, 0.5))
    late = rollouts(scene)[-1]
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.rollout SET state = 'refused' WHERE id = %s", [late])
        tx.execute("UPDATE trinity.experience SET state = 'dropped' WHERE rollout_id = %s", [late])
    record(scene, [reward(late, 9.0)])
    assert scene.rows(GROUP) == [(2, 0.5, 0.5)]


def judge(scene: Scene, *values: tuple[int, float], source: str = "human") -> list[rewards.Change]:
    with scene.database.transaction() as tx:
        return rewards.judge(
            tx, [rewards.Judgement(id, value, source, source, "ann", 1.0) for id, value in values]
        )


def test_a_judgement_of_an_experience_is_about_its_rollout(scene: Scene) -> None:
    scene.make_ready(1, rewards=(1.0, 0.0))
    good, bad = scene.values("SELECT id FROM trinity.experience ORDER BY id")
    assert judge(scene, (bad, 0.5), (good, 1.0), (bad, 3.0)) == [
        rewards.Change(bad, 0.0, 3.0, 2.5),
        rewards.Change(good, 1.0, 2.0, 2.5),
    ]
    about = "SELECT rollout_id, experience_id FROM trinity.reward_event WHERE source = 'human' ORDER BY id"
    first, second = rollouts(scene)
    assert scene.rows(about) == [(second, None), (first, None), (second, None)]


def test_a_judgement_of_a_row_without_a_rollout_is_about_the_row_and_those_that_adopt_it(
    scene: Scene,
) -> None:
    import_records(scene.database, "set", [demonstration(0), demonstration(1)])
    one, two = (Scene.open(scene.database, name, data=["set"]) for name in ("one", "two"))
    of_run = "SELECT id FROM trinity.experience WHERE run_id = %s ORDER BY id"
    by_run = "SELECT array_agg(reward ORDER BY id) FROM trinity.experience GROUP BY run_id ORDER BY run_id"
    [source, _] = scene.values("SELECT id FROM trinity.experience WHERE source_id IS NULL ORDER BY id")
    assert judge(scene, (source, 0.5)) == [rewards.Change(source, None, 0.5, None)]
    assert scene.values(by_run) == [[0.5, None]] * 3
    adopted, _ = scene.values(of_run, one.run.id)
    judge(scene, (adopted, 0.25))
    assert scene.values(by_run) == [[0.5, None], [0.25, None], [0.5, None]], "one run's own opinion"
    judge(scene, (adopted, 1.0), source="robot")
    judge(scene, (source, 2.0))
    assert scene.values(by_run) == [[2.0, None], [3.0, None], [2.0, None]], "the latest of each name"
    said = "SELECT run_id, rollout_id FROM trinity.reward_event ORDER BY id"
    by = scene.rows(said)
    assert by[1:3] == [(one.run.id, None)] * 2
    assert by[0] == by[3] not in [(one.run.id, None), (two.run.id, None)]


@pytest.mark.parametrize("of_a_copy", [False, True])
def test_what_is_said_of_a_row_while_a_run_adopts_it_reaches_that_run(scene: Scene, of_a_copy: bool) -> None:
    import_records(scene.database, "set", [trajectory(0, "an answer", 0.5)])
    Scene.open(scene.database, "first", data=["set"])
    row, copy = scene.values("SELECT id FROM trinity.experience ORDER BY id")
    with closing(connect(scene.database.url)) as tx:
        adopting = runs.open_run(tx, "second", {}, "rows", adoption.Sources(["set"]))
        judging = in_a_thread(scene.database, lambda: judge(scene, (copy if of_a_copy else row, 1.0)))
        wait_until_blocked(scene.database, judging)
        tx.commit()
    judging.result(WAIT_SECONDS)
    assert scene.values(REWARDS) == [1.5] * 3
    assert scene.value("SELECT count(*) FROM trinity.experience WHERE run_id = %s", adopting.id) == 1


def test_an_import_and_a_reward_do_not_wait_in_a_circle(scene: Scene) -> None:
    import_records(scene.database, "set", [trajectory(number, "first") for number in range(20)])
    lowest, *_, highest = scene.values("SELECT id FROM trinity.rollout_group ORDER BY id")
    backwards = [trajectory(number, "second") for number in reversed(range(20))]
    lock = "SELECT id FROM trinity.rollout_group WHERE id = %s FOR NO KEY UPDATE"
    large = Database(scene.database.url, silence_seconds=WAIT_SECONDS)  # plans as for a large store
    with scene.database.transaction() as tx:
        tx.execute(lock, [lowest])
        importing = in_a_thread(large, lambda: import_records(large, "set", backwards))
        wait_until_blocked(large, importing)
        tx.execute(lock + " NOWAIT", [highest])
    assert importing.result(WAIT_SECONDS) == 20


def test_rewards_of_a_row_without_a_group_recorded_at_the_same_time_all_count(scene: Scene) -> None:
    import_records(scene.database, "set", [demonstration(0)])
    [row] = scene.values("SELECT id FROM trinity.experience")

    def judge_one(source: str, tx: Transaction) -> None:
        rewards.judge(tx, [rewards.Judgement(row, 1.0, source, source, None, 1.0)])

    at_once(scene.database, [partial(judge_one, source) for source in "abcd"])
    assert scene.values(REWARDS) == [4.0]


def test_a_judgement_of_what_is_not_there_writes_nothing(scene: Scene) -> None:
    scene.make_ready(1)
    [first, second] = scene.values("SELECT id FROM trinity.experience ORDER BY id")
    with pytest.raises(NotFound, match=f"There is no experience 0, {second + 1}, {10**30}"):
        judge(scene, (first, 9.0), (0, 1.0), (second + 1, 1.0), (10**30, 1.0))
    assert scene.values(REWARDS) == [1.0, 0.0]


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
    score = [{"name": f"{function}:said", "weight": 10.0}]
    process(scene, {"score": score, "max_attempts": 1})
    assert scene.values("SELECT state FROM trinity.rollout_group ORDER BY id") == ["dropped", "ready"]


def test_a_row_without_a_judge_keeps_no_reward(scene: Scene) -> None:
    scene.explore(1)
    scene.judge(processing.CLEAN)
    assert scene.values(REWARDS) == [None, None]
