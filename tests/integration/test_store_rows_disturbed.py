"""Experiences whose way is disturbed: by workers that are gone, by rewards that are awaited, by others."""

import pytest

from tests.support.rows import (
    WAIT_SECONDS,
    Scene,
    claim_rows,
    finish_rows,
    in_a_thread,
    reward,
    wait_until_blocked,
)
from trinity_db.schema.queries import query
from trinity_db.schema.states import Outcome, WorkerRole
from trinity_db.store import finish_groups, processing, rewards
from trinity_db.store.finish_groups import Rules
from trinity_db.store.processing import CLEAN, SCORE, StepVerdict

STATES = "SELECT state, count(*) FROM trinity.experience GROUP BY state ORDER BY state"
DROPS = 'SELECT stage, reason, detail FROM trinity."drop" WHERE experience_id IS NOT NULL ORDER BY id'
GROUP_DROPS = 'SELECT stage, reason, detail FROM trinity."drop" WHERE group_id IS NOT NULL'


def crash(scene: Scene, stage: processing.Stage = CLEAN) -> list[int]:
    """A worker claims rows and is gone; their ids."""
    worker = scene.new_worker(WorkerRole.PROCESS)
    claimed = claim_rows(scene, stage, worker=worker)
    scene.lose(worker)
    return claimed


def test_rows_whose_worker_is_gone_again_and_again_are_claimed_alone_and_last(scene: Scene) -> None:
    scene.explore(1)
    suspects = crash(scene)
    assert crash(scene) == suspects, "once may be an accident"
    scene.explore(1)
    fresh = claim_rows(scene)
    assert len(fresh) == 2
    assert set(fresh).isdisjoint(suspects)
    assert [claim_rows(scene), claim_rows(scene)] == [suspects[:1], suspects[1:]]
    assert claim_rows(scene) == []


def test_a_row_that_ends_every_claim_is_given_up_and_its_neighbours_go_on(scene: Scene) -> None:
    scene.explore(1)
    scene.judge(CLEAN)
    killer, neighbour = crash(scene, SCORE)
    crash(scene, SCORE)
    assert crash(scene, SCORE) == [killer], "alone this time"

    with scene.database.transaction() as tx:
        [row] = processing.claim(tx, SCORE, scene.run.id, scene.processor, 100)
        verdict = processing.give_up(SCORE, row, max_attempts=3)
        assert verdict is not None
        processing.finish(tx, SCORE, scene.run.id, scene.processor, [verdict], max_attempts=3)
        [row] = processing.claim(tx, SCORE, scene.run.id, scene.processor, 100)
        assert row["id"] == neighbour
        assert processing.give_up(SCORE, row, max_attempts=3) is None
    error = "3 times in a row the score processor ended before its verdict"
    assert scene.rows(DROPS) == [("score", "score_crashed", {"error": error})]
    assert scene.values("SELECT state FROM trinity.experience ORDER BY id") == ["dropped", "clean"]


def test_a_verdict_forgives_the_claims_before_it(scene: Scene) -> None:
    scene.explore(1)
    ids = crash(scene)
    crash(scene)
    for _ in ids:
        scene.judge(CLEAN)
    assert scene.rows(STATES) == [("clean", 2)]
    assert claim_rows(scene, SCORE) == ids


def test_the_fewest_attempts_do_not_make_every_row_a_suspect(scene: Scene) -> None:
    scene.explore(1)
    with scene.database.transaction() as tx:
        claimed = processing.claim(tx, CLEAN, scene.run.id, scene.processor, 100, max_attempts=1)
    assert [processing.give_up(CLEAN, row, max_attempts=1) for row in claimed] == [None, None]
    scene.lose(scene.processor)
    with scene.database.transaction() as tx:
        [row] = processing.claim(tx, CLEAN, scene.run.id, scene.processor, 100, max_attempts=1)
    assert processing.give_up(CLEAN, row, max_attempts=1) is None, "a neighbour may have been at fault"


def say(scene: Scene, *rollouts: int, source: str = "human") -> None:
    """One reward of a source for each rollout."""
    with scene.database.transaction() as tx:
        rewards.record(tx, scene.run.id, source, [reward(of, 1.0, source) for of in rollouts])


def test_a_group_waits_until_the_source_that_is_required_has_judged_each_member(scene: Scene) -> None:
    scene.explore(2)
    scene.judge(CLEAN)
    scene.judge(SCORE)
    first, second, third, fourth = scene.values("SELECT id FROM trinity.rollout ORDER BY id")
    assert scene.settle(requires_reward="human") == 0
    say(scene, first, third, fourth)
    say(scene, second, source="robot")
    assert scene.settle(requires_reward="human") == 1, "the group in front waits, the one behind goes on"
    assert scene.values("SELECT state FROM trinity.rollout_group ORDER BY id") == ["complete", "ready"]
    say(scene, second)
    assert scene.settle(requires_reward="human") == 1
    assert scene.rows(STATES) == [("ready", 4)]


def test_groups_that_wait_do_not_take_the_place_of_others(scene: Scene) -> None:
    scene.explore(4)
    scene.judge(CLEAN)
    scene.judge(SCORE)
    say(scene, *scene.values("SELECT id FROM trinity.rollout ORDER BY id DESC LIMIT 2"))
    with scene.database.transaction() as tx:
        assert finish_groups.settle_groups(tx, scene.run.id, Rules(2, requires_reward="human"), limit=1) == 1


