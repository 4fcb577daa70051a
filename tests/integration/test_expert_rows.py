"""Expert rows: adopted ones beside live groups in a batch, drawn, committed and given back with it."""

from collections.abc import Mapping
from contextlib import closing
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.replays import adopted, correct, difference, differences, drawn
from tests.support.rows import (
    WAIT_SECONDS,
    Scene,
    centered,
    demonstration,
    import_records,
    in_a_thread,
    reward,
    trajectory,
    wait_until_blocked,
)
from trinity_db.errors import LeaseLost, TrinityError
from trinity_db.postgres.connection import connect
from trinity_db.store import batches, draws, payloads, rewards
from trinity_db.store.samplers import Sampler

ITEMS = """
SELECT i.experience_id, e.source_id IS NOT NULL, i.reward, i.advantage, i.staleness
FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id
WHERE i.batch_id = %s ORDER BY i.ordinal
"""
EXPERTS = """
SELECT e.state, e.use_count, count(*) FROM trinity.experience e
WHERE e.run_id = %s AND e.source_id IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
"""
GROUPS = "SELECT state::text FROM trinity.rollout_group ORDER BY id"
BATCHES = "SELECT step, state::text FROM trinity.batch ORDER BY id"
# Rows and groups of a run whose state or uses are not what its batches say.
WRONG = """
SELECT e.id, e.state::text, e.use_count, u.uses, u.is_leased
FROM trinity.experience e
LEFT JOIN (SELECT i.experience_id, count(*) FILTER (WHERE b.state = 'committed') AS uses,
                  bool_or(b.state = 'leased') AS is_leased
           FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id GROUP BY 1) u
  ON u.experience_id = e.id
WHERE e.run_id = %s
  AND (e.use_count <> coalesce(u.uses, 0) OR (e.state = 'leased') <> coalesce(u.is_leased, false)
       OR (e.state = 'trained') <> (e.source_id IS NULL AND coalesce(u.uses, 0) >= %s))
UNION ALL
SELECT g.id, g.state::text, g.use_count, max(e.use_count), bool_or(e.state = 'leased')
FROM trinity.rollout_group g JOIN trinity.experience e ON e.group_id = g.id AND e.run_id = g.run_id
WHERE g.run_id = %s
GROUP BY g.id HAVING g.use_count <> max(e.use_count) OR (g.state = 'leased') <> bool_or(e.state = 'leased')
"""


@pytest.fixture
def mixed(scene: Scene) -> Scene:
    """A run over tasks, and over five demonstrations."""
    import_records(scene.database, "set", [demonstration(number) for number in range(5)])
    return adopted(scene, "mixed", "set")


def experts(scene: Scene, batch_id: int) -> list[int]:
    """The expert rows of a batch, in order."""
    return [row[0] for row in scene.rows(ITEMS, batch_id) if row[1]]


def train(scene: Scene, step: int, size: int = 1, beside: int = 2) -> list[int]:
    """A step over new groups; its expert rows."""
    scene.make_ready(size)
    batch = drawn(scene.draw(step, size, experts=beside))
    scene.commit(batch)
    return experts(scene, batch.id)


def test_a_batch_has_whole_groups_and_after_them_the_expert_rows(mixed: Scene) -> None:
    mixed.make_ready(2)
    batch = drawn(mixed.draw(step=1, size=2, experts=3))
    assert (batch.size, batch.epoch, batch.experts) == (2, 0, 3)
    rows = mixed.rows(ITEMS, batch.id)
    assert [row[1:] for row in rows[:4]] == [(False, 1.0, 0.5, 0), (False, 0.0, -0.5, 0)] * 2
    assert [row[1:] for row in rows[4:]] == [(True, None, None, None)] * 3
    assert len({row[0] for row in rows}) == 7
    assert mixed.rows(EXPERTS, mixed.run.id) == [("ready", 0, 2), ("leased", 0, 3)]
    assert mixed.values(GROUPS) == ["leased", "leased"]


def test_expert_rows_stay_where_they_are_until_there_are_enough_groups(mixed: Scene) -> None:
    mixed.make_ready(1)
    assert mixed.draw(step=1, size=2, experts=3) is None
    assert mixed.rows(EXPERTS, mixed.run.id) == [("ready", 0, 5)]
    assert mixed.values(GROUPS) == ["ready"]


