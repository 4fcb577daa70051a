"""Rollout groups: which come next, who holds them, what is written of them, once."""

from functools import partial

import numpy as np
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH

from tests.support.rows import (
    UNLIMITED,
    WAIT_SECONDS,
    Scene,
    at_once,
    attempt,
    in_a_thread,
    members,
    payload,
    rolled_back,
    rollout,
    wait_until_blocked,
)
from trinity_db.arrays import codec
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole
from trinity_db.store import groups
from trinity_db.store.groups import Pace
from trinity_db.store.selection import TaskSelection


def test_every_task_is_issued_before_any_is_issued_again(scene: Scene) -> None:
    shuffled = TaskSelection(scene.selection.weights, seed=7)
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
        plan = groups.GroupPlan(UNLIMITED, scene.selection, 2)
        groups.claim(tx, scene.run.id, scene.explorer, plan, version=0, limit=3)
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


def test_a_late_write_is_refused_and_counted_however_often_it_is_said(scene: Scene) -> None:
    [group] = scene.claim(1)
    scene.lose(scene.explorer)
    other = scene.new_worker(WorkerRole.EXPLORE)
    [again] = scene.claim(1, worker=other)
    assert scene.write(members(group)) == 2
    assert scene.write(members(group), worker=other) == 2, "the attempt is old, for any worker"
    assert scene.write(members(again), worker=other) == 0
    assert scene.rows("SELECT state, attempt FROM trinity.rollout ORDER BY id") == [
        *[("refused", 1)] * 2,
        *[("finished", 2)] * 2,
    ]
    assert scene.rows("SELECT state, arrived, failed FROM trinity.rollout_group") == [("complete", 2, 0)]


def test_a_refused_rollout_is_kept_with_all_that_it_had(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=1)
    scene.lose(scene.explorer)
    written = payload([3, 4, 4])
    scene.write([rollout(group, 0, "the response", versions=[3, 4, 4])])
    [row] = scene.rows(
        "SELECT m.state, m.attempt, m.worker_id, m.finish_reason, e.state, e.version_min,"
        " x.prompt, x.response, d.stage, d.reason, p.codec, p.num_tokens, p.data"
        " FROM trinity.rollout m"
        " JOIN trinity.experience e ON e.rollout_id = m.id"
        " JOIN trinity.experience_text x ON x.experience_id = e.id"
        " JOIN trinity.payload p ON p.experience_id = e.id"
        ' JOIN trinity."drop" d ON d.experience_id = e.id'
    )
    assert row[:6] == ("refused", 1, scene.explorer, "stop", "dropped", 3)
    assert row[6:10] == ("prompt", "the response", "explore", "late")
    np.testing.assert_array_equal(codec.decode(row[10], row[12], row[11]).token_ids, written.token_ids)


def test_a_refused_rollout_that_had_failed_ended_with_its_error(scene: Scene) -> None:
    [group] = scene.claim(1)
    scene.lose(scene.explorer)
    assert scene.write([rollout(group, 0, error="out of memory")]) == 1
    assert scene.rows("SELECT state, finish_reason, error FROM trinity.rollout") == [
        ("refused", "out of memory", None)
    ]
    assert scene.value("SELECT failed FROM trinity.rollout_group") == 0


def test_a_write_without_a_lease_is_refused_before_another_worker_claims_the_group(scene: Scene) -> None:
    [group] = scene.claim(1)
    scene.lose(scene.explorer)
    assert scene.write(members(group)) == 2
    assert scene.values("SELECT state FROM trinity.experience") == ["dropped", "dropped"]
    other = scene.new_worker(WorkerRole.EXPLORE)
    [again] = scene.claim(1, worker=other)
    assert again.members == [0, 1], "what was refused is no member"


def test_a_write_is_refused_also_when_its_group_is_complete_and_drawn_by_then(scene: Scene) -> None:
    [group] = scene.claim(1)
    scene.lose(scene.explorer)
    other = scene.new_worker(WorkerRole.EXPLORE)
    [again] = scene.claim(1, worker=other)
    scene.write([rollout(again, 0, "1.0"), rollout(again, 1, "0.0")], worker=other)
    scene.process()
    assert scene.write([rollout(group, 0, "9.0")]) == 1
    batch = scene.draw(step=1, size=1)
    assert scene.write([rollout(group, 1, "9.0")]) == 1
    assert scene.values("SELECT reward FROM trinity.batch_item ORDER BY ordinal") == [1.0, 0.0]
    assert scene.commit(batch)
    assert scene.rows("SELECT state, arrived, reward_count, reward_mean FROM trinity.rollout_group") == [
        ("trained", 2, 2, 0.5)
    ]
    assert scene.values("SELECT state FROM trinity.experience ORDER BY id") == [
        *["trained"] * 2,
        *["dropped"] * 2,
    ]


