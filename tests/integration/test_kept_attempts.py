"""Attempts that solved their task, or did not, are kept alone."""

from dataclasses import replace

import pytest

from tests.support.rows import Scene, attempt
from tests.support.steps import process
from trinity_db.store import failures, processing

ROWS = "SELECT state::text FROM trinity.experience ORDER BY id"
DROPS = 'SELECT experience_id, stage, reason, detail FROM trinity."drop" ORDER BY id'
GROUPS = "SELECT reward_count, reward_mean, reward_variance FROM trinity.rollout_group ORDER BY id"
TASKS = "SELECT scored, solved FROM trinity.task_stat WHERE scored > 0"
REWARDS = (1.0, 0.25, 2.0, 0.0)


def judged(scene: Scene, keep: str, min_size: int = 1, rewards: tuple[float, ...] = REWARDS) -> None:
    scene.explore(1, rewards)
    scene.judge(processing.CLEAN)
    scene.judge(processing.SCORE)
    assert scene.settle(min_size, keep=keep) == 1


@pytest.mark.parametrize(
    ("keep", "kept"), [("positives", {0, 2}), ("negatives", {1, 3}), ("all", {0, 1, 2, 3})]
)
def test_the_others_are_dropped_and_count_in_no_mean_but_in_the_counts_of_the_task(
    scene: Scene, keep: str, kept: set[int]
) -> None:
    judged(scene, keep)
    assert scene.values(ROWS) == ["ready" if member in kept else "dropped" for member in range(4)]
    rewards = [REWARDS[member] for member in sorted(kept)]
    mean = sum(rewards) / len(rewards)
    variance = sum((one - mean) ** 2 for one in rewards) / (len(rewards) - 1)
    [(count, found_mean, found_variance)] = scene.rows(GROUPS)
    assert (count, found_mean) == (len(kept), mean)
    assert found_variance == pytest.approx(variance)
    assert scene.rows(TASKS) == [(4, 2)], "by all attempts, or every task would look solved"
    ids = scene.values("SELECT id FROM trinity.experience ORDER BY id")
    assert scene.rows(DROPS) == [
        (ids[member], "group", f"not_{keep.removesuffix('s')}", {"reward": REWARDS[member]})
        for member in range(4)
        if member not in kept
    ]
    batch = scene.draw(step=1, size=1)
    assert batch is not None
    assert scene.values("SELECT reward FROM trinity.batch_item ORDER BY ordinal") == rewards


def test_a_group_of_which_too_few_are_left_is_dropped_as_such(scene: Scene) -> None:
    judged(scene, "positives", min_size=2, rewards=(1.0, 0.0, 0.0))
    assert scene.values(ROWS) == ["dropped"] * 3
    [(members, needed)] = scene.rows(
        "SELECT detail->>'members', detail->>'needed' FROM trinity.\"drop\" WHERE group_id IS NOT NULL"
    )
    assert (members, needed) == ("1", "2")
    assert scene.values(
        'SELECT reason FROM trinity."drop" WHERE experience_id IS NOT NULL ORDER BY experience_id'
    ) == [
        "group_too_small",
        "not_positive",
        "not_positive",
    ]
    assert scene.rows(TASKS) == [(3, 1)]


def test_an_attempt_without_a_reward_is_neither(scene: Scene) -> None:
    for keep in ("positives", "negatives"):
        scene.explore(1, (1.0, 0.0))
        process(scene, {"score": [], "group": {"min_size": 1, "keep": keep}})
    assert scene.values(ROWS) == ["dropped"] * 4


def test_an_attempt_of_several_steps_is_kept_by_the_sum_of_its_rewards(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=2)
    scene.write([attempt(group, 0, ["0.5", "0.5"]), attempt(group, 1, ["0.5", "0.25"])])
    scene.judge(processing.CLEAN)
    scene.judge(processing.SCORE)
    scene.settle(1, keep="positives")
    by_attempt = (
        "SELECT e.state::text FROM trinity.experience e JOIN trinity.rollout m ON m.id = e.rollout_id"
        " ORDER BY m.ordinal, e.step"
    )
    assert scene.values(by_attempt) == ["ready", "ready", "dropped", "dropped"]


def test_the_reward_of_an_attempt_of_several_sequences_counts_once(scene: Scene) -> None:
    """Three sequences of a program with 0.4 each did not solve a task that needs 1, as three steps did."""
    [group] = scene.claim(1, group_size=3)
    sequences, steps, single = (
        attempt(group, member, ["a"] * count, rewards=[0.4] * count) for member, count in enumerate((3, 3, 1))
    )
    shared = [replace(step, shares_reward=True) for step in sequences.steps]
    scene.write([replace(sequences, steps=shared), steps, single])
    process(scene, {"score": [], "group": {"min_size": 1, "keep": "negatives"}})
    members = "SELECT m.ordinal, e.state::text FROM trinity.rollout m JOIN trinity.experience e"
    assert set(scene.rows(f"{members} ON e.rollout_id = m.id")) == {
        (0, "ready"),
        (1, "dropped"),
        (2, "ready"),
    }
    assert scene.rows(TASKS) == [(3, 1)]
    assert scene.rows(GROUPS) == [(2, 0.4, 0.0)], "exactly, or equal rewards would look different"


def test_sequences_that_functions_score_count_by_their_mean(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=1)
    written = attempt(group, 0, ["1.0", "0.5"], rewards=[0.25] * 2)
    scene.write([replace(written, steps=[replace(step, shares_reward=True) for step in written.steps])])
    process(scene, {"score": [f"{__file__}:mended"], "group": {"min_size": 1}})
    assert scene.rows(GROUPS) == [(1, 1.0, None)]
    assert scene.rows(TASKS) == [(1, 1)]


def test_a_group_that_is_whole_again_is_selected_anew(scene: Scene) -> None:
    judge = {
        "score": [f"{__file__}:fails_on_the_last"],
        "group": {"min_size": 2, "keep": "positives"},
        "max_attempts": 1,
    }
    scene.explore(1, (1.0, 0.0, 7.0))
    process(scene, judge)
    assert scene.values(ROWS) == ["dropped"] * 3
    mended = {**judge, "score": [f"{__file__}:mended"]}
    assert failures.retry(scene.database, scene.run).rows == 1
    process(scene, mended)
    assert scene.values(ROWS) == ["ready", "dropped", "ready"]
    assert scene.rows(TASKS) == [(3, 2)]


def mended(response: str) -> float:
    return float(response)


def fails_on_the_last(response: str) -> float:
    if response == "7.0":
        raise ValueError("broken")
    return float(response)
