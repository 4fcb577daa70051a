"""Uses: counted when a batch is committed, taken back when it is reopened, whatever became of the row."""

import math
from collections.abc import Callable

import pytest

from tests.support.replays import adopted, differences
from tests.support.rows import Scene, demonstration, import_records, preference
from trinity_db.schema.states import Draws
from trinity_db.store import batches, offline

STATES = "SELECT state, use_count, count(*) FROM trinity.experience GROUP BY 1, 2 ORDER BY 1, 2"
GROUP_STATES = "SELECT state FROM trinity.rollout_group ORDER BY id"
GROUP_USES = "SELECT use_count FROM trinity.rollout_group WHERE run_id = %s ORDER BY id"
# How often the committed batches of each pass used each row, group or pair of a run.
USES: dict[str, str] = {
    "rows": "SELECT b.epoch, i.experience_id, count(*) FROM trinity.batch b"
    " JOIN trinity.batch_item i ON i.batch_id = b.id"
    " WHERE b.run_id = %s AND b.state = 'committed' GROUP BY 1, 2",
    "groups": "SELECT b.epoch, e.group_id, count(DISTINCT b.id) FROM trinity.batch b"
    " JOIN trinity.batch_item i ON i.batch_id = b.id JOIN trinity.experience e ON e.id = i.experience_id"
    " WHERE b.run_id = %s AND b.state = 'committed' GROUP BY 1, 2",
    "pairs": "SELECT b.epoch, i.preference_id, count(DISTINCT b.id) FROM trinity.batch b"
    " JOIN trinity.batch_item i ON i.batch_id = b.id"
    " WHERE b.run_id = %s AND b.state = 'committed' GROUP BY 1, 2",
}
NUM_USED, SIZE = 23, 4


def offline_run(scene: Scene, draws: Draws) -> tuple[Scene, Callable[[int, int], batches.Batch | None]]:
    """A run over NUM_USED adopted groups, rows or pairs, and its draw."""
    match draws:
        case "groups":
            scene.make_ready(NUM_USED)
            run = adopted(scene, "learner", scene.run.name, as_groups=True)
            return run, run.draw_adopted_groups
        case "pairs":
            import_records(scene.database, "set", [preference(number) for number in range(NUM_USED)])
            run = adopted(scene, "learner", "set")
            return run, run.draw_pairs
        case _:
            import_records(scene.database, "set", [demonstration(number) for number in range(NUM_USED)])
            run = adopted(scene, "learner", "set")
            return run, run.draw_rows


def steps_left(run: Scene, draws: Draws, epochs: float) -> int:
    with run.database.transaction() as tx:
        return offline.steps_left(offline.count_trainable(tx, run.run.id, draws), SIZE, epochs)


@pytest.mark.parametrize("epochs", [3, 1.5])
@pytest.mark.parametrize("draws", ["groups", "rows", "pairs"])
def test_each_pass_uses_each_once_across_a_crash_in_any_of_them(
    scene: Scene, draws: Draws, epochs: float
) -> None:
    run, draw = offline_run(scene, draws)
    steps = steps_left(run, draws, epochs)
    a_pass = math.ceil(NUM_USED / SIZE)
    assert steps == {3: 3 * a_pass, 1.5: 9}[epochs]
    done, max_uses = 0, math.ceil(epochs)
    # Each trainer dies with one more step published, two committed after it, and one leased.
    for version, published in enumerate(range(1, steps - 2, 3), start=1):
        while done < published + 2:
            run.commit(draw(done + 1, SIZE), max_uses=max_uses)
            done += 1
            if done == published:
                run.publish(version, done)
        draw(done + 1, SIZE)
        assert run.reopen(version) == 3
        done = published
        assert done + steps_left(run, draws, epochs) == steps
    while done < steps:
        run.commit(draw(done + 1, SIZE), max_uses=max_uses)
        done += 1
    used = run.rows(USES[draws], run.run.id)
    assert {count for _, _, count in used} == {1}
    by_pass = [sum(number == epoch for epoch, _, _ in used) for number in range(max_uses)]
    assert by_pass == ([NUM_USED] * 3 if epochs == 3 else [NUM_USED, (steps - a_pass) * SIZE])
    if epochs == 3:
        assert draw(done + 1, SIZE) is None
    assert differences(run) == []


