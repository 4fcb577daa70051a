"""Groups whose rewards are all equal: where a run asks for it dropped before the draw, others explored."""

import pytest
from pydantic import ValidationError

from tests.support.rows import Scene, rollout
from tests.support.steps import process
from trinity_db.processors.config import GroupConfig
from trinity_db.store import rewards
from trinity_db.store.groups import Pace
from trinity_db.store.processing import CLEAN, SCORE

GROUPS = "SELECT state FROM trinity.rollout_group ORDER BY id"
ROWS = "SELECT state, count(*) FROM trinity.experience GROUP BY state ORDER BY state"
DROPS = 'SELECT stage, reason, count(*) FROM trinity."drop" WHERE experience_id IS NOT NULL GROUP BY 1, 2'
GROUP_DROPS = 'SELECT stage, reason, detail FROM trinity."drop" WHERE group_id IS NOT NULL'


def settle(scene: Scene, requires_reward: str | None = None) -> int:
    """Judge all there is, and drop what has no difference."""
    scene.judge(CLEAN)
    scene.judge(SCORE)
    return scene.settle(requires_reward=requires_reward, drop_equal_rewards=True)


def test_a_group_whose_rewards_are_all_equal_is_dropped_with_all_its_members(scene: Scene) -> None:
    scene.explore(1, rewards=(0.1, 0.1, 0.1))
    scene.explore(1, rewards=(0.1, 0.1, 0.0))
    assert settle(scene) == 2
    assert scene.values(GROUPS) == ["dropped", "ready"]
    assert scene.rows(ROWS) == [("ready", 3), ("dropped", 3)]
    assert scene.rows(DROPS) == [("group", "equal_rewards", 3)]
    assert scene.rows(GROUP_DROPS) == [
        ("group", "equal_rewards", {"members": 3, "reward": 0.1, "scored": 3, "solved": 0})
    ]


def test_the_smallest_difference_of_rewards_keeps_a_group(scene: Scene) -> None:
    scene.explore(1, rewards=(1.0, 1.0 + 2**-52))
    settle(scene)
    assert scene.values(GROUPS) == ["ready"]


def test_groups_without_difference_are_kept_unless_the_run_drops_them(scene: Scene) -> None:
    scene.make_ready(1, rewards=(1.0, 1.0))
    assert scene.values(GROUPS) == ["ready"]


def test_a_group_that_is_too_small_is_dropped_for_that(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=2)
    scene.write([rollout(group, 0), rollout(group, 1, error="no answer")])
    settle(scene)
    assert scene.rows(GROUP_DROPS) == [
        ("group", "group_too_small", {"members": 1, "needed": 2, "scored": 1, "solved": 1})
    ]


def test_exploring_goes_on_until_a_batch_is_full_of_groups_with_differences(scene: Scene) -> None:
    pace = Pace(max_staleness=0, per_version=2)
    outcomes = iter(["1", "1", "0", "0", "1", "0", "0", "0", "0", "1"])
    explored = []
    while claimed := scene.claim(2, pace=pace):
        explored.append(len(claimed))
        scene.write([rollout(group, member, next(outcomes)) for group in claimed for member in group.members])
        settle(scene)
    assert explored == [2, 2, 1], "as many as were dropped, in each round"
    assert scene.values(GROUPS) == ["dropped", "dropped", "ready", "dropped", "ready"]
    assert scene.draw(step=1, size=2) is not None
    advantages = scene.values("SELECT advantage FROM trinity.batch_item ORDER BY ordinal")
    assert advantages == [0.5, -0.5, -0.5, 0.5]


def test_a_group_without_difference_waits_for_the_reward_that_is_required(scene: Scene) -> None:
    scene.explore(1, rewards=(1.0, 1.0))
    assert settle(scene, requires_reward="human") == 0
    first, second = scene.values("SELECT rollout_id FROM trinity.experience ORDER BY id")
    with scene.database.transaction() as tx:
        said = [rewards.RewardEvent(first, "taste", 0.5), rewards.RewardEvent(second, "taste", 0.25)]
        rewards.record(tx, scene.run.id, "human", said)
    assert settle(scene, requires_reward="human") == 1
    assert scene.values(GROUPS) == ["ready"], "its rewards differ by now"


def test_selectors_learn_from_groups_without_difference_too(scene: Scene) -> None:
    scene.explore(1, rewards=(1.0, 1.0))
    settle(scene)
    assert scene.rows("SELECT issued, scored, solved FROM trinity.task_stat") == [(1, 2, 2)]


def test_the_group_processor_does_as_it_is_configured(scene: Scene) -> None:
    for drop, state in ((False, "ready"), (True, "dropped")):
        config = {"score": ["number_match"], "group": {"drop_equal_rewards": drop}}
        [group] = scene.explore(1, rewards=(-1.0, -1.0))  # no answer, as the first task's is 0
        process(scene, config)
        assert scene.value("SELECT state FROM trinity.rollout_group WHERE id = %s", group.id) == state


def test_groups_of_one_are_not_dropped_by_a_slip_of_the_configuration() -> None:
    with pytest.raises(ValidationError, match="set min_size to 2 or more"):
        GroupConfig(drop_equal_rewards=True, min_size=1)
