"""Draws run again on their snapshots say what they said, whatever has happened since; and a lie is found."""

from contextlib import closing

import pytest

from tests.support.replays import adopted, correct, difference, differences, drawn
from tests.support.rows import (
    WAIT_SECONDS,
    Scene,
    centered,
    demonstration,
    import_records,
    in_a_thread,
    members,
    reward,
    wait_until_blocked,
)
from trinity_db.errors import NotFound, TrinityError
from trinity_db.postgres.connection import connect
from trinity_db.store import batches, draws, finish_groups, processing, replay, rewards
from trinity_db.store.finish_groups import Rules


def test_a_draw_waits_for_no_transaction_that_makes_other_groups_ready(scene: Scene) -> None:
    early, late = scene.claim(2)
    for group in (late, early):
        scene.write(members(group))
        scene.judge(processing.CLEAN)
        scene.judge(processing.SCORE)
        if group is late:
            scene.settle()
    with closing(connect(scene.database.url)) as other:
        assert finish_groups.settle_groups(other, scene.run.id, Rules(2), limit=10) == 1
        first = drawn(scene.draw(step=1, size=1))
        other.commit()
    second = drawn(scene.draw(step=2, size=1))
    groups = "SELECT DISTINCT e.group_id FROM trinity.batch_item i JOIN trinity.experience e"
    groups += " ON e.id = i.experience_id WHERE i.batch_id = %s"
    # The group that is older became ready in a transaction that the first draw could not see.
    assert [scene.value(groups, batch.id) for batch in (first, second)] == [late.id, early.id]
    assert differences(scene) == []


def test_a_snapshot_is_that_of_the_statement_that_draws(scene: Scene) -> None:
    [group] = scene.make_ready(1)
    with closing(connect(scene.database.url)) as other:
        other.execute("SELECT FROM trinity.rollout_group WHERE id = %s FOR NO KEY UPDATE", [group])
        drawing = in_a_thread(scene.database, lambda: scene.draw(step=1, size=1))
        wait_until_blocked(scene.database, drawing)
        # What commits while the draw waits for a lock is not in what it saw.
        first = scene.value("SELECT min(id) FROM trinity.rollout")
        rewards.record(other, scene.run.id, "person", [reward(first, 7.0)])
        other.commit()
        drawing.result(WAIT_SECONDS)
    assert scene.values("SELECT reward FROM trinity.batch_item ORDER BY ordinal") == [1.0, 0.0]
    assert scene.values("SELECT reward FROM trinity.experience ORDER BY id") == [7.0, 0.0]
    assert differences(scene) == []


def test_a_snapshot_and_the_limit_are_kept_with_the_batch(scene: Scene) -> None:
    scene.make_ready(2)
    scene.draw(step=1, size=1, max_staleness=3)
    scene.draw(step=2, size=1)
    kept = scene.rows(
        "SELECT max_staleness, pg_snapshot_xmin(snapshot::pg_snapshot) IS NOT NULL"
        " FROM trinity.batch ORDER BY id"
    )
    assert kept == [(3, True), (None, True)]


def test_groups_that_expired_after_they_were_given_back_were_in_the_draw(scene: Scene) -> None:
    scene.make_ready(3)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    scene.draw(step=2, size=1, max_staleness=1)
    scene.reopen(version=1)
    assert scene.draw(step=2, size=1, max_staleness=0) is None
    assert scene.values("SELECT state FROM trinity.rollout_group ORDER BY id") == [
        "trained",
        "dropped",
        "dropped",
    ]
    scene.make_ready(1, version=1)
    scene.draw(step=2, size=1, max_staleness=1)
    assert scene.value("SELECT count(*) FROM trinity.batch") == 3
    assert differences(scene) == []


def test_groups_that_the_draw_itself_took_out_were_not_there(scene: Scene) -> None:
    scene.make_ready(2)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    scene.make_ready(1, version=1)
    scene.draw(step=2, size=1, max_staleness=0)
    assert scene.value('SELECT count(*) FROM trinity."drop"') == 2
    assert differences(scene) == []


def test_groups_that_expired_before_stay_gone_though_an_older_version_is_the_newest_again(
    scene: Scene,
) -> None:
    _, stale, fresh = scene.make_ready(3)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    assert scene.draw(step=2, size=3, max_staleness=0) is None
    scene.reopen(version=0)
    again = drawn(scene.draw(step=1, size=1, max_staleness=0))
    assert {stale, fresh} == set(scene.values("SELECT id FROM trinity.rollout_group WHERE state = 'dropped'"))
    assert again.version == 0
    assert differences(scene) == []


def test_batches_that_were_reopened_and_drawn_again_draw_the_same(scene: Scene) -> None:
    scene.make_ready(4)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    for step in (2, 3):
        scene.train(step, size=1)
    scene.draw(step=4, size=1)
    scene.reopen(version=1)
    for step in (2, 3, 4):
        scene.train(step, size=1)
    assert scene.value("SELECT count(*) FROM trinity.batch") == 7
    assert differences(scene) == []


