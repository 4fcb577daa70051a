"""Batches of every sampler: what they take and record, drawn again, used again, and past what lies behind."""

import math

import pytest

from tests.support.replays import correct, difference, differences, drawn
from tests.support.rows import Scene, rollout
from trinity_db.store import samplers
from trinity_db.store.batches import Batch
from trinity_db.store.samplers import Sampler

NEWEST = Sampler("newest")
UNIFORM = Sampler("uniform")
PRIORITIZED = Sampler("prioritized", alpha=1.0, beta=0.5)
ALL = pytest.mark.parametrize(
    "sampler", [samplers.FIFO, NEWEST, UNIFORM, PRIORITIZED], ids=lambda sampler: sampler.name
)
BY_CHANCE = pytest.mark.parametrize("sampler", [UNIFORM, PRIORITIZED], ids=lambda sampler: sampler.name)

GROUPS = (
    "SELECT DISTINCT e.group_id FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id"
    " WHERE i.batch_id = %s ORDER BY 1"
)


def groups_of(scene: Scene, batch: Batch | None) -> list[int]:
    return scene.values(GROUPS, drawn(batch).id)


def prioritize(scene: Scene, priorities: dict[int, float]) -> None:
    with scene.database.transaction() as tx:
        for group, priority in priorities.items():
            tx.execute("UPDATE trinity.rollout_group SET priority = %s WHERE id = %s", [priority, group])


def follow_rewards(scene: Scene) -> None:
    """From now on priorities follow from rewards."""
    with scene.database.transaction() as tx:
        tx.execute(
            "UPDATE trinity.run SET config = jsonb_set(config, '{processors}',"
            ' \'{"group": {"priority": "reward_std"}}\') WHERE id = %s',
            [scene.run.id],
        )


def test_the_newest_groups_come_first(scene: Scene) -> None:
    groups = scene.make_ready(4)
    assert groups_of(scene, scene.draw(step=1, size=2, sampler=NEWEST)) == groups[2:]
    assert groups_of(scene, scene.draw(step=2, size=2, sampler=NEWEST)) == groups[:2]


@ALL
def test_groups_are_whole_and_not_too_stale(scene: Scene, sampler: Sampler) -> None:
    scene.make_ready(4, rewards=(1.0, 0.5, 0.0))
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    fresh = scene.make_ready(3, rewards=(1.0, 0.5, 0.0), version=1)
    assert scene.draw(step=2, size=4, max_staleness=0, sampler=sampler) is None
    batch = scene.draw(step=2, size=3, max_staleness=0, sampler=sampler)
    assert groups_of(scene, batch) == fresh
    assert scene.value("SELECT count(*) FROM trinity.batch_item WHERE batch_id = %s", drawn(batch).id) == 9
    assert scene.value("SELECT count(*) FROM trinity.rollout_group WHERE state = 'dropped'") == 3


@ALL
def test_what_was_given_back_is_drawn_again(scene: Scene, sampler: Sampler) -> None:
    scene.make_ready(8)
    for step in (1, 2):
        first = groups_of(scene, scene.draw(step, size=3, sampler=sampler))
        assert scene.reopen(version=0) == 1
        assert groups_of(scene, scene.draw(step, size=3, sampler=sampler)) == first
        scene.reopen(version=0)
    assert differences(scene) == []


@ALL
def test_draws_of_groups_that_are_used_twice_can_be_run_again(scene: Scene, sampler: Sampler) -> None:
    scene.make_ready(6)
    uses = []
    for step in range(1, 6):
        batch = scene.draw(step, size=2, sampler=sampler, max_uses=2)
        uses += groups_of(scene, batch)
        scene.commit(batch, max_uses=2)
        if step == 3:
            scene.publish(1, step=3)
            scene.make_ready(2, version=1)
    assert max(map(uses.count, uses)) == 2
    assert scene.reopen(version=1) == 2
    scene.draw(step=4, size=4, sampler=sampler, max_uses=2)
    assert differences(scene) == []
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.batch SET parameters = parameters || '{\"max_uses\": 1}'")
    assert differences(scene) != []


@ALL
def test_a_batch_keeps_its_sampler_and_what_it_was_given(scene: Scene, sampler: Sampler) -> None:
    scene.make_ready(3)
    scene.draw(step=1, size=2, sampler=sampler, max_uses=3)
    name, parameters, statement = scene.rows("SELECT sampler, parameters, query FROM trinity.batch")[0]
    assert (name, parameters["max_uses"]) == (sampler.name, 3)
    if sampler in (UNIFORM, PRIORITIZED):
        assert (parameters["alpha"], parameters["beta"]) == (sampler.alpha, sampler.beta)
        assert "hashint8extended" in statement
    else:
        assert parameters == {"max_uses": 3}