def test_a_late_write_that_is_said_twice_at_the_same_time_is_kept_once(scene: Scene) -> None:
    late = scene.claim(4)
    scene.lose(scene.explorer)
    rollouts = [member for group in late for member in members(group)]

    def write(rollouts: list[groups.Rollout], tx: Transaction) -> int:
        return groups.write_rollouts(tx, scene.run.id, scene.explorer, rollouts).refused

    assert at_once(scene.database, [partial(write, rollouts), partial(write, rollouts[::-1])]) == [8, 8]
    assert scene.values("SELECT state FROM trinity.rollout") == ["refused"] * 8


def test_rollouts_of_a_group_that_the_server_forgot_are_counted_and_the_others_written(scene: Scene) -> None:
    kept, lost = scene.claim(2)
    scene.rows("DELETE FROM trinity.rollout_group WHERE id = %s RETURNING id", lost.id)
    with scene.database.transaction() as tx:
        rollouts = [member for group in (lost, kept) for member in members(group)]
        unwanted = groups.write_rollouts(tx, scene.run.id, scene.explorer, rollouts)
    assert unwanted == groups.Unwanted(refused=0, spare=0, lost=2)
    assert scene.values("SELECT group_id FROM trinity.rollout") == [kept.id] * 2


SPARE = "SELECT ordinal, state::text, finish_reason, error FROM trinity.rollout ORDER BY ordinal, attempt"
SPARE_GROUP = "SELECT state::text, expected, arrived, failed, worker_id IS NULL FROM trinity.rollout_group"
SPARE_ROWS = """
SELECT e.state::text, d.reason FROM trinity.experience e LEFT JOIN trinity."drop" d ON d.experience_id = e.id
ORDER BY e.id
"""


def wrote(scene: Scene, rollouts: list[groups.Rollout]) -> groups.Unwanted:
    """What a write came to, and the same write again: it changes nothing."""
    found = []
    for _ in range(2):
        with scene.database.transaction() as tx:
            found.append(groups.write_rollouts(tx, scene.run.id, scene.explorer, rollouts))
    assert found[0] == found[1]
    return found[0]


def test_the_first_members_that_are_written_are_the_group_and_spare_ones_are_kept_beside_it(
    scene: Scene,
) -> None:
    [group] = scene.claim(1, spare=2)
    assert group.members == [0, 1, 2, 3]
    assert wrote(scene, [rollout(group, 3)]) == groups.Unwanted(refused=0, spare=0, lost=0)
    of_several_steps = attempt(group, 2, ["1", "2"], rewards=[1.0, 1.0])
    unwanted = wrote(scene, [rollout(group, 1, error="my bug"), of_several_steps])
    assert unwanted == groups.Unwanted(refused=1, spare=1, lost=0)
    assert wrote(scene, [rollout(group, 0, error="cancelled")]) == unwanted
    assert scene.rows(SPARE) == [
        (0, "refused", "spare", None),
        (1, "failed", None, "my bug"),
        (2, "refused", "spare", None),
        (3, "finished", "stop", None),
    ]
    assert scene.rows(SPARE_GROUP) == [("complete", 2, 1, 1, True)]
    assert scene.rows(SPARE_ROWS) == [("raw", None), ("dropped", "spare"), ("dropped", "spare")]
    with scene.database.transaction() as tx:
        assert groups.complete(tx, [group.id]) == {group.id}


def test_who_takes_over_a_group_attempts_what_it_lacks_and_its_spare_members(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3, spare=1)
    assert wrote(scene, [rollout(group, 1), rollout(group, 3)]).refused == 0
    scene.lose(scene.explorer)
    assert wrote(scene, [rollout(group, 0)]) == groups.Unwanted(refused=1, spare=0, lost=0)
    other = scene.new_worker(WorkerRole.EXPLORE)
    [again] = scene.claim(1, worker=other, group_size=3, spare=1)
    assert again.members == [0, 2]
    assert scene.write([rollout(again, 2), rollout(again, 0)], worker=other) == 1
    assert scene.rows(SPARE) == [
        (0, "refused", "stop", None),
        (0, "refused", "spare", None),
        (1, "finished", "stop", None),
        (2, "finished", "stop", None),
        (3, "finished", "stop", None),
    ]
    assert scene.rows(SPARE_GROUP) == [("complete", 3, 3, 0, True)]


def test_a_late_write_does_not_hold_up_the_groups_that_are_still_held(scene: Scene) -> None:
    [lost] = scene.claim(1)
    scene.lose(scene.explorer)
    other = scene.new_worker(WorkerRole.EXPLORE)
    scene.claim(1, worker=other)
    [held] = scene.claim(1)
    assert scene.write(members(lost) + members(held)) == 2
    assert scene.rows("SELECT DISTINCT group_id, state FROM trinity.rollout ORDER BY group_id") == [
        (lost.id, "refused"),
        (held.id, "finished"),
    ]


