"""The line of a run's versions: how far two versions are from each other, and which rows are stale for it."""

import math
import random
from typing import Any

from tests.support.rows import Scene
from trinity_db.schema.states import WorkerRole
from trinity_db.store import policies

VERSION = """
INSERT INTO trinity.policy_version (run_id, version, step, checkpoint_hash, skipped)
VALUES (%s, %s, %s, '', %s)
"""
WITHDRAW = """
UPDATE trinity.policy_version SET withdrawn_at = now()
WHERE version > %s AND withdrawn_at IS NULL
RETURNING version
"""
SETBACK = """
INSERT INTO trinity.setback
    (run_id, worker_id, known_version, known_step, last_step, first_version, last_version, resumed_version)
VALUES (%s, 1, %s, 0, 1, %s, %s, %s)
"""


def test_versions_count_along_the_line_after_a_run_went_back(scene: Scene) -> None:
    for step in (1, 2, 3, 4):
        scene.make_ready(1, version=step - 1)
        scene.train(step, size=1)
        scene.publish(step, step)
    rows = {version: scene.make_ready(1, version=version)[0] for version in (2, 3, 4)}
    scene.reopen(2)
    withdrawn = "SELECT version FROM trinity.policy_version WHERE withdrawn_at IS NOT NULL ORDER BY 1"
    assert scene.values(withdrawn) == [3, 4]
    for step, version in ((3, 5), (4, 6)):
        scene.train(step, size=1)
        scene.publish(version, step)
    assert scene.rows("SELECT version, skipped FROM trinity.policy_version WHERE version > 4 ORDER BY 1") == [
        (5, 2),
        (6, 2),
    ]
    now = "SELECT group_id, max(staleness_now) FROM trinity.experience_view GROUP BY group_id"
    distances = dict(scene.rows(now))
    assert [distances[rows[version]] for version in (2, 3, 4)] == [2, 3, 4]
    assert scene.draw(step=5, size=9, max_staleness=3) is None  # it expires what is too stale
    states = dict(scene.rows("SELECT id, state::text FROM trinity.rollout_group"))
    assert [states[rows[version]] for version in (2, 3, 4)] == ["ready", "ready", "dropped"]
    batch = scene.draw(step=5, size=2, max_staleness=3)
    assert batch is not None
    drawn = "SELECT DISTINCT staleness FROM trinity.batch_item WHERE batch_id = %s ORDER BY 1"
    assert scene.values(drawn, batch.id) == [2, 3]


def test_distances_are_those_of_a_walk_from_version_to_version(scene: Scene) -> None:
    """Over a history with fallbacks and versions that the server lost; each version knows its parent here."""
    chance = random.Random(7)
    parents, kept, newest = {0: 0}, [0], 0
    for _ in range(40):
        luck = chance.random()
        if luck < 0.2:
            kept = kept[: chance.randrange(1, len(kept) + 1)]
            scene.rows(WITHDRAW, kept[-1])
        elif luck < 0.3:
            lost = range(newest + 1, newest + chance.randrange(2, 5))
            parents |= {number: number - 1 if number > lost[0] else kept[-1] for number in lost}
            insert(scene, SETBACK, kept[-1], lost[0], lost[-1], kept[-1])
            newest = lost[-1]
        newest += 1
        parents[newest] = kept[-1]
        insert(scene, VERSION, newest, newest, newest - len(kept))
        kept.append(newest)
    pairs = "SELECT a, b, trinity.distance(%s, a, b) FROM generate_series(0, %s) a, generate_series(0, %s) b"
    assert {
        (one, other): distance for one, other, distance in scene.rows(pairs, scene.run.id, newest, newest)
    } == {(one, other): walked(parents, one, other) for one in parents for other in parents}
    unbroken = scene.value("SELECT trinity.unbroken_since(%s, %s)", scene.run.id, newest)
    assert 0 < unbroken < newest
    assert all(walked(parents, newest, number) == newest - number for number in range(unbroken, newest))
    for limit in (0, 1, 3, 10):
        oldest = scene.value("SELECT trinity.oldest_within(%s, %s, %s)", scene.run.id, newest, limit)
        assert min(number for number in kept if walked(parents, newest, number) <= limit) >= oldest
        assert all(walked(parents, newest, number) > limit for number in range(oldest))


def test_versions_of_every_so_many_steps_and_the_best_one_stay_on_disk(scene: Scene) -> None:
    for version in range(1, 9):
        with scene.database.transaction() as tx:
            tx.execute(
                "INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)"
                " VALUES (%s, %s, %s, %s, '')",
                [scene.run.id, version, version, f"version-{version}"],
            )
    for step, value in enumerate((0.1, 0.9, 0.3, 0.2, 0.5, 0.4, 0.8), 1):
        scene.record(step, {"eval/loss": value})
    scene.record(2, {"eval/loss": 0.05})  # measured again after a restart
    scene.record(5, {"eval/loss": 9.0}, WorkerRole.EXPLORE)  # of version 5, not of step 5

    def stay(**options: Any) -> list[int]:
        with scene.database.transaction() as tx:
            policies.prune(tx, scene.run.id, 2, **options)
            return [policy.version for policy in policies.with_checkpoint(tx, scene.run.id)]

    assert stay(every=3, best="eval/loss") == [8, 7, 6, 3, 0]
    assert stay(every=6, best="-eval/loss") == [8, 7, 6, 3, 0]  # of 3, 6 and 7 that are left
    assert stay(best="eval/loss") == [8, 7, 0]
    assert stay(best="no/metric") == [8, 7, 0]


def test_the_best_version_is_one_whose_own_value_is_a_number(scene: Scene) -> None:
    for version, step in ((1, 1), (2, 2), (3, 3)):
        insert(scene, VERSION, version, step, 0)
    for step, value in enumerate((0.5, math.nan, 0.9), 1):
        scene.record(step, {"eval/loss": value})
    scene.rows(WITHDRAW, 2)
    for version, step in ((4, 3), (5, 4), (6, 5)):
        insert(scene, VERSION, version, step, 1)
    scene.record(4, {"eval/loss": math.inf})
    scene.rows(
        "UPDATE trinity.policy_version SET checkpoint = 'version-' || version"
        " WHERE version > 0 AND withdrawn_at IS NULL RETURNING version"
    )
    with scene.database.transaction() as tx:
        policies.prune(tx, scene.run.id, 2, best="eval/loss")
        assert [policy.version for policy in policies.with_checkpoint(tx, scene.run.id)] == [6, 5, 1, 0]


def insert(scene: Scene, statement: str, *values: int) -> None:
    with scene.database.transaction() as tx:
        tx.execute(statement, [scene.run.id, *values])


def walked(parents: dict[int, int], one: int, other: int) -> int:
    """Steps from each version up to the nearest that both come from."""
    if one == other:
        return 0
    return 1 + (walked(parents, parents[one], other) if one > other else walked(parents, one, parents[other]))