def test_the_chance_of_a_row_and_its_weight_are_kept(scene: Scene) -> None:
    groups = scene.make_ready(5)
    prioritize(scene, {group: 0.5 + place for place, group in enumerate(groups)})
    batch = drawn(scene.draw(step=1, size=3, sampler=PRIORITIZED))
    items = scene.rows(
        "SELECT g.priority, i.probability, i.weight, i.advantage FROM trinity.batch_item i"
        " JOIN trinity.experience e ON e.id = i.experience_id"
        " JOIN trinity.rollout_group g ON g.id = e.group_id"
        " WHERE i.batch_id = %s",
        batch.id,
    )
    least = min(probability for _, probability, _, _ in items)
    [key, *others] = {-math.log1p(-probability) / priority for priority, probability, _, _ in items}
    assert 0 < least < 1
    assert all(math.isclose(other, key, rel_tol=1e-9) for other in others), "one threshold for all"
    assert all(math.isclose(weight, math.sqrt(least / chance)) for _, chance, weight, _ in items)
    assert {abs(advantage) for *_, advantage in items} == {0.5}, "recorded as they are, without weights"


@BY_CHANCE
def test_a_draw_of_all_there_is_was_certain(scene: Scene, sampler: Sampler) -> None:
    scene.make_ready(3)
    drawn(scene.draw(step=1, size=3, sampler=sampler))
    assert set(scene.rows("SELECT probability, weight FROM trinity.batch_item")) == {(1.0, 1.0)}
    assert differences(scene) == []


def test_priority_zero_is_never_drawn_where_priorities_count(scene: Scene) -> None:
    never, *rest = scene.make_ready(3)
    prioritize(scene, {never: 0.0})
    assert scene.draw(step=1, size=3, sampler=PRIORITIZED) is None
    assert groups_of(scene, scene.draw(step=1, size=2, sampler=PRIORITIZED)) == rest
    assert groups_of(scene, scene.draw(step=2, size=1, sampler=UNIFORM)) == [never]
    assert differences(scene) == []


def test_one_group_that_outweighs_all_others_is_drawn_with_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers, "MIN_FEW", 8)
    monkeypatch.setattr(samplers, "FEW_PER_GROUP", 0)
    heavy, *rest = [group for _ in range(6) for group in scene.make_ready(8)]
    # In one octave with others, but they are few beside it, so that it is hit again and again.
    prioritize(scene, dict.fromkeys((heavy, *rest[:9]), 1000000000000000.0) | dict.fromkeys(rest[9:], 1e-15))
    batch = scene.draw(step=1, size=12, sampler=PRIORITIZED)
    assert set(groups_of(scene, batch)) >= {heavy, *rest[:9]}
    assert scene.value("SELECT parameters -> 'probes' FROM trinity.batch") == 0, "it read them all in the end"
    assert differences(scene) == []


@BY_CHANCE
def test_a_draw_that_probed_can_be_run_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, sampler: Sampler
) -> None:
    monkeypatch.setattr(samplers, "MIN_FEW", 8)
    monkeypatch.setattr(samplers, "FEW_PER_GROUP", 0)
    groups = [group for _ in range(5) for group in scene.make_ready(8)]
    prioritize(scene, {group: 0.3 + 0.05 * place for place, group in enumerate(groups)})
    for step in (1, 2, 3):
        scene.commit(scene.draw(step, size=4, sampler=sampler, max_uses=2), max_uses=2)
    assert scene.value("SELECT count(*) FROM trinity.batch WHERE (parameters -> 'probes')::int > 0") == 3
    assert differences(scene) == []
    lie = (
        "UPDATE trinity.batch_item SET probability = probability * 1.001 WHERE batch_id = %s AND ordinal = 0"
    )
    first = scene.value("SELECT min(id) FROM trinity.batch")
    with scene.database.transaction() as tx:
        tx.execute(lie, [first])
    assert "row 0" in str(difference(scene, first))


PRIORITIES = "SELECT priority FROM trinity.rollout_group ORDER BY id"


