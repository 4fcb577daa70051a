"""What the doctor finds of runs that work and do not learn: stores that show it, and that just do not."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.complaints import Examine
from tests.support.rows import Scene, rollout
from trinity_db.insight.checks import learning
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import Outcome, WorkerRole
from trinity_db.store import processing, settings

FEW, MANY = learning.FEWEST - 1, learning.FEWEST


@pytest.fixture
def scene(url: str) -> Iterator[Scene]:
    with closing(Database(url)) as database:
        scene = Scene.open(database, num_tasks=learning.GROUPS, algorithm="grpo")
        yield scene


@pytest.fixture
def found(scene: Scene, examine: Examine) -> Any:
    """What the doctor complains of in what the run learns from, by what it is about."""

    def found() -> dict[str, Any]:
        complaints = [one for one in examine(scene.database.url) if one["what"].startswith("learn ")]
        assert all(one["level"] == "warn" and one["run"] == "run" for one in complaints)
        return {one["what"]: one for one in complaints}

    return found


def test_groups_with_equal_rewards_are_found(scene: Scene, found: Any) -> None:
    scene.make_ready(FEW, rewards=(0.1, 0.1, 0.1))
    assert found() == {}
    scene.make_ready(1, rewards=(0.0, 0.0))
    alert = found()["learn rewards"]
    assert "equal in 20 of its last 20 groups, in most of them 0.1" in alert["found"]
    shown = (
        "SELECT count(*) FROM trinity.experience WHERE reward BETWEEN %(reward_from)s AND %(reward_to)s",
        alert["shown"],
    )
    with scene.database.transaction() as tx:  # the mean of three rewards of 0.1 is more than 0.1
        assert tx.execute(*shown).fetchone() == {"count": 3 * FEW}
    scene.make_ready(4, rewards=(0.0, 1.0))
    assert "equal in 20 of its last 24" in found()["learn rewards"]["found"]
    scene.make_ready(2, rewards=(0.0, 1.0))  # 20 of 26 are less than 0.8
    assert found() == {}


def test_a_run_that_solves_its_tasks_is_told_apart_from_one_that_collapsed(scene: Scene, found: Any) -> None:
    for step in range(1, 2 * learning.STEPS + 1):
        scene.record(step, {learning.ENTROPY: 1.0 / step**2})
    assert set(found()) == {"learn entropy"}
    scene.make_ready(MANY, rewards=(1.0, 1.0))
    assert found() == {}  # solved, and its responses are alike for that reason
    with scene.database.transaction() as tx:
        [told] = learning.equal_rewards(tx)
    assert told.level == "ok"
    assert told.found == "run 'run' solves its tasks: every attempt did in 20 of its last 20 groups"
    scene.make_ready(MANY, rewards=(0.0, 0.0))  # half of the groups: what is not solved has collapsed
    alert = found()["learn rewards"]["found"]
    assert alert.endswith(
        "equal in 20 of its last 40 groups, in most of them 0, and 20 more are solved by every attempt"
    )
    assert set(found()) == {"learn rewards", "learn entropy"}


def test_the_best_reward_is_the_one_that_solves_a_task(scene: Scene, found: Any) -> None:
    scene.make_ready(MANY, rewards=(0.5, 0.5))
    assert set(found()) == {"learn rewards"}
    set_config(scene, {"processors": {"group": {"solved_reward": 0.5}}})
    assert found() == {}


def test_a_run_without_a_living_worker_raises_no_alert(scene: Scene, found: Any) -> None:
    scene.make_ready(MANY, rewards=(0.5, 0.5))
    assert set(found()) == {"learn rewards"}
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.worker SET stopped_at = now()")
    assert found() == {}
    with scene.database.transaction() as tx:  # its own page shows what was wrong with it
        assert [one.level for one in learning.equal_rewards(tx, scene.run.id)] == ["warn"]


def test_groups_without_rewards_are_found_where_steps_give_some(scene: Scene, found: Any) -> None:
    scene.make_ready(MANY)
    with scene.database.transaction() as tx:
        tx.execute(
            "UPDATE trinity.rollout_group SET reward_count = 0, reward_mean = NULL, reward_variance = NULL"
        )
    assert found() == {}  # no step gives rewards
    set_config(scene, {"processors": {"score": [{"name": "exact_match"}]}})
    assert "none of its last 20 groups has a reward" in found()["learn judged"]["found"]
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.rollout_group SET reward_count = 1, reward_mean = 0 WHERE id = 1")
    assert found() == {}


def test_versions_that_hide_the_update_are_found(scene: Scene, found: Any) -> None:
    scene.record(1, {learning.VISIBLE: 0.02})
    assert found() == {}, "the first version alone"
    scene.record(2, {learning.VISIBLE: 0.49})
    alert = found()["learn visible"]
    assert "its versions show 49.0% of the update of the last ten versions, as of step 2" in alert["found"]
    assert "trainer.publish_dtype: float32" in alert["remedy"]
    assert alert["shown"] == {"metric": learning.VISIBLE}
    scene.record(3, {learning.VISIBLE: 0.51})
    assert found() == {}


def test_runs_whose_rows_are_dropped_are_found_with_the_reason(scene: Scene, found: Any) -> None:
    scene.explore(10)  # 20 rows
    with scene.database.transaction() as tx:
        claimed = processing.claim(tx, processing.CLEAN, scene.run.id, scene.processor, 14)
    drop(scene, [row["id"] for row in claimed], "too_short")
    scene.process()
    assert "learn drops" not in found()  # 14 of 20 are less than 0.8
    scene.explore(8)
    with scene.database.transaction() as tx:
        claimed = processing.claim(tx, processing.CLEAN, scene.run.id, scene.processor, 16)
    drop(scene, [row["id"] for row in claimed], "empty")
    scene.settle()
    alert = found()["learn drops"]
    assert alert["found"].endswith("30 of its last 36 rows will not be trained on, 16 of them for empty")
    assert alert["shown"] == {"reason": "empty"}


def test_runs_whose_clean_steps_drop_more_than_a_fifth_are_found(scene: Scene, found: Any) -> None:
    def drop_of(groups: int, rows: int, reason: str) -> None:
        scene.explore(groups)
        with scene.database.transaction() as tx:
            claimed = processing.claim(tx, processing.CLEAN, scene.run.id, scene.processor, rows)
        drop(scene, [row["id"] for row in claimed], reason)
        scene.process()
        scene.settle()

    drop_of(10, 4, "empty")
    assert found() == {}, "4 of 20 are a fifth"
    drop_of(2, 2, "truncated")
    alert = found()["learn clean"]
    assert "dropped 6 of its last 24 rows, 4 of them for empty" in alert["found"]
    assert alert["shown"] == {"reason": "empty"}


def test_dynamic_sampling_and_expiry_are_no_cleaning(scene: Scene, found: Any) -> None:
    scene.make_ready(10)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = 'expired' WHERE id % 2 = 0")
        tx.execute(
            """INSERT INTO trinity."drop" (run_id, experience_id, stage, step, reason)
               SELECT run_id, id, 'group', NULL, 'equal_rewards' FROM trinity.experience WHERE id % 2 = 1"""
        )
    assert "learn clean" not in found()


def test_rows_that_expired_are_shown_by_their_state(scene: Scene, found: Any) -> None:
    scene.make_ready(10)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = 'expired'")
    alert = found()["learn drops"]
    assert alert["found"].endswith("20 of its last 20 rows will not be trained on, 20 of them for expired")
    assert alert["shown"] == {"state": "expired"}


def test_attempts_that_fail_are_found_with_their_error(scene: Scene, found: Any) -> None:
    groups = scene.claim(10)
    scene.write([rollout(group, 0) for group in groups])
    error = "ValueError: no such\n tool " + "and more " * 200
    scene.write([rollout(group, 1, error=error) for group in groups[:9]])
    assert found() == {}  # 19 attempts
    scene.write([rollout(groups[9], 1, error=error)])
    alert = found()["learn attempts"]
    assert "10 of its last 20 attempts failed: " in alert["found"]
    assert "failed: ValueError: no such tool and more" in alert["found"]
    assert len(alert["found"]) < 300
    assert alert["shown"] == {"group": groups[9].id}
    (more,) = scene.claim(1)
    scene.write([rollout(more, member) for member in more.members])
    assert found() == {}


@pytest.mark.parametrize(("last", "is_found"), [(0.09, True), (0.11, False)])
def test_an_entropy_that_collapsed_is_found(scene: Scene, found: Any, last: float, is_found: bool) -> None:
    for step in range(1, 2 * learning.STEPS):
        scene.record(step, {"entropy": 1.0 if step <= learning.STEPS else last})
    assert found() == {}  # of too few steps
    scene.record(2 * learning.STEPS, {"entropy": last})
    assert ("learn entropy" in found()) == is_found
    if is_found:
        alert = found()["learn entropy"]
        assert "fell from 1 to 0.09 nats per token by step 20" in alert["found"]
        assert alert["shown"] == {"metric": "entropy"}


@pytest.mark.parametrize(
    ("kl", "clipped", "shown"),
    [
        (0.11, 0.0, "approx_kl"),
        (0.09, 0.19, None),
        (0.02, 0.21, "clip_ratio"),
        (0.0005, 0.21, None),  # as gspo clips on purpose
    ],
)
def test_a_policy_that_moves_too_far_in_a_step_is_found(
    scene: Scene, found: Any, kl: float, clipped: float, shown: str | None
) -> None:
    for step in range(1, 2 * learning.RECENT):
        scene.record(step, {"approx_kl": 9.0, "clip_ratio": 0.9})
    assert found() == {}, "too few steps"
    for step in range(6, 9):
        scene.record(step, {"approx_kl": kl, "clip_ratio": clipped, "sample/staleness_mean": 1.0})
    alert = found().get("learn rate")
    assert (alert and alert["shown"]["metric"]) == shown
    if alert:
        assert f"by {kl:.2g} nats per token, and {clipped:.0%} of the tokens are clipped" in alert["found"]
        assert alert["remedy"] == "lower trainer.learning_rate with --change"


def test_rows_that_are_many_versions_old_are_named_where_the_policy_is_far_from_them(
    scene: Scene, found: Any
) -> None:
    for step in range(1, 7):
        scene.record(step, {"approx_kl": 0.3, "sample/staleness_mean": 4.0})
    assert found()["learn rate"]["remedy"].endswith("or lower max_staleness: rows are 4 versions old")


RISES = [0.1, 0.15, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.72, 0.68, 0.7, 0.71]


def record_rewards(scene: Scene, rewards: list[float]) -> None:
    for step, value in enumerate(rewards, 1):
        scene.record(step, {"reward": value})


@pytest.mark.parametrize(
    ("rewards", "is_found"),
    [
        ([*RISES, 0.3, 0.2, 0.15, 0.1, 0.1], True),
        ([*RISES, 0.6, 0.6, 0.55, 0.6, 0.58], False),  # it has lost less than half of the rise
        (RISES, False),
        ([0.6, 0.62, 0.6, 0.58, 0.6, 0.5, 0.3, 0.1, 0.05, 0.0, 0.0, 0.0], True),  # it never rose
        ([0.1, 0.9] * 10 + [0.3] * 5, False),  # the differences between steps are as large
        ([1.0] * 120 + [0.9], False),  # a solved run misses once
        (RISES[:5] + [0.0] * 4, False),  # too few steps
    ],
)
def test_a_reward_that_fell_is_found(scene: Scene, found: Any, rewards: list[float], is_found: bool) -> None:
    set_config(scene, {"taskset": "tasks"})
    record_rewards(scene, rewards)
    assert set(found()) == ({"learn fall"} if is_found else set())


def test_a_fall_names_the_best_steps_and_ends_with_a_change_of_settings(scene: Scene, found: Any) -> None:
    set_config(scene, {"taskset": "tasks"})
    record_rewards(scene, [*RISES, 0.3, 0.2, 0.15, 0.1, 0.1])
    alert = found()["learn fall"]
    assert "the mean reward of 5 steps fell from 0.702 at step 15 to 0.17 at step 20" in alert["found"]
    assert alert["shown"] == {"metric": "reward"}
    set_config(scene, {"taskset": "tasks", "explorer": {"tasks": {"name": "difficulty"}}})
    assert found() == {}
    set_config(scene, {"taskset": "tasks", "explorer": {"tasks": {"name": "sequential"}}})
    assert set(found()) == {"learn fall"}
    with scene.database.transaction() as tx:
        settings.change(tx, scene.run, {"taskset": "tasks", "processors": {}}, "groups")
    assert found() == {}


@pytest.mark.parametrize(
    ("first", "last", "kl", "remedy"),
    [
        (0.1, 0.56, 0.0, "if the responses make sense, raise explorer.max_new_tokens"),
        (0.6, 1.0, 0.2, "lower trainer.learning_rate"),
        (0.1, 0.54, 0.0, None),
        (0.0, 0.49, 0.0, None),
        (0.6, 0.7, 0.0, None),  # it began with a limit that is short for the task
        (1.0, 1.0, 0.0, None),  # responses of one length
    ],
)
def test_responses_that_run_to_the_limit_are_found(
    scene: Scene, found: Any, first: float, last: float, kl: float, remedy: str | None
) -> None:
    for step in range(1, 2 * learning.RECENT + 1):
        cut = first if step <= learning.RECENT else last
        scene.record(step, {"completions/clipped_ratio": cut, "approx_kl": kl})
    alert = found().get("learn length")
    assert (alert is None) == (remedy is None)
    if alert and remedy:
        assert (
            f"{last:.0%} of the responses are cut at the maximum length, in the last 3 steps to 6"
            in alert["found"]
        )
        assert alert["remedy"].startswith(remedy)


@pytest.mark.parametrize(("share", "is_found"), [(0.051, True), (0.049, False)])
def test_engines_that_differ_from_the_trainer_are_found(
    scene: Scene, found: Any, share: float, is_found: bool
) -> None:
    for step in range(1, 2 * learning.STEPS + 1):
        scene.record(step, {learning.OUTSIDE: 0.0 if step <= learning.STEPS else share})
    assert ("learn engine" in found()) == is_found
    if is_found:
        assert "differ by more than a fifth on 5.1% of the tokens" in found()["learn engine"]["found"]


def train_three_steps(scene: Scene) -> None:
    scene.make_ready(3)
    for step in (1, 2, 3):
        scene.train(step, size=1)


@pytest.mark.parametrize(("waited", "is_found"), [(26.0, True), (24.0, False)])
def test_a_side_that_waits_for_the_other_is_found(
    scene: Scene, found: Any, waited: float, is_found: bool
) -> None:
    train_three_steps(scene)
    scene.record(1, {"step_time": 100.0, "time/wait_for_batch": waited})
    scene.record(0, {"explore/time": 100.0, "explore/wait_for_training": 0.0}, WorkerRole.EXPLORE)
    assert ("learn pace" in found()) == is_found
    if is_found:
        assert "trainer 26% of its time for rollouts" in found()["learn pace"]["found"]
        assert "add explorers" in found()["learn pace"]["remedy"]
        assert found()["learn pace"]["shown"] == {"metric": "time/wait_for_batch"}


def test_the_curve_of_the_side_that_waits_is_shown(scene: Scene, found: Any) -> None:
    train_three_steps(scene)
    scene.record(1, {"step_time": 100.0, "time/wait_for_batch": 0.0})
    scene.record(0, {"explore/time": 100.0, "explore/wait_for_training": 60.0}, WorkerRole.EXPLORE)
    assert found()["learn pace"]["shown"] == {"metric": "explore/wait_for_training"}


def test_runs_that_are_over_are_told_only_when_they_are_asked_for(scene: Scene, found: Any) -> None:
    scene.make_ready(MANY, rewards=(0.5, 0.5))
    assert "learn rewards" in found()
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.run SET state = 'finished', finished_at = now()")
    assert found() == {}
    with scene.database.transaction() as tx:
        [asked] = learning.equal_rewards(tx, scene.run.id)
    assert asked.run == "run"


def drop(scene: Scene, ids: list[int], reason: str) -> None:
    verdicts = [processing.StepVerdict(id, 1, Outcome.DROPPED, reason, {}) for id in ids]
    with scene.database.transaction() as tx:
        processing.finish(tx, processing.CLEAN, scene.run.id, scene.processor, verdicts, max_attempts=3)


def set_config(scene: Scene, config: dict[str, Any]) -> None:
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.run SET config = %s", [Jsonb(config)])


def test_waits_are_no_alert_before_the_third_step(scene: Scene, found: Any) -> None:
    scene.make_ready(2)
    for step in (1, 2):
        scene.train(step, size=1)
    scene.record(1, {"step_time": 100.0, "time/wait_for_batch": 90.0})
    scene.record(0, {"explore/time": 100.0, "explore/wait_for_training": 60.0}, WorkerRole.EXPLORE)
    assert "learn pace" not in found()
