"""Experiences on their way through the processors: claimed once, judged once, settled by whole groups."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.support.rows import (
    WAIT_SECONDS,
    Scene,
    at_once,
    claim_rows,
    finish_rows,
    import_records,
    in_a_thread,
    members,
    reward,
    rolled_back,
    rollout,
    trajectory,
    with_step,
)
from tests.support.steps import processors
from trinity_db.arrays.codec import Payload
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.states import Outcome, WorkerRole
from trinity_db.store import finish_groups, processing, rewards
from trinity_db.store.finish_groups import Rules
from trinity_db.store.processing import CLEAN, SCORE, StepVerdict

STATES = "SELECT state, count(*) FROM trinity.experience GROUP BY state ORDER BY state"
DROPS = 'SELECT stage, reason, detail FROM trinity."drop" WHERE experience_id IS NOT NULL ORDER BY id'
GROUP_DROPS = 'SELECT stage, reason, detail FROM trinity."drop" WHERE group_id IS NOT NULL'


def fail(row: int, attempt: int, error: str) -> StepVerdict:
    return StepVerdict(row, attempt, Outcome.FAILED, detail={"error": error})


def test_a_row_moves_from_raw_to_clean_to_scored_to_ready(scene: Scene) -> None:
    scene.explore(2)
    moves = []
    for step in (lambda: None, partial(scene.judge, CLEAN), partial(scene.judge, SCORE), scene.settle):
        step()
        moves.append(scene.rows(STATES))
    assert moves == [[("raw", 4)], [("clean", 4)], [("scored", 4)], [("ready", 4)]]
    assert scene.rows(
        "SELECT processor, processor_version, attempt, outcome, count(*) FROM trinity.processing"
        " GROUP BY 1, 2, 3, 4 ORDER BY 1"
    ) == [("clean", 1, 1, "passed", 4), ("score", 1, 2, "passed", 4)]


def test_a_claim_takes_the_oldest_rows_and_what_their_judge_reads(scene: Scene) -> None:
    scene.explore(3)
    with scene.database.transaction() as tx:
        reading = replace(CLEAN, columns=("response", "finish_reason", "payload"))
        first, second = processing.claim(tx, reading, scene.run.id, scene.processor, 2)
    assert [first["id"], second["id"]] == scene.values(
        "SELECT id FROM trinity.experience ORDER BY id LIMIT 2"
    )
    assert first["response"] == "1.0"
    assert first["finish_reason"] == "stop"
    assert first["num_tokens"] == 5


def test_claims_at_the_same_time_are_disjoint_and_miss_nothing(scene: Scene) -> None:
    scene.explore(8, rewards=(1.0,) * 10)
    workers = [scene.new_worker(WorkerRole.PROCESS) for _ in range(4)]

    def claim_all(worker: int, tx: Transaction) -> list[int]:
        taken: list[int] = []
        while claimed := processing.claim(tx, CLEAN, scene.run.id, worker, 7):
            taken += [row["id"] for row in claimed]
        return taken

    taken = at_once(scene.database, [partial(claim_all, worker) for worker in workers])
    ids = [row for rows_of_one in taken for row in rows_of_one]
    assert len(ids) == len(set(ids)) == 80


def test_a_claim_does_not_wait_for_rows_that_another_is_claiming(scene: Scene) -> None:
    scene.explore(4)
    other = scene.new_worker(WorkerRole.PROCESS)
    with scene.database.transaction() as tx:
        first = processing.claim(tx, CLEAN, scene.run.id, scene.processor, 5)
        second = in_a_thread(scene.database, lambda: claim_rows(scene, worker=other)).result(WAIT_SECONDS)
    assert len(first) == 5
    assert len(second) == 3


def test_a_verdict_under_a_lost_lease_is_recorded_as_refused_and_changes_nothing(scene: Scene) -> None:
    scene.explore(1)
    lost = claim_rows(scene)
    assert scene.lose(scene.processor).experiences == 2
    verdicts = [StepVerdict(lost[0], 1), StepVerdict(lost[1], 1, Outcome.DROPPED, "empty")]
    assert finish_rows(scene, verdicts) == set(), "no worker holds the rows"

    other = scene.new_worker(WorkerRole.PROCESS)
    assert claim_rows(scene, worker=other) == lost
    assert finish_rows(scene, verdicts) == set(), "another holds the rows"
    assert finish_rows(scene, verdicts, worker=other) == set(), "the attempt is old, for any worker"
    assert scene.rows(STATES) == [("raw", 2)]
    passes = "SELECT attempt, outcome, error, count(*) FROM trinity.processing GROUP BY 1, 2, 3 ORDER BY 1"
    assert scene.rows(passes) == [(1, "refused", None, 2)], "however often they are said"
    assert scene.rows(DROPS) == []

    assert finish_rows(scene, [StepVerdict(row, 2) for row in lost], worker=other) == set(lost)
    assert scene.rows(STATES) == [("clean", 2)]
    assert scene.rows(passes) == [(1, "refused", None, 2), (2, "passed", None, 2)]


def test_a_reward_that_comes_with_a_lost_verdict_is_not_recorded(scene: Scene) -> None:
    scene.explore(1)
    scene.judge(CLEAN)
    lost, kept = claim_rows(scene, SCORE)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET worker_id = NULL WHERE id = %s", [lost])
    about = scene.values("SELECT rollout_id FROM trinity.experience ORDER BY id")
    verdicts = [
        StepVerdict(row, 2, events=[reward(of, 1.0)]) for row, of in zip((lost, kept), about, strict=True)
    ]
    assert finish_rows(scene, verdicts, SCORE) == {kept}
    assert scene.rows("SELECT state, reward FROM trinity.experience ORDER BY id") == [
        ("clean", None),
        ("scored", 1.0),
    ]
    assert scene.values("SELECT rollout_id FROM trinity.reward_event") == [about[1]]


def test_a_lost_failure_does_not_count_as_one(scene: Scene) -> None:
    scene.explore(1, rewards=(1.0,))
    [row] = claim_rows(scene)
    scene.lose(scene.processor)
    assert finish_rows(scene, [fail(row, 1, "too late")], max_attempts=1) == set()
    assert scene.rows(STATES) == [("raw", 1)]
    worker = scene.new_worker(WorkerRole.PROCESS)
    assert claim_rows(scene, worker=worker) == [row]
    assert finish_rows(scene, [fail(row, 2, "once")], max_attempts=2, worker=worker) == {row}
    assert scene.rows(STATES) == [("raw", 1)]


def test_a_verdict_is_given_once(scene: Scene) -> None:
    scene.explore(1)
    ids = claim_rows(scene)
    assert finish_rows(scene, [StepVerdict(row, 1) for row in ids]) == set(ids)
    assert finish_rows(scene, [StepVerdict(row, 1) for row in ids]) == set()
    assert scene.value("SELECT count(*) FROM trinity.processing") == 2


def test_a_row_that_fails_is_tried_again_and_buried_at_the_last_attempt_with_its_error(scene: Scene) -> None:
    scene.explore(1)
    bad, good = claim_rows(scene)
    finish_rows(scene, [fail(bad, 1, "first"), StepVerdict(good, 1)])
    for attempt, error in ((2, "second"), (3, "third")):
        assert scene.rows(STATES) == [("raw", 1), ("clean", 1)], "the rest go on"
        assert claim_rows(scene) == [bad]
        finish_rows(scene, [fail(bad, attempt, error)])
    assert scene.rows(STATES) == [("clean", 1), ("dropped", 1)]
    assert scene.rows(
        "SELECT attempt, outcome, error FROM trinity.processing WHERE experience_id = %s ORDER BY id", bad
    ) == [(1, "failed", "first"), (2, "failed", "second"), (3, "failed", "third")]
    assert scene.rows(DROPS) == [("clean", "clean_failed", {"error": "third"})]
    assert claim_rows(scene) == []


def test_each_processor_counts_its_own_failures(scene: Scene) -> None:
    scene.explore(1, rewards=(1.0,))
    [row] = claim_rows(scene)
    finish_rows(scene, [fail(row, 1, "of cleaning")], max_attempts=2)
    scene.judge(CLEAN)
    assert claim_rows(scene, SCORE) == [row]
    finish_rows(scene, [fail(row, 3, "of scoring")], SCORE, max_attempts=2)
    assert scene.rows(STATES) == [("clean", 1)]


def test_what_a_processor_drops_keeps_its_reason(scene: Scene) -> None:
    scene.explore(1, rewards=(1.0, 0.5, 0.0))
    dropped, *kept = claim_rows(scene)
    finish_rows(
        scene,
        [
            StepVerdict(dropped, 1, Outcome.DROPPED, "too_long", {"tokens": 9}),
            *(StepVerdict(row, 1) for row in kept),
        ],
    )
    assert scene.rows(DROPS) == [("clean", "too_long", {"tokens": 9})]
    scene.process()
    assert scene.rows(STATES) == [("ready", 2), ("dropped", 1)]
    assert scene.rows("SELECT state, reward_count, reward_mean FROM trinity.rollout_group") == [
        ("ready", 2, 0.25)
    ]


def test_a_group_is_settled_when_its_last_member_is_scored_and_not_before(scene: Scene) -> None:
    scene.explore(2)
    scene.judge(CLEAN)
    scene.judge(SCORE, limit=3)
    assert scene.settle() == 1
    assert scene.rows("SELECT state FROM trinity.rollout_group ORDER BY id") == [("ready",), ("complete",)]
    assert scene.rows(STATES) == [("clean", 1), ("scored", 1), ("ready", 2)]
    scene.judge(SCORE)
    assert scene.settle() == 1
    assert scene.settle() == 0


def test_a_group_keeps_the_transaction_that_made_it_ready(scene: Scene) -> None:
    scene.explore(1)
    scene.explore(1, rewards=(1.0,))
    scene.judge(CLEAN)
    scene.judge(SCORE)
    with scene.database.transaction() as tx:
        finish_groups.settle_groups(tx, scene.run.id, Rules(2), limit=10)
        current = tx.execute("SELECT pg_current_xact_id()::text::bigint AS xact").fetchone()
    assert current is not None
    groups = "SELECT state, ready_xact FROM trinity.rollout_group ORDER BY id"
    assert scene.rows(groups) == [("ready", current["xact"]), ("dropped", None)]


def test_a_group_that_still_explores_is_not_settled(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3)
    scene.write([rollout(group, 0), rollout(group, 1)])
    scene.process()
    assert scene.rows(STATES) == [("scored", 2)]
    assert scene.values("SELECT state FROM trinity.rollout_group") == ["open"]
    scene.write([rollout(group, 2)])
    scene.process()
    assert scene.rows(STATES) == [("ready", 3)]


def test_a_group_with_failed_members_is_ready_at_a_smaller_size(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3)
    scene.write([rollout(group, 0), rollout(group, 1, error="no answer"), rollout(group, 2)])
    scene.process()
    assert scene.rows("SELECT state, reward_count FROM trinity.rollout_group") == [("ready", 2)]


def test_a_group_that_is_too_small_is_dropped_with_all_its_members(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3)
    scene.write([rollout(group, 0), *(rollout(group, member, error="no answer") for member in (1, 2))])
    scene.process()
    assert scene.rows(STATES) == [("dropped", 1)]
    assert scene.values("SELECT state FROM trinity.rollout_group") == ["dropped"]
    assert scene.rows(DROPS) == [("group", "group_too_small", None)]
    assert scene.rows(GROUP_DROPS) == [
        ("group", "group_too_small", {"members": 1, "needed": 2, "scored": 1, "solved": 1})
    ]


def test_a_group_of_which_nothing_is_left_is_dropped_with_a_reason(scene: Scene) -> None:
    [group] = scene.claim(1)
    scene.write([rollout(group, member, error="no answer") for member in group.members])
    scene.process()
    assert scene.rows(GROUP_DROPS) == [
        ("group", "group_too_small", {"members": 0, "needed": 2, "scored": 0, "solved": 0})
    ]


def test_selectors_learn_how_often_a_task_was_solved(scene: Scene) -> None:
    scene.make_ready(1, rewards=(1.0, 1.5, 0.5, -1.0))
    scene.claim(7)  # the other tasks, so that the first comes again
    scene.make_ready(1, rewards=(1.0, 0.0))
    assert scene.rows(
        "SELECT issued, scored, solved, alpha, beta FROM trinity.task_stat WHERE scored > 0"
    ) == [(2, 6, 3, 4.0, 4.0)]


def test_what_counts_as_solved_is_the_run_s_to_say(scene: Scene) -> None:
    for _ in range(2):
        scene.explore(1, rewards=(0.5, 0.49))
        scene.judge(CLEAN)
        scene.judge(SCORE)
        scene.settle(solved_reward=0.5)
    assert scene.rows("SELECT sum(scored), sum(solved) FROM trinity.task_stat") == [(4, 2)]


def test_a_reward_that_changes_later_moves_the_counts_of_its_task(scene: Scene) -> None:
    counts = "SELECT scored, solved, alpha, beta FROM trinity.task_stat"
    scene.make_ready(1, rewards=(1.0, 0.0))
    rollouts = scene.values("SELECT id FROM trinity.rollout ORDER BY id")

    def say(rollout_id: int, value: float) -> None:
        with scene.database.transaction() as tx:
            rewards.record(tx, scene.run.id, "person", [reward(rollout_id, value)])

    assert scene.rows(counts) == [(2, 1, 2.0, 2.0)]
    for value in (1.0, 1.0, 1.5):
        say(rollouts[1], value)
        assert scene.rows(counts) == [(2, 2, 3.0, 1.0)], "once, however often it is said"
    scene.train(step=1, size=1)
    say(rollouts[0], 0.5)
    assert scene.rows(counts) == [(2, 1, 2.0, 2.0)]
    scene.explore(1)
    unsettled = scene.value("SELECT max(id) FROM trinity.rollout")
    say(unsettled, 5.0)
    assert scene.value("SELECT sum(scored) FROM trinity.task_stat") == 2, "counted when the group is settled"


def test_settling_at_the_same_time_counts_each_group_once(scene: Scene) -> None:
    scene.explore(6)
    scene.judge(CLEAN)
    scene.judge(SCORE)

    def settle(tx: Transaction) -> int:
        return finish_groups.settle_groups(tx, scene.run.id, Rules(2), limit=4)

    assert sum(at_once(scene.database, [settle] * 3)) == 6
    assert scene.value("SELECT sum(scored) FROM trinity.task_stat") == 12


def test_processors_of_one_run_do_not_touch_another(scene: Scene) -> None:
    scene.explore(1)
    other = Scene.open(scene.database, "other")
    assert claim_rows(other) == []
    other.explore(1)
    assert len(claim_rows(other)) == 2


def test_drops_are_counted_by_taskset_length_and_difficulty(scene: Scene) -> None:
    scene.make_ready(2)
    scene.make_ready(1, rewards=(1.0,) * 6)  # chance to fail: 1 in 8
    scene.make_ready(1, rewards=(0.0, 0.0, 1.0))  # 3 in 5
    scene.explore(1, rewards=(0.0,))
    dropped = claim_rows(scene)
    finish_rows(scene, [StepVerdict(row, 1, Outcome.DROPPED, "empty") for row in dropped])
    for step in (1, 2):
        scene.train(step, size=1)
        scene.publish(step, step=step)
    assert scene.draw(3, size=2, max_staleness=1) is None
    counted = (
        "SELECT stage, reason, taskset, length_class, difficulty, rows FROM trinity.drop_view ORDER BY 2, 5"
    )
    assert scene.rows(counted) == [
        ("clean", "empty", "tasks", 1, None, 1),
        ("draw", "stale", "tasks", 1, 1, 6),
        ("draw", "stale", "tasks", 1, 3, 3),
    ]


def test_a_group_that_is_dropped_is_not_counted_as_a_row(scene: Scene) -> None:
    scene.explore(1)
    first, second = claim_rows(scene)
    finish_rows(scene, [StepVerdict(first, 1, Outcome.DROPPED, "empty"), StepVerdict(second, 1)])
    scene.judge(SCORE)
    assert scene.settle() == 1
    counted = "SELECT reason, sum(rows), sum(groups), sum(preferences) FROM trinity.drop_view GROUP BY 1"
    assert sorted(scene.rows(counted)) == [("empty", 1, 0, 0), ("group_too_small", 1, 1, 0)]


def test_pairs_are_the_best_against_the_worst(scene: Scene) -> None:
    scene.make_ready(1, rewards=(0.5, 3.0, 0.0, 2.0, 0.5))
    assert scene.pair() == 2
    rewards = (
        "SELECT c.reward, r.reward, p.margin, p.source, p.state FROM trinity.preference p"
        " JOIN trinity.experience c ON c.id = p.chosen_id JOIN trinity.experience r ON r.id = p.rejected_id"
        " ORDER BY p.margin DESC"
    )
    assert scene.rows(rewards) == [(3.0, 0.0, 3.0, "pair", "ready"), (2.0, 0.5, 1.5, "pair", "ready")]
    assert scene.pair() == 0, "pairs that exist are left alone"


@pytest.mark.parametrize(("margin", "pairs"), [(0.0, 2), (1.5, 2), (1.6, 1), (3.1, 0)])
def test_a_pair_differs_by_the_margin_at_least(scene: Scene, margin: float, pairs: int) -> None:
    scene.make_ready(1, rewards=(0.5, 3.0, 0.0, 2.0))
    assert scene.pair(margin) == pairs


def test_equal_rewards_make_no_pair(scene: Scene) -> None:
    scene.make_ready(2, rewards=(1.0, 1.0, 1.0))
    assert scene.pair() == 0


def test_a_response_of_which_nothing_is_predicted_is_in_no_pair(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3)
    alone = Payload(
        np.zeros(1, np.int32), np.ones(1, np.bool_), np.zeros(1, np.float32), np.zeros(1, np.int32)
    )
    worst = with_step(rollout(group, 2, "0"), payload=alone)
    scene.write([rollout(group, 0, "1"), rollout(group, 1, "0.5"), worst])
    scene.process()
    assert scene.pair() == 1
    assert scene.value("SELECT margin FROM trinity.preference") == 0.5


def test_pairs_are_made_of_whole_groups(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3)
    scene.write([rollout(group, 0, "1"), rollout(group, 1, "0")])
    scene.process()
    assert scene.pair() == 0
    scene.write([rollout(group, 2, "0.5")])
    scene.process()
    assert scene.pair() == 1


def test_adopted_rows_are_paired_for_the_run_that_adopted_them(scene: Scene) -> None:
    import_records(scene.database, "set", [trajectory(0, "right", 1.0), trajectory(0, "wrong", 0.0)])
    other = Scene.open(scene.database, "other", data=["set"])
    assert other.pair() == 1
    assert scene.pair() == 0
    assert scene.values(
        "SELECT r.name FROM trinity.preference p JOIN trinity.experience e ON e.id = p.chosen_id"
        " JOIN trinity.run r ON r.id = e.run_id"
    ) == ["other"]


def test_no_pair_is_drawn_against_the_rewards_as_they_are_now(scene: Scene) -> None:
    scene.make_ready(1, rewards=(1.0, 0.0))
    scene.pair()
    good, bad = scene.values("SELECT id FROM trinity.rollout ORDER BY id")
    with scene.database.transaction() as tx:
        rewards.record(tx, scene.run.id, "person", [reward(good, 0.0), reward(bad, 1.0)])
    scene.pair()
    scene.draw_pairs(step=1, size=10)
    drawn = scene.values(
        "SELECT e.reward FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id"
        " ORDER BY i.ordinal"
    )
    assert drawn == [1.0, 0.0], "the chosen one, then the rejected one"


def test_a_claim_that_was_rolled_back_took_nothing(scene: Scene) -> None:
    [group] = scene.claim(1)
    scene.write(members(group))
    with rolled_back(scene.database) as tx:
        processing.claim(tx, CLEAN, scene.run.id, scene.processor, 10)
    assert len(claim_rows(scene)) == 2
    assert scene.values("SELECT attempt FROM trinity.experience") == [1, 1]


def test_a_drain_settles_groups_that_others_left_complete(scene: Scene) -> None:
    role = processors(scene, {}, drain=True)
    assert not role.work()
    assert role.is_done()
    [group] = scene.claim(1)
    scene.write([rollout(group, member, error="out of memory") for member in group.members])
    assert not role.is_done()
    assert scene.values("SELECT state FROM trinity.rollout_group") == ["dropped"]
    assert role.is_done()


def test_a_drain_ends_though_the_rest_of_a_group_is_not_explored(scene: Scene) -> None:
    [group] = scene.claim(1)
    scene.write([rollout(group, 0)])
    scene.lose(scene.explorer)
    role = processors(scene, {}, drain=True)
    scene.judge(CLEAN)
    assert not role.is_done()
    scene.judge(SCORE)
    assert scene.rows(STATES) == [("scored", 1)]
    assert role.is_done()