def test_priorities_follow_rewards_where_they_are_to(scene: Scene) -> None:
    scene.make_ready(1)
    follow_rewards(scene)
    scene.make_ready(1, rewards=(1.0, 0.0))
    scene.make_ready(1, rewards=(1.0, 1.0))
    scene.settle(min_group_size=1)
    assert scene.values(PRIORITIES) == [1.0, math.sqrt(0.5), 0.01]
    last = scene.value("SELECT max(id) FROM trinity.rollout")
    correct(scene, last, 3.0)
    assert scene.values(PRIORITIES) == [1.0, math.sqrt(0.5), math.sqrt(2.0)]
    correct(scene, last, 1e60)
    assert scene.values(PRIORITIES)[-1] == 1e18


def test_a_draw_by_priorities_of_the_time_can_be_run_again_after_rewards_changed(scene: Scene) -> None:
    follow_rewards(scene)
    for wrong in (0.0, 0.2, 0.4, 0.6, 0.8):
        scene.make_ready(1, rewards=(1.0, wrong))
    first = scene.value("SELECT min(id) FROM trinity.rollout")
    for step in (1, 2):
        scene.draw(step, size=1, sampler=PRIORITIZED)
        correct(scene, first, 5.0 * step)
    assert differences(scene) == []


def test_draws_begin_at_the_lowest_group_that_was_live(scene: Scene) -> None:
    floors = "SELECT floor FROM trinity.batch ORDER BY id"
    first, second, third, fourth = scene.make_ready(4)
    [straggler] = scene.claim(1)
    scene.train(step=1, size=1)
    scene.train(step=2, size=1)
    assert scene.values(floors) == [first, second]
    scene.publish(1, step=1)
    scene.train(step=3, size=2)
    scene.make_ready(1)
    scene.train(step=4, size=1)
    assert scene.values(floors) == [first, second, third, straggler.id]
    # What is reopened lies above the floor of what is left.
    assert scene.reopen(version=1) == 3
    assert groups_of(scene, scene.draw(step=2, size=3)) == [second, third, fourth]
    assert differences(scene) == []


def test_what_lies_below_the_floor_is_neither_drawn_nor_expired(scene: Scene) -> None:
    groups = scene.make_ready(4)
    scene.train(step=1, size=1)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.batch SET floor = %s", [groups[2]])
        tx.execute("INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)"
                   " VALUES (%s, 2, 1, 'x', '')", [scene.run.id])  # fmt: skip
    for sampler in (samplers.FIFO, NEWEST):
        assert scene.draw(step=2, size=3, max_staleness=2, sampler=sampler) is None
    assert scene.draw(step=2, size=1, max_staleness=1) is None
    assert scene.values("SELECT state FROM trinity.rollout_group ORDER BY id") == [
        "trained",
        "ready",
        "dropped",
        "dropped",
    ]


@ALL
def test_rows_of_withdrawn_versions_are_compared_by_distance(scene: Scene, sampler: Sampler) -> None:
    trained = []
    for step in (1, 2, 3):
        trained += scene.make_ready(1, version=step - 1)
        scene.train(step, size=1)
        scene.publish(step, step)
    near, far = scene.make_ready(1, version=1), scene.make_ready(2, version=3)
    [half] = scene.claim(1)  # begun by version 3 and ended, after the run went back, by version 0
    scene.write([rollout(half, 0, "1.0", (3, 3))])
    scene.reopen(0)
    scene.write([rollout(half, 1, "0.0", (0, 0))])
    scene.process()
    batch = drawn(scene.draw(step=1, size=3, max_staleness=1, sampler=sampler))
    assert batch.version == 0
    recorded = (
        "SELECT DISTINCT e.group_id, i.staleness FROM trinity.batch_item i"
        " JOIN trinity.experience e ON e.id = i.experience_id WHERE i.batch_id = %s"
    )
    assert dict(scene.rows(recorded, batch.id)) == {trained[0]: 0, trained[1]: 1, near[0]: 1}
    expired = (
        "SELECT DISTINCT e.group_id, (d.detail ->> 'staleness')::integer FROM trinity.\"drop\" d"
        " JOIN trinity.experience e ON e.id = d.experience_id WHERE d.stage = 'draw'"
    )
    stale = {trained[2]: 2, far[0]: 3, far[1]: 3}
    assert set(scene.rows(expired)) == {*stale.items(), (half.id, 3), (half.id, 0)}
    assert scene.draw(step=2, size=1, max_staleness=1, sampler=sampler) is None
    assert differences(scene) == []