def test_groups_are_locked_in_the_order_of_their_ids(scene: Scene) -> None:
    claimed = scene.claim(5)
    blocked_at = claimed[2].id
    backwards = [member for group in reversed(claimed) for member in members(group)]
    with scene.database.transaction() as tx:
        tx.execute("SELECT FROM trinity.rollout_group WHERE id = %s FOR UPDATE", [blocked_at])
        write = in_a_thread(scene.database, lambda: scene.write(backwards))
        wait_until_blocked(scene.database, write)
        free = tx.execute(
            "SELECT id FROM trinity.rollout_group ORDER BY id FOR UPDATE SKIP LOCKED"
        ).fetchall()
        assert [row["id"] for row in free] == [group.id for group in claimed[2:]]
    assert write.result(WAIT_SECONDS) == 0


def test_counts_of_tasks_are_locked_in_the_order_of_their_ids(scene: Scene) -> None:
    shuffled = TaskSelection(scene.selection.weights, seed=7)
    scene.claim(8)
    tasks = scene.values("SELECT task_id FROM trinity.task_stat ORDER BY task_id")
    with scene.database.transaction() as tx:
        tx.execute("SELECT FROM trinity.task_stat WHERE task_id = %s FOR UPDATE", [tasks[4]])
        claim = in_a_thread(scene.database, lambda: scene.claim(8, selection=shuffled))
        wait_until_blocked(scene.database, claim)
        free = tx.execute(
            "SELECT task_id FROM trinity.task_stat ORDER BY task_id FOR UPDATE SKIP LOCKED"
        ).fetchall()
        assert [row["task_id"] for row in free] == tasks[4:]
    issued = [group.task["prompt"] for group in claim.result(WAIT_SECONDS)]
    assert issued != sorted(issued), "a shuffled order, to be told from that of the ids"


def test_two_explorers_never_take_over_the_same_group(scene: Scene) -> None:
    scene.claim(8)
    scene.lose(scene.explorer)
    explorers = [scene.new_worker(WorkerRole.EXPLORE) for _ in range(2)]
    plan = groups.GroupPlan(Pace(0, 1), scene.selection, 2)

    def claim(worker: int, tx: Transaction) -> list[groups.ClaimedGroup]:
        return groups.claim(tx, scene.run.id, worker, plan, version=0, limit=5)

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
    read = codec.decode(row[10], row[12], row[11])
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


def test_rows_of_a_write_get_their_ids_in_the_order_that_was_given(scene: Scene) -> None:
    claimed = scene.claim(3, group_size=3)
    given = [member for group in reversed(claimed) for member in reversed(members(group))]
    scene.write(given)
    order = "SELECT group_id, ordinal FROM trinity.rollout ORDER BY id"
    assert scene.rows(order) == [(rollout.group.id, rollout.member) for rollout in given]
    assert scene.values("SELECT rollout_id FROM trinity.experience ORDER BY id") == scene.values(
        "SELECT id FROM trinity.rollout ORDER BY id"
    )


def test_what_was_refused_before_is_counted_again_beside_what_is_new(scene: Scene) -> None:
    [group] = scene.claim(1)
    scene.lose(scene.explorer)
    assert scene.write([rollout(group, 0)]) == 1
    other = scene.new_worker(WorkerRole.EXPLORE)
    [again] = scene.claim(1, worker=other)
    assert scene.write([rollout(group, 0), *members(again), rollout(group, 1)], worker=other) == 2
    assert scene.values("SELECT state FROM trinity.rollout ORDER BY id") == [
        "refused", "finished", "finished", "refused"
    ]  # fmt: skip


def test_the_driver_remembers_the_statement_of_a_write() -> None:
    statement = query("write_rollouts")
    assert len(statement) <= MAX_CACHED_STATEMENT_LENGTH, "the driver would translate it anew each time"


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


def test_a_rollout_that_spans_a_weight_update_counts_as_its_oldest_token_at_the_draw(scene: Scene) -> None:
    for version in (1, 2):
        scene.make_ready(1)
        scene.train(step=version, size=1)
        scene.publish(version, step=version)
    newer, spanning = scene.claim(2)
    scene.write([rollout(newer, 0, versions=[1, 1]), rollout(newer, 1, versions=[1, 2])])
    scene.write([rollout(spanning, 0, versions=[2, 2]), rollout(spanning, 1, versions=[0, 2])])
    scene.process()
    batch = scene.draw(step=3, size=1, max_staleness=1)
    assert batch is not None
    assert scene.values(
        "SELECT staleness FROM trinity.batch_item WHERE batch_id = %s ORDER BY ordinal", batch.id
    ) == [1, 1]
    states = scene.rows("SELECT id, state FROM trinity.rollout_group ORDER BY id")
    assert states[-2:] == [(newer.id, "leased"), (spanning.id, "dropped")]
    assert scene.values('SELECT detail FROM trinity."drop" ORDER BY experience_id') == [
        {"staleness": 0},
        {"staleness": 2},
    ]


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
    assert scene.values("SELECT state FROM trinity.rollout") == ["refused", "refused"]
