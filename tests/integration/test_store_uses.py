"""Uses: counted when a batch is committed, taken back when it is reopened, whatever became of the row."""

from tests.rows import Scene, demonstration, import_records
from trinity_db.store import offline

STATES = "SELECT state, use_count, count(*) FROM trinity.experience GROUP BY 1, 2 ORDER BY 1, 2"
GROUP_STATES = "SELECT state FROM trinity.rollout_group ORDER BY id"


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
