"""Rollout groups: how many explorers may start, who holds them, what is written of them, once."""

from functools import partial

import numpy as np
import pytest

from tests.rows import (
    UNLIMITED,
    WAIT_SECONDS,
    Scene,
    at_once,
    in_a_thread,
    members,
    payload,
    rolled_back,
    rollout,
    wait_until_blocked,
)
from trinity_db import arrays
from trinity_db.database import Transaction
from trinity_db.schema.states import WorkerRole
from trinity_db.store import groups
from trinity_db.store.groups import Pace


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_explorers_start_what_can_arrive_in_time_and_no_more(scene: Scene, max_staleness: int) -> None:
    pace = Pace(max_staleness, per_version=2)
    assert len(scene.claim(100, pace=pace)) == 2 * (max_staleness + 1)
    assert scene.claim(100, pace=pace) == []


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_every_published_version_makes_room_for_what_the_next_consumes(
    scene: Scene, max_staleness: int
) -> None:
    pace = Pace(max_staleness, per_version=2)
    scene.make_ready(2 * (max_staleness + 1))
    for version in (1, 2):
        scene.train(step=version, size=2)
        assert scene.claim(100, version=version - 1, pace=pace) == []
        scene.publish(version, step=version)
        claimed = scene.claim(100, version=version, pace=pace)
        assert len(claimed) == 2
        scene.write([member for group in claimed for member in members(group)])
        scene.process()


def test_without_a_limit_only_the_explorer_limits_itself(scene: Scene) -> None:
    assert [len(scene.claim(5)), len(scene.claim(5))] == [5, 5]


def test_a_dropped_group_frees_its_place(scene: Scene) -> None:
    pace = Pace(0, per_version=2)
    kept, lost = scene.claim(2, pace=pace)
    scene.write([rollout(lost, member, error="no answer") for member in lost.members])
    assert scene.claim(2, pace=pace) == []
    assert scene.settle() == 1
    [next_group] = scene.claim(2, pace=pace)
    assert next_group.id not in (kept.id, lost.id)


def test_a_group_that_expired_frees_its_place(scene: Scene) -> None:
    pace = Pace(0, per_version=1)
    scene.make_ready(2)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    assert scene.claim(5, version=1, pace=pace) == []
    assert scene.draw(step=2, size=1, max_staleness=0) is None
    assert len(scene.claim(5, version=1, pace=pace)) == 1


def test_a_reopened_batch_makes_no_room(scene: Scene) -> None:
    pace = Pace(0, per_version=2)
    scene.make_ready(2)
    scene.train(step=1, size=2)
    assert scene.reopen(version=0) == 1
    assert scene.claim(5, pace=pace) == []


def test_explorers_that_claim_at_the_same_time_respect_the_limit_together(scene: Scene) -> None:
    explorers = [scene.new_worker(WorkerRole.EXPLORE) for _ in range(4)]
    pace = Pace(max_staleness=1, per_version=5)

    def claim(worker: int, tx: Transaction) -> list[groups.ClaimedGroup]:
        return groups.claim(tx, scene.run.id, worker, 0, pace, scene.selection, 2, limit=4)

    claimed = at_once(scene.database, [partial(claim, worker) for worker in explorers])
    ids = [group.id for groups_of_one in claimed for group in groups_of_one]
    assert len(ids) == len(set(ids)) == 10
    assert scene.value("SELECT count(*) FROM trinity.rollout_group") == 10


def test_every_task_is_issued_before_any_is_issued_again(scene: Scene) -> None:
    shuffled = groups.Selection(scene.selection.taskset_id, shuffle=True, seed=7)
    passes = [
        [group.task["prompt"] for _ in range(2) for group in scene.claim(4, selection=shuffled)]
        for _ in range(2)
    ]
    in_order = [f"task {number}" for number in range(8)]
    assert [sorted(issued) for issued in passes] == [in_order, in_order]
    assert passes[0] != passes[1], "shuffled anew in each pass"
    assert in_order not in passes
    assert scene.values("SELECT issued FROM trinity.task_stat") == [2] * 8