def test_groups_alone_are_drawn_as_ever(mixed: Scene) -> None:
    mixed.make_ready(1)
    batch = drawn(mixed.draw(step=1, size=1))
    mixed.commit(batch)
    assert experts(mixed, batch.id) == []
    assert mixed.value("SELECT parameters FROM trinity.batch") == {"max_uses": 1}
    assert mixed.rows(EXPERTS, mixed.run.id) == [("ready", 0, 5)]


def test_groups_and_expert_rows_are_leased_together_or_not_at_all(mixed: Scene) -> None:
    mixed.make_ready(1)
    taken = mixed.value(
        "SELECT id FROM trinity.experience WHERE run_id = %s ORDER BY use_count, place LIMIT 1", mixed.run.id
    )
    with closing(connect(mixed.database.url)) as other:
        other.execute("UPDATE trinity.experience SET state = 'dropped' WHERE id = %s", [taken])
        drawing = in_a_thread(mixed.database, lambda: mixed.draw(step=1, size=1, experts=2))
        wait_until_blocked(mixed.database, drawing)
        other.commit()
    with pytest.raises(LeaseLost, match="1 of 2 are no longer ready"):
        drawing.result(WAIT_SECONDS)
    assert mixed.rows(BATCHES) == []
    assert mixed.values(GROUPS) == ["ready"]
    assert mixed.rows(EXPERTS, mixed.run.id) == [("ready", 0, 4), ("dropped", 0, 1)]


def test_steps_share_the_expert_rows_in_passes_without_end(mixed: Scene) -> None:
    steps = [train(mixed, step) for step in range(1, 11)]
    assert all(len(set(rows)) == 2 for rows in steps)
    order = [row for rows in steps for row in rows]
    passes = [order[start : start + 5] for start in range(0, 20, 5)]
    assert all(set(one) == set(order[:5]) and len(one) == 5 for one in passes)
    assert len({tuple(one) for one in passes}) > 1, "shuffled anew in each pass"
    assert mixed.rows(EXPERTS, mixed.run.id) == [("ready", 4, 5)], "they are never used up"
    assert set(mixed.values(GROUPS)) == {"trained"}
    assert differences(mixed) == []


def test_groups_with_uses_left_and_expert_rows_count_their_uses_apart(mixed: Scene) -> None:
    mixed.make_ready(1)
    for step in (1, 2):
        mixed.commit(drawn(mixed.draw(step, 1, max_uses=2, experts=5)), max_uses=2)
    assert mixed.values(GROUPS) == ["trained"]
    assert mixed.rows(EXPERTS, mixed.run.id) == [("ready", 2, 5)]
    assert differences(mixed) == []


def test_what_no_checkpoint_includes_is_given_back_and_drawn_again(mixed: Scene) -> None:
    first = [train(mixed, step) for step in (1, 2, 3)]
    mixed.publish(1, step=2)
    mixed.make_ready(1)
    fourth = drawn(mixed.draw(step=4, size=1, experts=2))
    last = experts(mixed, fourth.id)
    assert mixed.reopen(version=1) == 2
    assert mixed.values(GROUPS) == ["trained", "trained", "ready", "ready"]
    # Those of the steps that the checkpoint has seen: each row at most once, since a pass has five.
    assert mixed.rows(EXPERTS, mixed.run.id) == [("ready", 0, 1), ("ready", 1, 4)]
    for step, rows in ((3, first[2]), (4, last)):
        batch = drawn(mixed.draw(step, 1, experts=2))
        assert experts(mixed, batch.id) == rows
        mixed.commit(batch)
    mixed.publish(2, step=4)
    lineage = (
        "SELECT l.experience_id FROM trinity.lineage(2, %s) l"
        " JOIN trinity.experience e ON e.id = l.experience_id"
        " WHERE e.source_id IS NOT NULL ORDER BY l.step, l.ordinal"
    )
    assert mixed.values(lineage, mixed.run.name) == [*first[0], *first[1], *first[2], *last]
    assert differences(mixed) == []


def test_a_draw_that_is_made_again_gives_back_what_it_had(mixed: Scene) -> None:
    mixed.make_ready(1)
    first = drawn(mixed.draw(step=1, size=1, experts=2))
    again = drawn(mixed.draw(step=1, size=1, experts=2))
    assert mixed.rows(BATCHES) == [(1, "reopened"), (1, "leased")]
    assert experts(mixed, first.id) == experts(mixed, again.id)
    assert mixed.rows(EXPERTS, mixed.run.id) == [("ready", 0, 3), ("leased", 0, 2)]


