"""Draws of adopted rows and pairs, run again on their snapshots, over epochs, drops and corrected rewards."""

import pytest

from tests.support.replays import adopted, correct, difference, differences, drawn
from tests.support.rows import Scene, demonstration, import_records, payload, preference, trajectory
from trinity_db.store import offline, processing


def two_epochs(scene: Scene, *, pairs: bool, from_step: int = 1, max_uses: int = 2) -> None:
    draw = scene.draw_pairs if pairs else scene.draw_rows
    step = from_step
    while batch := draw(step=step, size=4):
        scene.commit(batch, max_uses=max_uses)
        step += 1


@pytest.mark.parametrize("pairs", [False, True])
def test_two_epochs_with_a_restart_draw_the_same_again(scene: Scene, pairs: bool) -> None:
    record = preference if pairs else demonstration
    import_records(scene.database, "set", [record(number) for number in range(10)])
    run = adopted(scene, "offline", "set")
    two_epochs(run, pairs=pairs)
    run.reopen(version=0)
    draw = run.draw_pairs if pairs else run.draw_rows
    for step in (1, 2, 3, 4):
        run.commit(draw(step=step, size=4), max_uses=2)
    run.publish(1, step=4)
    draw(step=5, size=4)
    run.reopen(version=1)
    two_epochs(run, pairs=pairs, from_step=5)
    assert run.value("SELECT count(*) FROM trinity.batch WHERE run_id = %s", run.run.id) == 6 + 5 + 2
    assert differences(run) == []


@pytest.mark.parametrize("pairs", [False, True])
def test_rows_that_another_step_was_trained_on_were_not_in_the_draw(scene: Scene, pairs: bool) -> None:
    record = preference if pairs else demonstration
    import_records(scene.database, "set", [record(number) for number in range(10)])
    run = adopted(scene, "offline", "set")
    draw = run.draw_pairs if pairs else run.draw_rows
    run.commit(draw(step=1, size=4), max_uses=2)
    six, four = drawn(draw(step=2, size=10)), drawn(draw(step=3, size=10))
    assert [(six.size, six.epoch), (four.size, four.epoch)] == [(6, 0), (4, 1)]
    assert differences(run) == []


@pytest.mark.parametrize("pairs", [False, True])
def test_another_seed_would_have_drawn_others(scene: Scene, pairs: bool) -> None:
    record = preference if pairs else demonstration
    import_records(scene.database, "set", [record(number) for number in range(10)])
    run = adopted(scene, "offline", "set")
    batch = drawn(run.draw_pairs(step=1, size=4) if pairs else run.draw_rows(step=1, size=4))
    with run.database.transaction() as tx:
        tx.execute("UPDATE trinity.batch SET seed = 1 WHERE id = %s", [batch.id])
    assert "row 0: the batch has experience" in str(difference(run, batch.id))


def test_rows_that_came_or_were_judged_later_were_not_in_the_draw(scene: Scene) -> None:
    records = [trajectory(number, f"attempt at {number}", 1.0) for number in range(8)]
    import_records(scene.database, "set", records[:6])
    run = adopted(scene, "offline", "set")
    rollouts = "SELECT rollout_id FROM trinity.experience WHERE run_id = %s ORDER BY id"
    bad, *good = run.values(rollouts, run.run.id)
    correct(run, bad, -1.0, "reward")
    run.commit(run.draw_rows(step=1, size=3), max_uses=2)
    # What changes from here on did not concern the first draw, nor do the new rows' tokens the second.
    correct(run, bad, 2.0, "reward")
    for rollout_id in good[2:]:
        correct(run, rollout_id, 0.0, "reward")
    import_records(scene.database, "set", records[6:])
    run.adopt_again("set")
    run.commit(run.draw_rows(step=2, size=8), max_uses=2)
    run.encode()
    run.commit(run.draw_rows(step=3, size=8), max_uses=2)
    rewards_used = "SELECT reward FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id"
    used = [run.values(f"{rewards_used} WHERE b.step = {step} ORDER BY reward") for step in (1, 2, 3)]
    assert used[0] == [1.0] * 3
    assert used[1][-1] == 2.0
    assert used[2] == [1.0, 1.0]
    assert differences(run) == []