@pytest.mark.parametrize("max_uses", [2, 3])
def test_a_group_with_uses_left_loses_those_of_reopened_batches(scene: Scene, max_uses: int) -> None:
    scene.make_ready(3)
    for step, size in ((1, 2), (2, 2), (3, 1)):
        scene.commit(scene.draw(step, size, max_uses=max_uses), max_uses=max_uses)
        if step == 1:
            scene.publish(1, step=1)
    assert scene.reopen(version=1) == 2
    uses = (
        "SELECT g.use_count, count(DISTINCT b.id) FROM trinity.rollout_group g"
        " JOIN trinity.experience e ON e.group_id = g.id"
        " LEFT JOIN trinity.batch_item i ON i.experience_id = e.id"
        " LEFT JOIN trinity.batch b ON b.id = i.batch_id AND b.state = 'committed'"
        " GROUP BY g.id ORDER BY g.id"
    )
    assert scene.rows(uses) == [(1, 1), (1, 1), (0, 0)]
    assert scene.values(GROUP_STATES) == ["ready"] * 3
    step = 2
    while batch := scene.draw(step, size=1, max_uses=max_uses):
        scene.commit(batch, max_uses=max_uses)
        step += 1
    assert step - 2 == 3 * max_uses - 2
    assert scene.rows(uses) == [(max_uses, max_uses)] * 3
    assert differences(scene) == []


def test_a_group_is_ready_until_its_members_have_no_uses_left(scene: Scene) -> None:
    scene.make_ready(1)
    for uses in (1, 2):
        scene.commit(scene.draw(step=uses, size=1), max_uses=2)
        ended = "ready" if uses == 1 else "trained"
        assert scene.rows(STATES) == [(ended, uses, 2)]
        assert scene.values(GROUP_STATES) == [ended]


def test_reopening_takes_back_the_uses_of_its_batches_only(scene: Scene) -> None:
    scene.make_ready(1)
    for step in (1, 2, 3):
        scene.commit(scene.draw(step, size=1), max_uses=3)
        scene.publish(step, step)
    assert scene.rows(STATES) == [("trained", 3, 2)]
    assert scene.reopen(version=2) == 1
    assert (scene.rows(STATES), scene.values(GROUP_STATES)) == ([("ready", 2, 2)], ["ready"])
    scene.draw(step=3, size=1)
    # Two that were committed and one that was not, all of the same rows.
    assert scene.reopen(version=0) == 3
    assert (scene.rows(STATES), scene.values(GROUP_STATES)) == ([("ready", 0, 2)], ["ready"])


def test_a_group_that_expired_between_its_uses_stays_gone_but_its_use_is_taken_back(scene: Scene) -> None:
    scene.make_ready(1)
    scene.commit(scene.draw(step=1, size=1), max_uses=2)
    scene.publish(1, step=1)
    assert scene.draw(step=2, size=1, max_staleness=0) is None
    assert scene.rows(STATES) == [("expired", 1, 2)]
    assert scene.reopen(version=0) == 1
    assert (scene.rows(STATES), scene.values(GROUP_STATES)) == ([("expired", 0, 2)], ["dropped"])
    assert scene.values(GROUP_USES, scene.run.id) == [0]


def test_a_row_that_was_dropped_between_its_uses_stays_gone_but_its_use_is_taken_back(scene: Scene) -> None:
    import_records(scene.database, "set", [demonstration(number) for number in range(3)])
    run = Scene.open(scene.database, "imitation", data=["set"])
    run.encode()
    run.commit(run.draw_rows(step=1, size=3), max_uses=2)
    first = run.value("SELECT min(id) FROM trinity.experience WHERE run_id = %s", run.run.id)
    with run.database.transaction() as tx:
        offline.drop(tx, run.run.id, [(first, "unfit", "a person said so")])
    assert run.reopen(version=0) == 1
    states = (
        "SELECT state, use_count, count(*) FROM trinity.experience WHERE run_id = %s GROUP BY 1, 2 ORDER BY 1"
    )
    assert run.rows(states, run.run.id) == [("ready", 0, 2), ("dropped", 0, 1)]


def test_reopening_rows_that_were_adopted_singly_leaves_the_groups_of_their_run_alone(scene: Scene) -> None:
    scene.make_ready(2)
    scene.commit(scene.draw(step=1, size=1), max_uses=2)
    groups = "SELECT id, state::text, use_count, worker_id FROM trinity.rollout_group ORDER BY id"
    before = scene.rows(groups)
    run = adopted(scene, "imitation", scene.run.name)
    for step in (1, 2):
        run.commit(run.draw_rows(step, size=1), max_uses=2)
    run.draw_rows(step=3, size=1)
    assert scene.rows(groups) == before
    assert run.reopen(version=0) == 3
    assert scene.rows(groups) == before
    own = "SELECT DISTINCT state::text, use_count FROM trinity.experience WHERE run_id = %s"
    assert run.rows(own, run.run.id) == [("ready", 0)]
    assert differences(run) == []


def test_reopening_pairs_writes_nothing_to_the_groups_of_their_rows(scene: Scene) -> None:
    scene.make_ready(2)
    assert scene.pair() == 2
    scene.commit(scene.draw_pairs(step=1, size=1), max_uses=2)
    scene.draw_pairs(step=2, size=1)
    groups = "SELECT id, xmin::text FROM trinity.rollout_group ORDER BY id"
    before = scene.rows(groups)
    assert scene.reopen(version=0) == 2
    assert scene.rows(groups) == before
    assert scene.values("SELECT DISTINCT use_count FROM trinity.preference") == [0]