def test_a_row_that_is_gone_needs_no_reward(scene: Scene) -> None:
    scene.explore(1, rewards=(1.0, 0.5, 0.0))
    scene.explore(1)
    dropped, first, second, *others = claim_rows(scene)
    finish_rows(
        scene,
        [
            StepVerdict(dropped, 1, Outcome.DROPPED, "empty"),
            *(StepVerdict(row, 1) for row in (first, second)),
            *(StepVerdict(row, 1, Outcome.DROPPED, "empty") for row in others),
        ],
    )
    scene.judge(SCORE)
    assert scene.settle(requires_reward="human") == 1, "an empty group waits for no reward"
    assert scene.rows(GROUP_DROPS) == [
        ("group", "group_too_small", {"members": 0, "needed": 2, "scored": 0, "solved": 0})
    ]
    say(scene, *scene.values("SELECT rollout_id FROM trinity.experience WHERE id IN (%s, %s)", first, second))
    assert scene.settle(requires_reward="human") == 1
    assert scene.rows(
        "SELECT state, count(*) FROM trinity.experience WHERE group_id ="
        " (SELECT min(id) FROM trinity.rollout_group) GROUP BY 1 ORDER BY 1"
    ) == [
        ("ready", 2),
        ("dropped", 1),
    ]


def test_a_group_that_is_too_small_waits_for_no_reward(scene: Scene) -> None:
    scene.explore(2)
    dropped, *kept = claim_rows(scene)
    verdicts = [StepVerdict(row, 1) for row in kept]
    finish_rows(scene, [StepVerdict(dropped, 1, Outcome.DROPPED, "empty"), *verdicts])
    scene.judge(SCORE)
    assert scene.settle(requires_reward="human") == 1
    assert scene.values("SELECT state FROM trinity.rollout_group ORDER BY id") == ["dropped", "complete"]
    assert scene.rows(GROUP_DROPS) == [
        ("group", "group_too_small", {"members": 1, "needed": 2, "scored": 1, "solved": 0})
    ]
    assert scene.rows(STATES) == [("scored", 2), ("dropped", 2)]


def test_a_reward_that_comes_before_the_lock_is_in_the_statistics_of_the_group(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.explore(1)
    scene.judge(CLEAN)
    scene.judge(SCORE)
    about = scene.value("SELECT min(rollout_id) FROM trinity.experience")
    # The statement that looks for groups has its snapshot when it is held up, and no lock yet.
    lock = "SELECT pg_advisory_xact_lock(1)"
    picks = "WHERE g.run_id = %(run_id)s AND g.state = 'complete'"
    held_up = f"{picks} AND ({lock})::text IS NOT NULL"
    monkeypatch.setattr(finish_groups, "query", lambda name: query(name).replace(picks, held_up))
    with scene.database.transaction() as tx:
        tx.execute(lock)
        settled = in_a_thread(scene.database, scene.settle)
        wait_until_blocked(scene.database, settled)
        rewards.record(tx, scene.run.id, "human", [reward(about, 4.0, "human")])
    assert settled.result(WAIT_SECONDS) == 1
    assert scene.rows("SELECT state, reward_mean FROM trinity.rollout_group") == [("ready", 2.5)]


def test_rows_that_wait_for_a_reward_are_not_left_to_process(scene: Scene) -> None:
    scene.explore(1)
    scene.judge(CLEAN)
    with scene.database.transaction() as tx:
        assert processing.count_unprocessed(tx, scene.run.id, "human") == 2
    scene.judge(SCORE)
    with scene.database.transaction() as tx:
        assert processing.count_unprocessed(tx, scene.run.id, "human") == 0
        assert processing.count_unprocessed(tx, scene.run.id) == 2


def test_a_reward_that_comes_while_the_row_is_scored_does_not_wait_in_a_circle(scene: Scene) -> None:
    """A person's reward changes the group, then its rows; the scorer its rows, then the group."""
    scene.explore(1)
    scene.judge(CLEAN)
    with scene.database.transaction() as tx:
        claimed = processing.claim(tx, SCORE, scene.run.id, scene.processor, 100)
    verdicts = [StepVerdict(row["id"], 2, events=[reward(row["rollout_id"], 1.0)]) for row in claimed]
    with scene.database.transaction() as tx:
        tx.execute("SELECT id FROM trinity.rollout_group FOR NO KEY UPDATE")
        scorer = in_a_thread(scene.database, lambda: finish_rows(scene, verdicts, SCORE))
        wait_until_blocked(scene.database, scorer)
        said = [reward(row["rollout_id"], 1.0, "human") for row in claimed]
        rewards.record(tx, scene.run.id, "human", said)
    assert len(scorer.result(WAIT_SECONDS)) == 2
    assert scene.rows("SELECT state, reward FROM trinity.experience") == [("scored", 2.0)] * 2


def test_verdicts_in_any_order_lock_rows_in_the_order_of_their_ids(scene: Scene) -> None:
    scene.explore(1)
    first, second = claim_rows(scene)
    lock = "SELECT id FROM trinity.experience WHERE id = %s FOR NO KEY UPDATE"

    def finish_backwards() -> set[int]:
        return finish_rows(scene, [StepVerdict(second, 1), StepVerdict(first, 1)])

    with scene.database.transaction() as tx:
        tx.execute(lock, [first])
        late = in_a_thread(scene.database, finish_backwards)
        wait_until_blocked(scene.database, late)
        tx.execute(lock + " NOWAIT", [second])
    assert late.result(WAIT_SECONDS) == {first, second}
