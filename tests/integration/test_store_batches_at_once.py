"""Batches when others act at the same moment: late trainers, and locks without a deadlock."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.rows import WAIT_SECONDS, Scene, centered, in_a_thread, reward, wait_until_blocked
from trinity_db.errors import LeaseLost
from trinity_db.postgres.connection import connect
from trinity_db.schema.states import WorkerRole
from trinity_db.store import batches, draws, policies, processing, rewards, runs

STATES = "SELECT state, use_count, count(*) FROM trinity.experience GROUP BY 1, 2 ORDER BY 1, 2"
GROUP_STATES = "SELECT state FROM trinity.rollout_group ORDER BY id"
BATCH_STATES = "SELECT step, state, included_version FROM trinity.batch ORDER BY id"
GROUP_OF_ROWS = (
    "SELECT DISTINCT e.group_id FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id"
)


def test_a_group_that_another_session_holds_is_waited_for_and_not_put_off(scene: Scene) -> None:
    first, _ = scene.make_ready(2)
    with scene.database.transaction() as tx:
        tx.execute("SELECT FROM trinity.rollout_group WHERE id = %s FOR UPDATE", [first])
        drawing = in_a_thread(scene.database, lambda: scene.draw(step=1, size=1))
        wait_until_blocked(scene.database, drawing)
    assert drawing.result(WAIT_SECONDS) is not None
    assert scene.values(GROUP_OF_ROWS) == [first]


def test_two_trainers_that_draw_one_step_do_not_share_its_rows(scene: Scene) -> None:
    groups = scene.make_ready(2)
    other = scene.new_worker(WorkerRole.TRAIN)
    with closing(connect(scene.database.url)) as tx:
        draws.draw_groups(tx, batches.Draw(scene.run.id, other, 1, 1, 0), None, centered)
        drawing = in_a_thread(scene.database, lambda: scene.draw(step=1, size=1))
        wait_until_blocked(scene.database, drawing)
        tx.commit()
    with pytest.raises(LeaseLost, match=r"Step 1 has a batch already: another trainer took the run over\."):
        drawing.result(WAIT_SECONDS)
    assert scene.rows("SELECT id, worker_id FROM trinity.rollout_group ORDER BY id") == [
        (groups[0], other),
        (groups[1], None),
    ]


def test_rows_that_another_trainer_takes_are_not_drawn_in_part(scene: Scene) -> None:
    scene.make_ready(3)
    other = scene.new_worker(WorkerRole.TRAIN)
    with closing(connect(scene.database.url)) as tx:
        draws.draw_groups(tx, batches.Draw(scene.run.id, other, 1, 1, 0), None, centered)
        drawing = in_a_thread(scene.database, lambda: scene.draw(step=2, size=2))
        wait_until_blocked(scene.database, drawing)
        tx.commit()
    with pytest.raises(LeaseLost, match="1 of 2 are no longer ready"):
        drawing.result(WAIT_SECONDS)
    assert scene.values(GROUP_STATES) == ["leased", "ready", "ready"]
    assert scene.rows(BATCH_STATES) == [(1, "leased", None)]


def test_a_batch_that_another_trainer_drew_is_not_given_back(scene: Scene) -> None:
    scene.make_ready(1)
    scene.draw(step=1, size=1)
    with scene.database.transaction() as tx:
        zombie = scene.new_worker(WorkerRole.TRAIN)
        batches.reopen_leased(tx, batches.Draw(scene.run.id, zombie, step=1, batch_size=1, seed=0))
    assert scene.rows(BATCH_STATES) == [(1, "leased", None)]


def test_a_commit_and_a_reward_do_not_wait_in_a_circle(scene: Scene) -> None:
    [group] = scene.make_ready(1)
    batch = scene.draw(step=1, size=1)
    first = scene.value("SELECT min(id) FROM trinity.rollout")
    with closing(connect(scene.database.url)) as tx:
        tx.execute("SELECT FROM trinity.rollout_group WHERE id = %s FOR NO KEY UPDATE", [group])
        committing = in_a_thread(scene.database, lambda: scene.commit(batch))
        wait_until_blocked(scene.database, committing)
        rewards.record(tx, scene.run.id, "person", [reward(first, 3.0)])
        tx.commit()
    assert committing.result(WAIT_SECONDS)
    assert scene.rows(STATES) == [("trained", 1, 2)]


def test_reopening_and_a_reward_do_not_wait_in_a_circle(scene: Scene) -> None:
    [group] = scene.make_ready(1)
    scene.train(step=1, size=1)
    first = scene.value("SELECT min(id) FROM trinity.rollout")
    with closing(connect(scene.database.url)) as tx:
        tx.execute("SELECT FROM trinity.rollout_group WHERE id = %s FOR NO KEY UPDATE", [group])
        reopening = in_a_thread(scene.database, lambda: scene.reopen(version=0))
        wait_until_blocked(scene.database, reopening)
        rewards.record(tx, scene.run.id, "person", [reward(first, 3.0)])
        tx.commit()
    assert reopening.result(WAIT_SECONDS) == 1
    assert scene.rows(STATES) == [("ready", 0, 2)]


def test_a_version_whose_last_step_is_being_reopened_is_not_published(scene: Scene) -> None:
    scene.make_ready(1)
    scene.train(step=1, size=1)
    with closing(connect(scene.database.url)) as tx:
        batches.reopen(tx, scene.run.id, scene.trainer, 0)
        publishing = in_a_thread(scene.database, lambda: scene.publish(1, step=1))
        wait_until_blocked(scene.database, publishing)
        tx.commit()
    with pytest.raises(LeaseLost):
        publishing.result(WAIT_SECONDS)
    assert scene.values("SELECT version FROM trinity.policy_version") == [0]


def test_a_version_that_was_published_before_its_batches_were_reopened_is_withdrawn(scene: Scene) -> None:
    scene.make_ready(1)
    scene.train(step=1, size=1)
    with closing(connect(scene.database.url)) as tx:
        policy = policies.PolicyVersion(1, 1, Path("version-1"), "hash 1")
        policies.publish(tx, scene.run.id, policy, scene.trainer)
        reopening = in_a_thread(scene.database, lambda: scene.reopen(version=0))
        wait_until_blocked(scene.database, reopening)
        tx.commit()
    assert reopening.result(WAIT_SECONDS) == 1
    assert scene.rows(BATCH_STATES) == [(1, "reopened", None)]
    with scene.database.transaction() as tx:
        assert [policy.version for policy in policies.with_checkpoint(tx, scene.run.id)] == [0]


def test_a_group_that_becomes_ready_too_late_is_not_drawn_though_it_was_not_there_to_expire(
    scene: Scene,
) -> None:
    _, stale = scene.make_ready(2)
    late = scene.explore(1)
    scene.judge(processing.CLEAN)
    scene.judge(processing.SCORE)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    with closing(connect(scene.database.url)) as tx:
        tx.execute("SELECT FROM trinity.rollout_group WHERE id = %s FOR UPDATE", [stale])
        drawing = in_a_thread(scene.database, lambda: scene.draw(step=2, size=1, max_staleness=0))
        wait_until_blocked(scene.database, drawing)
        assert scene.settle() == len(late)
        tx.rollback()
        assert drawing.result(WAIT_SECONDS) is None
    assert scene.values(GROUP_STATES) == ["trained", "dropped", "ready"]


def test_a_checkpoint_that_a_run_is_starting_from_is_not_pruned(scene: Scene) -> None:
    scene.make_ready(1)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    with scene.database.transaction() as tx:
        other = runs.open_run(tx, "other", {}, "groups")

    def prune() -> list[tuple[int, Path]]:
        with scene.database.transaction() as tx:
            return policies.prune(tx, scene.run.id, keep=0).deleted

    with closing(connect(scene.database.url)) as tx:
        assert policies.hold_checkpoint(tx, scene.run.id, Path("version-1"))
        pruning = in_a_thread(scene.database, prune)
        wait_until_blocked(scene.database, pruning)
        policies.publish(tx, other.id, policies.PolicyVersion(0, 0, Path("version-1"), "hash 1"))
        tx.commit()
    assert pruning.result(WAIT_SECONDS) == [(1, Path("checkpoint-1"))], "its weights stay"