@pytest.mark.parametrize(
    "sampler",
    [Sampler("newest"), Sampler("uniform"), Sampler("prioritized", alpha=0.5)],
    ids=lambda sampler: sampler.name,
)
def test_every_sampler_takes_them_and_its_draw_can_be_run_again(mixed: Scene, sampler: Sampler) -> None:
    mixed.make_ready(6)
    for step in (1, 2, 3):
        mixed.commit(drawn(mixed.draw(step, 2, sampler=sampler, experts=2)))
    assert mixed.rows(EXPERTS, mixed.run.id) == [("ready", 1, 4), ("ready", 2, 1)]
    assert differences(mixed) == []


def test_data_sets_have_their_shares_and_each_its_own_passes(scene: Scene) -> None:
    import_records(scene.database, "large", [demonstration(number) for number in range(9)])
    import_records(scene.database, "small", [demonstration(number) for number in range(10, 12)])
    run = adopted(scene, "mixed", "large", "small")
    sets = "SELECT r.name FROM trinity.experience e JOIN trinity.experience o ON o.id = e.source_id"
    sets += " JOIN trinity.run r ON r.id = o.run_id WHERE e.id = %s"
    seen: list[list[str]] = []
    for step in range(1, 5):
        run.make_ready(1)
        draw = batches.Draw(run.run.id, run.trainer, step, 1, run.run.seed, 1, 4, {"large": 3, "small": 1})
        with run.database.transaction() as tx:
            batch = drawn(draws.draw_groups(tx, draw, None, centered))
        run.commit(batch)
        seen.append([run.value(sets, of) for of in experts(run, batch.id)])
    assert seen == [["large"] * 3 + ["small"]] * 4
    # Twelve uses of nine rows, and four of two.
    assert run.rows(EXPERTS, run.run.id) == [("ready", 1, 6), ("ready", 2, 5)]
    run.make_ready(1)
    draw = batches.Draw(run.run.id, run.trainer, 5, 1, run.run.seed, 1, 8, {"large": 1, "small": 3})
    with run.database.transaction() as tx:
        batch = drawn(draws.draw_groups(tx, draw, None, centered))
    assert [run.value(sets, of) for of in experts(run, batch.id)] == ["large"] * 6 + ["small"] * 2
    assert differences(run) == []
    with run.database.transaction() as tx:
        tx.execute(
            "UPDATE trinity.batch SET parameters = jsonb_set(parameters, '{expert_shares,small}', '0.1')"
        )
    assert differences(run) != []


def test_draws_are_run_again_over_corrected_rewards_and_rows_that_came_later(scene: Scene) -> None:
    attempts = [trajectory(number, f"attempt at {number}", 1.0) for number in range(6)]
    import_records(scene.database, "set", attempts[:4])
    run = adopted(scene, "mixed", "set")
    bad, *_ = run.values(
        "SELECT rollout_id FROM trinity.experience WHERE run_id = %s ORDER BY id", run.run.id
    )
    train(run, 1, beside=4)
    correct(run, bad, -1.0, "reward")
    train(run, 2, beside=3)
    correct(run, bad, 2.0, "reward")
    import_records(scene.database, "set", attempts[4:])
    run.adopt_again("set")
    run.encode()
    # Those that came last, and the one that was left out, have been used least.
    newest = run.values(
        "SELECT id FROM trinity.experience WHERE run_id = %s AND source_id IS NOT NULL AND use_count < 2",
        run.run.id,
    )
    assert len(newest) == 3
    assert set(train(run, 3, beside=3)) == set(newest)
    assert differences(run) == []


