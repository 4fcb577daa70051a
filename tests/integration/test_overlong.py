"""Long responses lose reward or leave training, as configured; failed attempts have no reward at all."""

from collections.abc import Sequence
from dataclasses import replace

from tests.support.rows import Scene, rollout
from tests.support.steps import process

PENALTY = {"name": "overlong_penalty", "weight": 0.5, "max_response_length": 8, "buffer_length": 4}


def explore(scene: Scene, responses: Sequence[tuple[str, int, str]]) -> None:
    """One group; of each response the text, the length in tokens and how it ended."""
    [group] = scene.claim(1, group_size=len(responses))
    scene.write(
        [
            replace(rollout(group, member, text, versions=(0,) * length), finish_reason=reason)
            for member, (text, length, reason) in enumerate(responses)
        ]
    )


def test_a_long_response_loses_reward_by_an_event_of_its_own(scene: Scene) -> None:
    explore(scene, [("0", 4, "stop"), ("0", 6, "stop"), ("0", 8, "length"), ("1", 7, "stop")])
    process(scene, {"score": ["exact_match", PENALTY]})
    events = (
        "SELECT e.response_length, v.value, v.weight FROM trinity.reward_event v"
        " JOIN trinity.experience e ON e.rollout_id = v.rollout_id"
        " WHERE v.name = 'overlong_penalty' ORDER BY e.id"
    )
    assert scene.rows(events) == [(4, 0.0, 0.5), (6, -0.5, 0.5), (8, -1.0, 0.5), (7, -0.75, 0.5)]
    assert scene.values("SELECT reward FROM trinity.experience ORDER BY id") == [1.0, 0.75, 0.5, -0.375]


def test_lengths_make_a_difference_between_answers_that_are_all_right(scene: Scene) -> None:
    config = {"score": ["exact_match", PENALTY], "group": {"drop_equal_rewards": True}}
    for lengths in ((2, 3), (2, 8)):
        [group] = scene.claim(1)
        scene.write(
            [
                rollout(group, member, str(group.task["answer"]), versions=(0,) * length)
                for member, length in zip(group.members, lengths, strict=True)
            ]
        )
        process(scene, config)
    assert scene.values("SELECT state FROM trinity.rollout_group ORDER BY id") == ["dropped", "ready"]


def test_a_truncated_response_is_kept_out_of_training_and_of_the_mean_of_its_group(scene: Scene) -> None:
    explore(scene, [("0", 2, "stop"), ("1", 2, "stop"), ("1", 8, "length")])
    process(scene, {"clean": ["defaults", "not_truncated"]})
    assert scene.rows('SELECT stage, reason FROM trinity."drop"') == [("clean", "truncated")]
    assert scene.draw(step=1, size=1) is not None
    drawn = (
        "SELECT e.response_length, i.reward, i.advantage FROM trinity.batch_item i"
        " JOIN trinity.experience e ON e.id = i.experience_id ORDER BY i.ordinal"
    )
    assert scene.rows(drawn) == [(2, 1.0, 0.5), (2, 0.0, -0.5)]


def test_a_failed_attempt_is_no_reward_of_zero(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3)
    answers = [rollout(group, 0, str(group.task["answer"])), rollout(group, 1, "wrong")]
    scene.write([*answers, rollout(group, 2, error="the tool is away")])
    process(scene, {"score": ["exact_match"]})
    assert scene.values("SELECT value FROM trinity.reward_event ORDER BY value") == [0.0, 1.0]
    group_of = "SELECT state::text, failed, reward_count, reward_mean FROM trinity.rollout_group"
    assert scene.rows(group_of) == [("ready", 1, 2, 0.5)]
    assert scene.draw(step=1, size=1) is not None
    drawn = "SELECT reward, advantage FROM trinity.batch_item ORDER BY reward"
    assert scene.rows(drawn) == [(0.0, -0.5), (1.0, 0.5)]
