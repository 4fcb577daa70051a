"""The pace: how many rollout groups explorers may start, all of them together, whatever happens."""

from functools import partial

import pytest

from tests.support.rows import Scene, at_once, members, rollout
from trinity_db.postgres.connection import Transaction
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


def test_without_a_staleness_limit_the_backlog_limits_explorers(scene: Scene) -> None:
    pace = Pace(None, per_version=2, backlog=3)
    assert len(scene.claim(100, pace=pace)) == 3
    assert scene.claim(1, pace=pace) == []
    scene.make_ready(0)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.rollout_group SET state = 'dropped', completed_at = now()")
    assert len(scene.claim(100, pace=pace)) == 3


def test_a_run_that_may_start_so_many_groups_has_explored_them_when_the_last_one_is_complete(
    scene: Scene,
) -> None:
    def is_done() -> bool:
        with scene.database.transaction() as tx:
            return groups.all_explored(tx, scene.run.id, 5)

    pace = Pace(None, per_version=2, most=5)
    first = scene.claim(3, pace=pace)
    scene.write([member for group in first for member in members(group)])
    assert not is_done(), "groups are left to start"
    second = scene.claim(100, pace=pace)
    assert len(second) == 2
    assert not is_done(), "groups are open"
    scene.write([member for group in second for member in members(group)])
    assert is_done()
    assert scene.claim(100, pace=pace) == []


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


def test_a_withdrawn_version_makes_no_room(scene: Scene) -> None:
    pace = Pace(0, per_version=2)
    scene.make_ready(2)
    scene.train(step=1, size=2)
    scene.publish(1, step=1)
    scene.reopen(version=0)
    assert scene.claim(5, version=0, pace=pace) == []
    scene.train(step=1, size=2)
    scene.publish(2, step=1)
    assert len(scene.claim(5, version=2, pace=pace)) == 2


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_several_explorers_respect_the_limit_together_whatever_happens(
    scene: Scene, max_staleness: int
) -> None:
    pace = Pace(max_staleness, per_version=2)
    explorers = [scene.explorer, scene.new_worker(WorkerRole.EXPLORE)]

    def fill(version: int) -> list[tuple[groups.ClaimedGroup, int]]:
        """Both explorers take what they may; then as many groups are under way as the limit allows."""
        claimed = [
            (group, worker)
            for worker, limit in ((explorers[0], 1), (explorers[1], 100))
            for group in scene.claim(limit, version=version, pace=pace, worker=worker)
        ]
        assert _under_way(scene, version) == 2 * (max_staleness + 1)
        return claimed

    for group, worker in fill(version=0):
        scene.write(members(group), worker)
    scene.process()
    scene.train(step=1, size=2)
    assert fill(version=0) == []
    scene.publish(1, step=1)
    taken = fill(version=1)
    assert len(taken) == 2
    assert scene.claim(5, version=0, pace=pace) == [], "an explorer that has not loaded it yet"

    for worker in explorers:
        scene.lose(worker)
    explorers[:] = [scene.new_worker(WorkerRole.EXPLORE) for _ in range(2)]
    again = fill(version=1)
    assert [group.id for group, _ in again] == [group.id for group, _ in taken], (
        "a restart takes no new place"
    )
    assert [scene.write(members(group), worker) for group, worker in taken] == [2, 2]
    assert fill(version=1) == [], "and neither does what was refused"

    (kept, first), (lost, second) = again
    scene.write(members(kept), first)
    scene.write([rollout(lost, member, error="no answer") for member in lost.members], second)
    scene.process()
    assert len(fill(version=1)) == 1, "a dropped group frees its place"


def test_explorers_that_claim_at_the_same_time_respect_the_limit_together(scene: Scene) -> None:
    explorers = [scene.new_worker(WorkerRole.EXPLORE) for _ in range(4)]
    plan = groups.GroupPlan(Pace(max_staleness=1, per_version=5), scene.selection, 2)

    def claim(worker: int, tx: Transaction) -> list[groups.ClaimedGroup]:
        return groups.claim(tx, scene.run.id, worker, plan, version=0, limit=4)

    claimed = at_once(scene.database, [partial(claim, worker) for worker in explorers])
    ids = [group.id for groups_of_one in claimed for group in groups_of_one]
    assert len(ids) == len(set(ids)) == 10
    assert scene.value("SELECT count(*) FROM trinity.rollout_group") == 10


def test_abandoned_groups_come_first_and_take_no_new_place(scene: Scene) -> None:
    pace = Pace(0, per_version=3)
    abandoned = scene.claim(2, pace=pace)
    scene.lose(scene.explorer)
    other = scene.new_worker(WorkerRole.EXPLORE)
    claimed = scene.claim(5, pace=pace, worker=other)
    assert [group.id for group in claimed][:2] == [group.id for group in abandoned]
    assert len(claimed) == 3


def _under_way(scene: Scene, version: int) -> int:
    """Groups that a version was not trained on, and a later one may be."""
    return int(
        scene.value(
            "SELECT count(*) FROM trinity.rollout_group g WHERE g.state <> 'dropped' AND NOT EXISTS ("
            " SELECT FROM trinity.experience e JOIN trinity.batch_item i ON i.experience_id = e.id"
            " JOIN trinity.batch b ON b.id = i.batch_id"
            " WHERE e.group_id = g.id AND b.state = 'committed' AND b.included_version <= %s)",
            version,
        )
    )
