"""Clean steps that compare rows: equal responses of a group."""

from tests.support.rows import Scene, attempt, rollout
from tests.support.steps import process
from trinity_db.processors.lists.step import Answer

CONFIG = {"clean": ["not_duplicate"], "group": {"min_size": 1}}
STATES = (
    "SELECT e.state::text FROM trinity.experience e JOIN trinity.rollout m ON m.id = e.rollout_id"
    " ORDER BY m.group_id, m.ordinal, e.step"
)
DROPS = 'SELECT stage, step, reason, detail FROM trinity."drop" ORDER BY id'


def test_of_equal_responses_of_a_group_the_first_is_kept_and_the_others_name_it(scene: Scene) -> None:
    for responses in (["1", "0", "1", "1 "], ["1"]):
        [group] = scene.claim(1, group_size=len(responses))
        scene.write([rollout(group, member, response) for member, response in enumerate(responses)])
    process(scene, CONFIG)
    assert scene.values(STATES) == ["ready", "ready", "dropped", "ready", "ready"]
    kept = scene.value("SELECT min(id) FROM trinity.experience")
    assert scene.rows(DROPS) == [("clean", "not_duplicate", "duplicate", {"of": kept})]
    kept_rewards = (
        "SELECT count(*), avg(reward) FROM trinity.experience WHERE group_id = %s AND state = 'ready'"
    )
    baseline = "SELECT reward_count, reward_mean FROM trinity.rollout_group WHERE id = %s"
    first = scene.value("SELECT min(id) FROM trinity.rollout_group")
    assert scene.rows(baseline, first) == scene.rows(kept_rewards, first) == [(3, 1 / 3)]


def test_a_response_is_compared_with_those_that_are_not_dropped(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3)
    scene.write([rollout(group, 0, "1"), rollout(group, 1, "1")])
    first = scene.value("SELECT min(id) FROM trinity.experience")
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = 'dropped' WHERE id = %s", [first])
    scene.write([rollout(group, 2, "1")])
    process(scene, CONFIG)
    assert scene.values(STATES) == ["dropped", "ready", "dropped"]
    assert scene.rows(DROPS) == [("clean", "not_duplicate", "duplicate", {"of": first + 1})]


def test_steps_of_an_attempt_are_compared_with_the_same_step_of_others(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=2)
    scene.write([attempt(group, 0, ["a", "a"]), attempt(group, 1, ["b", "c"])])
    process(scene, CONFIG | {"score": []})
    assert scene.values(STATES) == ["ready"] * 4


def test_what_steps_find_in_rows_that_they_pass_is_recorded_with_the_row(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=2)
    scene.write([rollout(group, 0, "1"), rollout(group, 1, "")])
    process(scene, {"clean": ["not_empty", f"{__file__}:noted"], "group": {"min_size": 1}})
    statement = "SELECT outcome::text, detail FROM trinity.processing WHERE processor = 'clean' "
    found = scene.rows(statement + "ORDER BY experience_id")
    assert found == [("passed", {f"{__file__}:noted": {"letters": 0}}), ("dropped", None)]


def noted(response: str) -> Answer:
    """A step of a user's own."""
    return Answer(None, {"letters": sum(map(str.isalpha, response))})