def test_expert_rows_have_a_snapshot_of_their_own(scene: Scene) -> None:
    attempts = [trajectory(number, f"attempt at {number}", 1.0) for number in range(3)]
    import_records(scene.database, "set", attempts)
    run = adopted(scene, "mixed", "set")
    run.make_ready(1)
    order = (
        "SELECT id, rollout_id FROM trinity.experience WHERE run_id = %s AND place IS NOT NULL ORDER BY place"
    )
    (first, rollout_id), (second, _), _ = run.rows(order, run.run.id)

    def advantage(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Between the two draws a person finds that an attempt is bad."""
        with closing(connect(run.database.url)) as other:
            rewards.record(other, run.run.id, "person", [reward(rollout_id, -1.0, "reward")])
            other.commit()
        return np.zeros(len(columns["rewards"]))

    draw = batches.Draw(run.run.id, run.trainer, step=1, batch_size=1, seed=0, experts=1)
    with run.database.transaction() as tx:
        batch = drawn(draws.draw_groups(tx, draw, None, advantage))
    assert first != second
    assert experts(run, batch.id) == [second]
    assert differences(run) == []


@pytest.mark.parametrize("seed", range(3))
def test_every_use_is_counted_once_and_every_draw_can_be_run_again_whatever_happens(
    scene: Scene, seed: int
) -> None:
    chance, max_uses = Random(seed), 1 + seed % 2
    attempts = [trajectory(number, f"attempt at {number}", 1.0) for number in range(40)]
    import_records(scene.database, "set", attempts[:9])
    run = adopted(scene, "mixed", "set")
    judged = run.values(
        "SELECT rollout_id FROM trinity.experience WHERE run_id = %s ORDER BY id LIMIT 4", run.run.id
    )
    step = published = version = 0
    batch, imported = None, 9
    for _ in range(80):
        match chance.choice([*["draw", "commit"] * 4, "publish", "publish", "resume", "judge", "import"]):
            case "draw" if batch is None:
                run.make_ready(1)
                batch = run.draw(step + 1, 1, experts=chance.randint(1, 5), max_uses=max_uses)
            case "commit" if batch is not None:
                run.commit(batch, max_uses=max_uses)
                batch, step = None, step + 1
            case "publish" if step > published:
                published, version = step, version + 1
                run.publish(version, step)
            case "resume":
                run.reopen(version)
                batch, step = None, published
            case "judge":
                correct(run, chance.choice(judged), chance.choice([-1.0, 0.5]), "reward")
            case "import" if imported < len(attempts):
                import_records(scene.database, "set", attempts[imported : imported + 2])
                imported += 2
                run.adopt_again("set")
                run.encode()
        assert run.rows(WRONG, run.run.id, max_uses, run.run.id) == []
    assert run.value("SELECT count(DISTINCT state) FROM trinity.batch") > 1, "nothing was given back"
    assert version > 2, "nothing was published"
    assert differences(run) == []


def test_a_record_of_expert_rows_that_was_tampered_with_is_found(mixed: Scene) -> None:
    mixed.make_ready(1)
    batch = drawn(mixed.draw(step=1, size=1, experts=2))
    assert difference(mixed, batch.id) is None
    with mixed.database.transaction() as tx:
        tx.execute("UPDATE trinity.batch_item SET ordinal = 7 - ordinal WHERE ordinal > 1")
    assert "row 2: the batch has experience" in str(difference(mixed, batch.id))
    with mixed.database.transaction() as tx:
        tx.execute("DELETE FROM trinity.batch_item WHERE ordinal > 1")
    assert "row 2: the batch has none, the draw gives experience" in str(difference(mixed, batch.id))


def test_the_archiver_does_not_wait_for_expert_rows(mixed: Scene) -> None:
    for step in (1, 2):
        train(mixed, step)
    with mixed.database.transaction() as tx:
        first = payloads.archive_floor(tx, mixed.run.id, 0)
        tx.execute("UPDATE trinity.run SET config = jsonb_set(config, '{algorithm,expert_rows}', '2')")
        live = payloads.archive_floor(tx, mixed.run.id, 0)
    lowest = "SELECT min(id) FROM trinity.experience WHERE run_id = %s AND (source_id IS NULL) = %s"
    assert [first, live] == [mixed.value(lowest, mixed.run.id, is_live) for is_live in (False, True)]


def test_a_run_with_fewer_demonstrations_than_a_step_takes_says_so(mixed: Scene) -> None:
    mixed.make_ready(1)
    with pytest.raises(TrinityError, match="takes 6 rows to imitate in each step, and the run has 5: import"):
        mixed.draw(step=1, size=1, experts=6)
    assert mixed.values(GROUPS) == ["ready"]
    assert mixed.rows(BATCHES) == []