def test_in_sequence_tasks_come_as_they_were_imported(scene: Scene) -> None:
    issued = [group.task["prompt"] for _ in range(3) for group in scene.claim(3)]
    assert issued == [f"task {number % 8}" for number in range(9)]


def test_a_claim_that_was_rolled_back_issued_nothing(scene: Scene) -> None:
    with rolled_back(scene.database) as tx:
        groups.claim(tx, scene.run.id, scene.explorer, 0, UNLIMITED, scene.selection, 2, 3)
    assert scene.value("SELECT count(*) FROM trinity.task_stat") == 0
    assert [group.task["prompt"] for group in scene.claim(1)] == ["task 0"]


def test_an_abandoned_group_is_claimed_again_for_its_missing_members(scene: Scene) -> None:
    begun, untouched = scene.claim(2, group_size=4)
    scene.write([rollout(begun, 1), rollout(begun, 2, error="the model fell over")])
    assert scene.lose(scene.explorer).groups == 2

    other = scene.new_worker(WorkerRole.EXPLORE)
    again = scene.claim(2, group_size=4, worker=other)
    assert [group.id for group in again] == [begun.id, untouched.id]
    assert [group.attempt for group in again] == [2, 2]
    assert [group.members for group in again] == [[0, 3], [0, 1, 2, 3]]
    assert [group.task for group in again] == [begun.task, untouched.task]


def test_abandoned_groups_come_first_and_take_no_new_place(scene: Scene) -> None:
    pace = Pace(0, per_version=3)
    abandoned = scene.claim(2, pace=pace)
    scene.lose(scene.explorer)
    other = scene.new_worker(WorkerRole.EXPLORE)
    claimed = scene.claim(5, pace=pace, worker=other)
    assert [group.id for group in claimed][:2] == [group.id for group in abandoned]
    assert len(claimed) == 3


def test_a_late_write_is_refused_and_counted(scene: Scene) -> None:
    [group] = scene.claim(1)
    scene.lose(scene.explorer)
    other = scene.new_worker(WorkerRole.EXPLORE)
    [again] = scene.claim(1, worker=other)
    assert scene.write(members(group)) == 2
    assert scene.write(members(group), worker=other) == 2, "the attempt is old, whoever says it"
    assert scene.value("SELECT count(*) FROM trinity.rollout") == 0
    assert scene.write(members(again), worker=other) == 0
    assert scene.values("SELECT attempt FROM trinity.rollout") == [2, 2]


def test_a_write_without_a_lease_is_refused_before_anybody_claims_the_group(scene: Scene) -> None:
    [group] = scene.claim(1)
    scene.lose(scene.explorer)
    assert scene.write(members(group)) == 2
    assert scene.value("SELECT count(*) FROM trinity.experience") == 0


def test_a_late_write_does_not_hold_up_the_groups_that_are_still_held(scene: Scene) -> None:
    [lost] = scene.claim(1)
    scene.lose(scene.explorer)
    other = scene.new_worker(WorkerRole.EXPLORE)
    scene.claim(1, worker=other)
    [held] = scene.claim(1)
    assert scene.write(members(lost) + members(held)) == 2
    assert scene.values("SELECT DISTINCT group_id FROM trinity.rollout") == [held.id]


def test_two_explorers_never_take_over_the_same_group(scene: Scene) -> None:
    scene.claim(8)
    scene.lose(scene.explorer)
    explorers = [scene.new_worker(WorkerRole.EXPLORE) for _ in range(2)]

    def claim(worker: int, tx: Transaction) -> list[groups.ClaimedGroup]:
        return groups.claim(tx, scene.run.id, worker, 0, Pace(0, 1), scene.selection, 2, limit=5)

    claimed = at_once(scene.database, [partial(claim, worker) for worker in explorers])
    assert sorted(len(taken) for taken in claimed) == [3, 5]
    assert len({group.id for taken in claimed for group in taken}) == 8