def test_pairs_that_their_rewards_contradict_were_left_out_only_then(scene: Scene) -> None:
    records = [
        trajectory(number, f"{quality} {number}", value)
        for number in range(5)
        for quality, value in (("good", 1.0), ("bad", 0.0))
    ]
    import_records(scene.database, "set", records)
    run = adopted(scene, "offline", "set")
    assert run.pair(margin=0.5) == 5
    bad = run.values(
        "SELECT e.rollout_id FROM trinity.preference p JOIN trinity.experience e ON e.id = p.rejected_id"
        " WHERE p.run_id = %s ORDER BY p.id",
        run.run.id,
    )
    correct(run, bad[0], 3.0, "reward")
    assert drawn(run.draw_pairs(step=1, size=2)).size == 2
    correct(run, bad[0], 0.0, "reward")
    correct(run, bad[1], 3.0, "reward")
    correct(run, bad[2], 3.0, "reward")
    run.draw_pairs(step=2, size=5)
    assert differences(run) == []


def test_rows_without_tokens_are_not_drawn(scene: Scene) -> None:
    import_records(scene.database, "set", [demonstration(0), demonstration(1)])
    run = Scene.open(scene.database, "offline", data=["set"])
    with run.database.transaction() as tx:
        first, second = offline.unencoded(tx, run.run.id, 0, 2)
        offline.write_tokens(tx, [(first.id, payload(()))])
    batch = drawn(run.draw_rows(step=1, size=2))
    run.encode()
    run.draw_rows(step=2, size=2)
    members = "SELECT experience_id FROM trinity.batch_item ORDER BY batch_id"
    assert (batch.size, run.values(members)) == (1, [first.id, second.id])
    assert differences(run) == []


def test_pairs_of_rows_without_tokens_are_not_drawn(scene: Scene) -> None:
    import_records(scene.database, "set", [preference(0), preference(1)])
    run = Scene.open(scene.database, "offline", data=["set"])
    with run.database.transaction() as tx:
        texts = offline.unencoded(tx, run.run.id, 0, 4)
        offline.write_tokens(tx, [(text.id, payload(())) for text in texts[:3]])
    batch = drawn(run.draw_pairs(step=1, size=2))
    run.encode()
    run.draw_pairs(step=2, size=2)
    assert batch.size == 1
    assert differences(run) == []


def test_a_row_that_was_dropped_before_was_not_in_the_draw(scene: Scene) -> None:
    import_records(scene.database, "set", [preference(number) for number in range(3)])
    run = Scene.open(scene.database, "offline", data=["set"])
    with run.database.transaction() as tx:
        first, *texts = offline.unencoded(tx, run.run.id, 0, 10)
        offline.write_tokens(tx, [(text.id, payload(())) for text in texts])
        offline.drop(tx, run.run.id, [(first.id, "prompt_too_long", "it has 9 tokens")])
    assert drawn(run.draw_pairs(step=1, size=3)).size == 2
    assert drawn(run.draw_rows(step=2, size=10)).size == 2
    assert differences(run) == []


@pytest.mark.parametrize("pairs", [False, True])
def test_a_row_that_was_dropped_between_two_draws_was_in_the_first_only(scene: Scene, pairs: bool) -> None:
    import_records(scene.database, "set", [preference(number) for number in range(6)])
    run = adopted(scene, "offline", "set")
    draw = run.draw_pairs if pairs else run.draw_rows
    run.commit(draw(step=1, size=6), max_uses=2)
    good = run.values("SELECT chosen_id FROM trinity.preference WHERE run_id = %s ORDER BY id", run.run.id)
    with run.database.transaction() as tx:
        offline.drop(tx, run.run.id, [(row, "unfit", "a person said so") for row in good[:3]])
    assert drawn(draw(step=2, size=6)).size == 3
    assert differences(run) == []


def test_pairs_that_were_made_later_were_not_there_and_their_rows_not_rejected(scene: Scene) -> None:
    records = [trajectory(number, f"worth {value}", value) for number in range(8) for value in (1.0, 0.2)]
    import_records(scene.database, "set", records)
    run = adopted(scene, "offline", "set")
    for step, pairs in enumerate([4, 8]):
        assert drawn(run.draw_rows(step=3 * step + 1, size=16)).size == 16 - 4 * step
        with run.database.transaction() as tx:
            assert processing.pair_groups(tx, run.run.id, margin=0.5, limit=4) == 4
        assert drawn(run.draw_pairs(step=3 * step + 2, size=8)).size == pairs
        run.reopen(version=0)
    assert differences(run) == []