def test_a_batch_that_was_given_back_by_its_own_draw_is_not_in_the_way(scene: Scene) -> None:
    scene.make_ready(2)
    scene.draw(step=1, size=1)
    with scene.database.transaction() as tx:
        draw = batches.Draw(scene.run.id, scene.trainer, step=1, batch_size=2, seed=0)
        batches.reopen_leased(tx, draw)
        drawn(draws.draw_groups(tx, draw, None, centered))
    assert differences(scene) == []


def test_rewards_that_were_corrected_later_are_not_what_the_draw_saw(scene: Scene) -> None:
    scene.make_ready(2)
    first, *_, last = scene.values("SELECT id FROM trinity.rollout ORDER BY id")
    correct(scene, first, 5.0)
    scene.train(step=1, size=1)
    correct(scene, first, 6.0)
    correct(scene, last, 6.0)
    scene.train(step=2, size=1)
    assert scene.values("SELECT reward FROM trinity.batch_item ORDER BY batch_id, ordinal") == [
        5.0,
        0.0,
        1.0,
        6.0,
    ]
    assert differences(scene) == []


AFTER = "(SELECT pg_snapshot_xmax(snapshot::pg_snapshot)::text::bigint FROM trinity.batch)"
"""The number of a transaction that the draw could not see."""


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        ("UPDATE trinity.batch_item SET reward = 0.5 WHERE ordinal = 1", "row 1: the batch has experience"),
        ("UPDATE trinity.batch_item SET staleness = 1 WHERE ordinal = 0", "staleness 1), the draw gives"),
        ("UPDATE trinity.batch_item SET experience_id = experience_id + 1 WHERE ordinal = 1", "row 1"),
        ("UPDATE trinity.batch_item SET ordinal = 5 - ordinal", "row 0"),
        (
            "DELETE FROM trinity.batch_item WHERE ordinal = 1",
            "row 1: the batch has none, the draw gives experience",
        ),
        ("UPDATE trinity.batch SET snapshot = '10:10:'", "the draw gives none"),
        (f"UPDATE trinity.rollout_group SET ready_xact = {AFTER} WHERE state = 'leased'", "row 0"),
        (f"UPDATE trinity.reward_event SET xact = {AFTER}", "row 0: the batch has experience"),
        ("UPDATE trinity.reward_event SET value = 3", "row 0: the batch has experience"),
    ],
)
def test_a_record_that_was_tampered_with_is_found(scene: Scene, lie: str, found: str) -> None:
    scene.make_ready(2)
    batch = drawn(scene.draw(step=1, size=1))
    assert difference(scene, batch.id) is None
    with scene.database.transaction() as tx:
        tx.execute(lie)
    assert found in str(difference(scene, batch.id))


def test_runs_are_apart(scene: Scene) -> None:
    import_records(scene.database, "set", [demonstration(number) for number in range(6)])
    one, two = adopted(scene, "one", "set"), adopted(scene, "two", "set")
    scene.make_ready(1)
    one.draw_rows(step=1, size=3)
    two.draw_rows(step=1, size=3)
    scene.draw(step=1, size=1)
    one.draw_rows(step=2, size=3)
    assert [differences(run) for run in (one, two, scene)] == [[], [], []]


def test_a_batch_from_before_snapshots_cannot_be_drawn_again(scene: Scene) -> None:
    scene.make_ready(1)
    batch = drawn(scene.draw(step=1, size=1))
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.batch SET snapshot = NULL")
    with pytest.raises(TrinityError, match="its run is a copy, drawn from on another server"):
        difference(scene, batch.id)


def test_what_is_recorded_names_the_checkpoint_that_the_step_went_on_from(scene: Scene) -> None:
    scene.make_ready(4)
    for step in (1, 2):
        scene.train(step, size=1)
    scene.publish(1, step=2)
    scene.train(3, size=1)
    batch = drawn(scene.draw(step=4, size=1))
    with scene.database.transaction() as tx:
        recorded = replay.find(tx, batch.id)
        assert (recorded.policy_version, str(recorded.checkpoint), recorded.checkpoint_step) == (
            1,
            "version-1",
            2,
        )
        assert (recorded.run, recorded.step, recorded.sampler, recorded.rows) == ("run", 4, "fifo", 2)
    scene.reopen(version=0)
    with scene.database.transaction() as tx:
        assert replay.find(tx, batch.id).checkpoint is None


def test_a_batch_goes_with_its_run(scene: Scene) -> None:
    other = Scene.open(scene.database, "other")
    other.make_ready(1)
    batch = drawn(other.draw(step=1, size=1))
    with scene.database.transaction() as tx:
        tx.execute("DELETE FROM trinity.run WHERE id = %s", [other.run.id])
    with pytest.raises(NotFound, match=f"There is no batch {batch.id};"), scene.database.transaction() as tx:
        replay.find(tx, batch.id)