def test_a_rollout_comes_back_as_it_was_written(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=1)
    written = payload([3, 4, 4])
    scene.write([rollout(group, 0, "the response", versions=[3, 4, 4])])
    [row] = scene.rows(
        "SELECT e.state, e.version_min, e.version_max, e.prompt_length, e.response_length,"
        " x.prompt, x.response, m.state, m.finish_reason, m.worker_id, p.codec, p.num_tokens, p.data"
        " FROM trinity.experience e"
        " JOIN trinity.experience_text x ON x.experience_id = e.id"
        " JOIN trinity.rollout m ON m.id = e.rollout_id"
        " JOIN trinity.payload p ON p.experience_id = e.id"
    )
    assert row[:10] == ("raw", 3, 4, 3, 3, "prompt", "the response", "finished", "stop", scene.explorer)
    read = arrays.decode(row[10], row[12], row[11])
    for name in ("token_ids", "action_mask", "logprobs", "versions"):
        np.testing.assert_array_equal(getattr(read, name), getattr(written, name))


def test_writing_the_same_rollouts_twice_stores_them_once(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3)
    for part in ([0], [0, 1], [0, 1, 2], [2]):
        assert scene.write([rollout(group, member) for member in part]) == 0
    assert scene.values("SELECT ordinal FROM trinity.rollout ORDER BY ordinal") == [0, 1, 2]
    assert scene.rows("SELECT state, arrived, failed FROM trinity.rollout_group") == [("complete", 3, 0)]
    for table in ("experience", "experience_text", "payload"):
        assert scene.value(f"SELECT count(*) FROM trinity.{table}") == 3


def test_a_write_that_fails_leaves_nothing_behind(scene: Scene) -> None:
    [group] = scene.claim(1)
    with rolled_back(scene.database) as tx:
        groups.write_rollouts(tx, scene.run.id, scene.explorer, members(group))
    for table in ("rollout", "experience", "experience_text", "payload"):
        assert scene.value(f"SELECT count(*) FROM trinity.{table}") == 0
    assert scene.write(members(group)) == 0


def test_the_last_member_completes_its_group(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3)
    group_row = "SELECT state, arrived, worker_id, completed_at IS NOT NULL FROM trinity.rollout_group"
    scene.write([rollout(group, 0), rollout(group, 1)])
    assert scene.rows(group_row) == [("open", 2, scene.explorer, False)]
    scene.write([rollout(group, 2)])
    assert scene.rows(group_row) == [("complete", 3, None, True)]


def test_members_that_failed_for_good_complete_their_group_at_a_smaller_size(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3)
    scene.write([rollout(group, 0), rollout(group, 1, error="out of memory"), rollout(group, 2)])
    assert scene.rows("SELECT state, arrived, failed FROM trinity.rollout_group") == [("complete", 2, 1)]
    assert scene.rows("SELECT ordinal, error FROM trinity.rollout WHERE state = 'failed'") == [
        (1, "out of memory")
    ]
    assert scene.value("SELECT count(*) FROM trinity.experience") == 2


def test_the_age_of_a_group_is_that_of_its_oldest_token(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3)
    scene.write([rollout(group, 0, versions=[5, 6])])
    scene.write([rollout(group, 1, versions=[4, 6]), rollout(group, 2, versions=[6, 6])])
    assert scene.value("SELECT version_min FROM trinity.rollout_group") == 4


def test_a_group_may_be_written_by_several_explorers_in_turn(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=4)
    scene.write([rollout(group, 0), rollout(group, 3)])
    scene.lose(scene.explorer)
    other = scene.new_worker(WorkerRole.EXPLORE)
    [rest] = scene.claim(1, worker=other)
    scene.write(members(rest), worker=other)
    assert scene.rows("SELECT ordinal, attempt, worker_id FROM trinity.rollout ORDER BY ordinal") == [
        (0, 1, scene.explorer),
        (1, 2, other),
        (2, 2, other),
        (3, 1, scene.explorer),
    ]
    assert scene.value("SELECT state FROM trinity.rollout_group") == "complete"


def test_a_write_waits_for_a_rescue_that_is_under_way_and_is_refused_then(scene: Scene) -> None:
    [group] = scene.claim(1)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.rollout_group SET worker_id = NULL")
        write = in_a_thread(scene.database, lambda: scene.write(members(group)))
        wait_until_blocked(scene.database, write)
    assert write.result(WAIT_SECONDS) == 2
    assert scene.value("SELECT count(*) FROM trinity.rollout") == 0
