"""Batches: whole groups drawn for a step, committed with it, in a version's history or given back."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.rows import Scene, centered, payload, reward, rolled_back, rollout
from trinity_db.errors import LeaseLost, NotFound
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole
from trinity_db.store import batches, draws, policies, rewards, workers
from trinity_db.trainer.recipes.parts.advantages import group

STATES = "SELECT state, use_count, count(*) FROM trinity.experience GROUP BY 1, 2 ORDER BY 1, 2"
GROUP_STATES = "SELECT state FROM trinity.rollout_group ORDER BY id"
BATCH_STATES = "SELECT step, state, included_version FROM trinity.batch ORDER BY id"


def drawn_groups(scene: Scene, batch: batches.Batch | None) -> list[int]:
    """The group of each row of a batch, in order."""
    assert batch is not None
    return scene.values(
        "SELECT e.group_id FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id"
        " WHERE i.batch_id = %s ORDER BY i.ordinal",
        batch.id,
    )


def lineage(scene: Scene, version: int) -> list[int]:
    """The batches a version was trained on."""
    return scene.values(
        "SELECT DISTINCT batch_id FROM trinity.lineage(%s, %s) ORDER BY 1", version, scene.run.name
    )


def test_a_batch_is_drawn_when_there_are_enough_groups(scene: Scene) -> None:
    assert scene.draw(step=1, size=2) is None
    scene.make_ready(1)
    assert scene.draw(step=1, size=2) is None
    assert scene.values(GROUP_STATES) == ["ready"]
    scene.make_ready(1)
    batch = scene.draw(step=1, size=2)
    assert batch is not None
    assert (batch.step, batch.size, batch.epoch, batch.version) == (1, 2, 0, 0)


def test_a_batch_is_made_of_whole_groups_oldest_first(scene: Scene) -> None:
    first, second, third = scene.make_ready(3, rewards=(1.0, 0.5, 0.0))
    assert drawn_groups(scene, scene.draw(step=1, size=2)) == [first] * 3 + [second] * 3
    assert scene.values(GROUP_STATES) == ["leased", "leased", "ready"]
    assert scene.rows(STATES) == [("ready", 0, 3), ("leased", 0, 6)]
    assert scene.draw(step=2, size=2) is None
    assert drawn_groups(scene, scene.draw(step=2, size=1)) == [third] * 3


def test_a_group_is_drawn_with_the_members_that_are_left(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3)
    scene.write([rollout(group, 0, "1"), rollout(group, 1, error="no answer"), rollout(group, 2, "0")])
    scene.process()
    assert drawn_groups(scene, scene.draw(step=1, size=1)) == [group.id] * 2


def test_a_group_whose_members_are_not_all_judged_is_not_drawn(scene: Scene) -> None:
    scene.explore(1)
    assert scene.draw(step=1, size=1) is None
    scene.process()
    assert scene.draw(step=1, size=1) is not None


def aged(scene: Scene, num_groups: int) -> list[int]:
    """Ready groups that are two versions old."""
    _, _, *rest = scene.make_ready(2 + num_groups)
    for version in (1, 2):
        scene.train(step=version, size=1)
        scene.publish(version, step=version)
    return rest


def test_rows_as_stale_as_the_limit_allows_are_drawn(scene: Scene) -> None:
    [group] = aged(scene, 1)
    batch = scene.draw(step=3, size=1, max_staleness=2)
    assert drawn_groups(scene, batch) == [group] * 2
    assert scene.values("SELECT staleness FROM trinity.batch_item ORDER BY batch_id, ordinal") == [
        *(0, 0),
        *(1, 1),
        *(2, 2),
    ]


def test_rows_staler_than_the_limit_expire_with_the_reason_though_no_batch_is_drawn(scene: Scene) -> None:
    aged(scene, 2)
    assert scene.draw(step=3, size=1, max_staleness=1) is None
    assert scene.values(GROUP_STATES) == ["trained", "trained", "dropped", "dropped"]
    assert scene.rows(STATES) == [("trained", 1, 4), ("expired", 0, 4)]
    assert (
        scene.rows('SELECT stage, reason, detail FROM trinity."drop"')
        == [("draw", "stale", {"staleness": 2})] * 4
    )


def test_what_expires_leaves_the_rest_to_the_draw(scene: Scene) -> None:
    aged(scene, 1)
    [fresh] = scene.make_ready(1, version=2)
    assert drawn_groups(scene, scene.draw(step=3, size=1, max_staleness=0)) == [fresh] * 2


def test_without_a_limit_nothing_expires(scene: Scene) -> None:
    [group] = aged(scene, 1)
    assert drawn_groups(scene, scene.draw(step=3, size=1, max_staleness=None)) == [group] * 2


def test_the_advantages_that_are_recorded_are_those_computed_and_those_read(scene: Scene) -> None:
    scene.make_ready(1, rewards=(1.0, 0.0, 0.25))
    scene.make_ready(1, rewards=(2.0, -1.0))
    with scene.database.transaction() as tx:
        draw = batches.Draw(scene.run.id, scene.trainer, step=1, batch_size=2, seed=0)
        batch = draws.draw_groups(
            tx, draw, None, lambda columns: group(columns["rewards"], columns["groups"])
        )
    assert batch is not None
    read = batches.read(scene.database, batch.id)
    items = scene.rows("SELECT reward, advantage, experience_id FROM trinity.batch_item ORDER BY ordinal")
    rewards, advantages, ids = zip(*items, strict=True)
    assert rewards == (1.0, 0.0, 0.25, 2.0, -1.0)
    np.testing.assert_array_equal(advantages, group(rewards, [0, 0, 0, 1, 1]))
    assert [(row.experience_id, row.advantage) for row in read] == list(zip(ids, advantages, strict=True))


def test_a_batch_is_read_with_the_arrays_that_were_written(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3)
    versions = [[0, 0, 0], [0], [0, 0]]
    scene.write([rollout(group, member, str(member), versions[member]) for member in (2, 0, 1)])
    scene.process()
    batch = scene.draw(step=1, size=1)
    assert batch is not None
    read = batches.read(scene.database, batch.id)
    assert [row.payload.num_trained for row in read] == [2, 3, 1], "in the order of their ids"
    for row in read:
        wanted = payload([0] * row.payload.num_trained)
        for name in ("token_ids", "action_mask", "logprobs", "versions"):
            np.testing.assert_array_equal(getattr(row.payload, name), getattr(wanted, name))


def test_a_batch_says_how_it_was_drawn(scene: Scene) -> None:
    scene.make_ready(1)
    with scene.database.transaction() as tx:
        draw = batches.Draw(scene.run.id, scene.trainer, step=1, batch_size=1, seed=17)
        draws.draw_groups(tx, draw, 3, centered)
    assert scene.rows(
        "SELECT sampler, seed, query, size, policy_version, worker_id, state FROM trinity.batch"
    ) == [("fifo", 17, query("draw_groups"), 1, 0, scene.trainer, "leased")]


def test_a_draw_that_was_rolled_back_took_nothing(scene: Scene) -> None:
    scene.make_ready(1)
    with rolled_back(scene.database) as tx:
        draw = batches.Draw(scene.run.id, scene.trainer, step=1, batch_size=1, seed=0)
        assert draws.draw_groups(tx, draw, None, centered) is not None
    assert scene.rows(STATES) == [("ready", 0, 2)]
    assert scene.rows(BATCH_STATES) == []
    assert scene.draw(step=1, size=1) is not None


def test_a_draw_whose_outcome_was_unclear_is_given_back_before_the_step_is_drawn_again(scene: Scene) -> None:
    groups = scene.make_ready(2)
    scene.train(step=1, size=1)
    scene.draw(step=2, size=1)
    with scene.database.transaction() as tx:
        batches.reopen_leased(tx, batches.Draw(scene.run.id, scene.trainer, step=2, batch_size=1, seed=0))
    assert drawn_groups(scene, scene.draw(step=2, size=1)) == [groups[1]] * 2
    assert scene.rows(BATCH_STATES) == [(1, "committed", None), (2, "reopened", None), (2, "leased", None)]


def test_a_commit_counts_each_use_once_however_often_it_is_said(scene: Scene) -> None:
    scene.make_ready(1)
    batch = scene.draw(step=1, size=1)
    assert [scene.commit(batch), scene.commit(batch)] == [True, False]
    assert scene.rows(STATES) == [("trained", 1, 2)]
    assert scene.values(GROUP_STATES) == ["trained"]
    assert scene.values("SELECT worker_id FROM trinity.experience") == [None, None]
    assert scene.draw(step=2, size=1) is None


def test_a_commit_leaves_other_batches_alone(scene: Scene) -> None:
    scene.make_ready(2)
    first, second = scene.draw(step=1, size=1), scene.draw(step=2, size=1)
    scene.commit(second)
    assert scene.values(GROUP_STATES) == ["leased", "trained"]
    scene.commit(first)
    assert scene.rows(STATES) == [("trained", 1, 4)]


def test_only_the_worker_that_drew_a_batch_commits_it(scene: Scene) -> None:
    scene.make_ready(1)
    batch = scene.draw(step=1, size=1)
    with pytest.raises(LeaseLost, match=r"another one runs or ran"):
        scene.commit(batch, worker=scene.new_worker(WorkerRole.TRAIN))
    assert scene.rows(STATES) == [("leased", 0, 2)]


def test_a_batch_that_was_given_back_cannot_be_committed(scene: Scene) -> None:
    scene.make_ready(1)
    batch = scene.draw(step=1, size=1)
    scene.reopen(version=0)
    with pytest.raises(LeaseLost):
        scene.commit(batch)
    again = scene.draw(step=1, size=1)
    with pytest.raises(LeaseLost):
        scene.commit(batch)
    assert scene.rows(STATES) == [("leased", 0, 2)]
    assert scene.commit(again)
    assert scene.rows(STATES) == [("trained", 1, 2)]


def test_reopening_gives_back_what_the_checkpoint_does_not_include(scene: Scene) -> None:
    groups = scene.make_ready(3)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    scene.train(step=2, size=1)
    scene.draw(step=3, size=1)
    assert scene.rows(STATES) == [("leased", 0, 2), ("trained", 1, 4)]

    assert scene.reopen(version=1) == 2
    assert scene.rows(STATES) == [("ready", 0, 4), ("trained", 1, 2)]
    assert scene.values(GROUP_STATES) == ["trained", "ready", "ready"]
    assert scene.rows(BATCH_STATES) == [(1, "committed", 1), (2, "reopened", None), (3, "reopened", None)]
    assert scene.values("SELECT worker_id FROM trinity.experience WHERE state = 'ready'") == [None] * 4
    assert scene.reopen(version=1) == 0, "once"

    redrawn = [scene.train(step=step, size=1) for step in (2, 3)]
    assert [drawn_groups(scene, batch)[0] for batch in redrawn] == groups[1:]
    assert scene.rows(STATES) == [("trained", 1, 6)]


def test_a_trainer_that_was_replaced_reopens_nothing(scene: Scene) -> None:
    scene.make_ready(2)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    scene.draw(step=2, size=1)
    replaced = scene.new_worker(WorkerRole.TRAIN)
    scene.lose(replaced)
    with pytest.raises(LeaseLost, match="another has its place"):
        scene.reopen(version=0, worker=replaced)
    assert scene.rows(BATCH_STATES) == [(1, "committed", 1), (2, "leased", None)]
    with scene.database.transaction() as tx:
        assert [policy.version for policy in policies.with_checkpoint(tx, scene.run.id)] == [1, 0]


def test_rolling_back_to_an_earlier_version_takes_back_the_later_ones_batches(scene: Scene) -> None:
    scene.make_ready(3)
    for step in (1, 2, 3):
        scene.train(step, size=1)
        scene.publish(step, step)
    assert scene.reopen(version=1) == 2
    assert scene.rows(BATCH_STATES) == [(1, "committed", 1), (2, "reopened", None), (3, "reopened", None)]
    assert scene.rows(STATES) == [("ready", 0, 4), ("trained", 1, 2)]
    assert [lineage(scene, version) for version in (1, 3)] == [lineage(scene, 1)] * 2


def test_a_row_that_may_be_used_again_is_ready_after_its_commit(scene: Scene) -> None:
    scene.make_ready(1)
    scene.commit(scene.draw(step=1, size=1), max_uses=2)
    assert scene.rows(STATES) == [("ready", 1, 2)]


def test_a_version_includes_exactly_the_batches_committed_since_the_one_before(scene: Scene) -> None:
    scene.make_ready(5)
    first = scene.train(step=1, size=1)
    second = scene.train(step=2, size=1)
    scene.publish(1, step=2)
    third = scene.train(step=3, size=1)
    scene.draw(step=4, size=1)
    scene.publish(2, step=3)
    assert scene.rows(BATCH_STATES) == [
        (1, "committed", 1),
        (2, "committed", 1),
        (3, "committed", 2),
        (4, "leased", None),
    ]
    assert lineage(scene, 0) == []
    assert lineage(scene, 1) == [first.id, second.id]
    assert lineage(scene, 2) == [first.id, second.id, third.id]


def test_the_lineage_of_a_version_names_its_rows_with_the_numbers_used(scene: Scene) -> None:
    [group] = scene.make_ready(1, rewards=(1.0, 0.0))
    batch = scene.train(step=1, size=1)
    scene.publish(1, step=1)
    ids = scene.values("SELECT id FROM trinity.experience WHERE group_id = %s ORDER BY id", group)
    assert scene.rows("SELECT * FROM trinity.lineage(1)") == [
        (batch.id, 1, 0, ids[0], 0, 1, 1.0, 0.5, 0, 1.0, None, None, None, None),
        (batch.id, 1, 1, ids[1], 0, 1, 0.0, -0.5, 0, 1.0, None, None, None, None),
    ]


def test_lineage_is_that_of_the_latest_run_unless_one_is_named(scene: Scene) -> None:
    scene.make_ready(1)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    Scene.open(scene.database, "later")
    assert scene.value("SELECT count(*) FROM trinity.lineage(1)") == 0
    assert scene.value("SELECT count(*) FROM trinity.lineage(1, 'run')") == 2
    assert scene.value("SELECT count(*) FROM trinity.lineage(1, 'no such run')") == 0


def test_saying_again_that_a_version_is_published_includes_no_later_batch(scene: Scene) -> None:
    scene.make_ready(2)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    scene.train(step=2, size=1)
    scene.publish(1, step=1)
    assert scene.rows(BATCH_STATES) == [(1, "committed", 1), (2, "committed", None)]


def test_a_trainer_that_was_replaced_publishes_nothing(scene: Scene) -> None:
    scene.make_ready(1)
    scene.train(step=1, size=1)
    replacement = scene.new_worker(WorkerRole.TRAIN)
    scene.reopen(version=0)
    with pytest.raises(LeaseLost):
        scene.publish(1, step=1)
    scene.commit(scene.draw(step=1, size=1, worker=replacement), worker=replacement)
    with pytest.raises(LeaseLost):
        scene.publish(1, step=1)
    assert scene.values("SELECT version FROM trinity.policy_version") == [0]
    assert scene.rows(BATCH_STATES) == [(1, "reopened", None), (1, "committed", None)]
    scene.publish(1, step=1, worker=replacement)
    assert scene.rows(BATCH_STATES)[-1] == (1, "committed", 1)


def test_a_version_that_another_trainer_published_cannot_be_published_again(scene: Scene) -> None:
    scene.make_ready(1)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    mine = policies.PolicyVersion(1, 1, Path("elsewhere"), "another hash")
    with pytest.raises(LeaseLost), scene.database.transaction() as tx:
        policies.publish(tx, scene.run.id, mine, scene.trainer)


def test_a_version_said_again_after_its_steps_were_reopened_includes_nothing_new(scene: Scene) -> None:
    scene.make_ready(1)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    scene.reopen(version=0)
    scene.train(step=1, size=1)
    scene.publish(1, step=1, with_checkpoint=False)
    assert scene.values("SELECT included_version FROM trinity.batch WHERE state = 'committed'") == [None]


def test_a_trainer_that_was_replaced_draws_nothing(scene: Scene) -> None:
    scene.make_ready(2)
    scene.train(step=1, size=1)
    successor = scene.new_worker(WorkerRole.TRAIN)
    with scene.database.transaction() as tx:
        workers.replace_others(tx, successor)
    with pytest.raises(LeaseLost):
        scene.draw(step=2, size=1)
    assert scene.draw(step=2, size=1, worker=successor) is not None


def test_pruning_keeps_the_newest_checkpoints_and_the_first(scene: Scene) -> None:
    scene.make_ready(4)
    for step in (1, 2, 3, 4):
        scene.train(step, size=1)
        scene.publish(step, step)
    with scene.database.transaction() as tx:
        pruned = policies.prune(tx, scene.run.id, keep=2).deleted
        assert sorted(pruned) == [
            (version, Path(f"{kind}-{version}")) for version in (1, 2) for kind in ("checkpoint", "version")
        ]
        assert policies.prune(tx, scene.run.id, keep=2).deleted == []
        assert [policy.version for policy in policies.with_checkpoint(tx, scene.run.id)] == [4, 3, 0]


def test_pruning_keeps_the_weights_of_checkpoints_and_of_the_one_that_is_being_written(scene: Scene) -> None:
    scene.make_ready(6)
    for step in range(1, 7):
        scene.train(step, size=1)
        with scene.database.transaction() as tx:
            policy = policies.PolicyVersion(step, step, Path(f"version-{step}"), f"hash {step}")
            policies.publish(tx, scene.run.id, policy, scene.trainer)
            if step in (1, 2):
                saved = policies.Checkpoint(Path(f"checkpoint-{step}"), "hash")
                policies.record_checkpoint(tx, scene.run.id, step, saved)
    with scene.database.transaction() as tx:
        assert policies.prune(tx, scene.run.id, keep=2, saving=4).deleted == [(3, Path("version-3"))]
        policies.record_checkpoint(tx, scene.run.id, 4, policies.Checkpoint(Path("checkpoint-4"), "hash"))
        assert sorted(policies.prune(tx, scene.run.id, keep=2).deleted) == [
            (1, Path("checkpoint-1")),
            (1, Path("version-1")),
        ]
        assert [policy.version for policy in policies.with_checkpoint(tx, scene.run.id)] == [6, 5, 4, 2, 0]
        with pytest.raises(LeaseLost, match="Version 1 has no checkpoint"):
            policies.record_checkpoint(tx, scene.run.id, 1, policies.Checkpoint(Path("late"), "hash"))


def test_a_checkpoint_that_another_run_started_from_is_not_pruned(scene: Scene) -> None:
    scene.make_ready(3)
    other = Scene.open(scene.database, "other")
    for step in (1, 2, 3):
        scene.train(step, size=1)
        scene.publish(step, step)
    with scene.database.transaction() as tx:
        tx.execute(
            "UPDATE trinity.policy_version SET checkpoint = 'version-1' WHERE run_id = %s", [other.run.id]
        )
        assert policies.prune(tx, scene.run.id, keep=2).deleted == [(1, Path("checkpoint-1"))]
        assert policies.prune(tx, scene.run.id, keep=2).deleted == []
        tx.execute("DELETE FROM trinity.run WHERE id = %s", [other.run.id])
        assert policies.prune(tx, scene.run.id, keep=2).deleted == [(1, Path("version-1"))]


def test_a_withdrawn_version_is_not_loaded_and_its_number_is_not_given_again(scene: Scene) -> None:
    scene.make_ready(1)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    scene.reopen(version=0)
    with scene.database.transaction() as tx:
        newest = policies.newest(tx, scene.run.id)
        assert newest is not None
        assert newest.version == 0
        assert policies.latest_version(tx, scene.run.id) == 1


def test_a_reward_that_changes_while_the_row_is_in_a_batch_is_used_when_it_comes_back(scene: Scene) -> None:
    scene.make_ready(1, rewards=(1.0, 0.0))
    scene.draw(step=1, size=1)
    first = scene.value("SELECT min(id) FROM trinity.rollout")
    with scene.database.transaction() as tx:
        rewards.record(tx, scene.run.id, "person", [reward(first, 3.0)])
    scene.reopen(version=0)
    again = scene.draw(step=1, size=1)
    assert again is not None
    used = "SELECT reward FROM trinity.batch_item WHERE batch_id = %s ORDER BY ordinal"
    assert scene.values(used, again.id) == [3.0, 0.0]


def test_runs_draw_their_own_groups_only(scene: Scene) -> None:
    scene.make_ready(2)
    other = Scene.open(scene.database, "other")
    assert other.draw(step=1, size=1) is None
    [group] = other.make_ready(1)
    assert set(drawn_groups(other, other.draw(step=1, size=1))) == {group}
    assert other.reopen(version=0) == 1
    assert scene.reopen(version=0) == 0


def test_a_batch_whose_arrays_are_gone_cannot_be_read(scene: Scene) -> None:
    scene.make_ready(1)
    batch = scene.draw(step=1, size=1)
    assert batch is not None
    gone = scene.value("SELECT max(experience_id) FROM trinity.batch_item")
    with scene.database.transaction() as tx:
        tx.execute("DELETE FROM trinity.payload WHERE experience_id = %s", [gone])
    missing = rf"The arrays of batch {batch.id} are gone: experience {gone} "
    with pytest.raises(NotFound, match=missing):
        batches.read(scene.database, batch.id)
