"""Passes over adopted rows: which rows they have, and which groups are looked at for pairs."""

from tests.support.replays import correct
from tests.support.rows import (
    Scene,
    at_once,
    demonstration,
    import_records,
    preference,
    rolled_back,
    trajectory,
)
from trinity_db.schema.queries import query
from trinity_db.store import processing

MARKS = "SELECT count(*) FROM trinity.pairing"
LAST_ID = "SELECT last_value FROM trinity.experience_id_seq"


def order(scene: Scene, name: str) -> list[int]:
    """All that a draw could take, in its order."""
    with scene.database.transaction() as tx:
        return [row["id"] for row in tx.execute(query(name), {"run_id": scene.run.id, "limit": 1000})]


def test_joining_a_run_tries_no_row_again_and_finds_those_that_came_since(scene: Scene) -> None:
    import_records(scene.database, "set", [demonstration(number) for number in range(5)])
    import_records(scene.database, "pairs", [preference(number) for number in range(5)])
    run = Scene.open(scene.database, "run", data=["set", "pairs"])
    counts = (
        "SELECT (SELECT count(*) FROM trinity.experience WHERE run_id = %s),"
        " (SELECT count(*) FROM trinity.preference WHERE run_id = %s)"
    )
    last = run.value(LAST_ID)
    run.adopt_again("set", "pairs")
    assert run.value(LAST_ID) == last
    assert run.rows(counts, run.run.id, run.run.id) == [(15, 5)]
    import_records(scene.database, "set", [demonstration(number) for number in range(4, 8)])
    import_records(scene.database, "pairs", [preference(number) for number in range(4, 7)])
    run.adopt_again("set", "pairs")
    assert run.rows(counts, run.run.id, run.run.id) == [(15 + 3 + 4, 7)]


def test_a_pair_that_the_run_derived_hides_none_that_is_imported_later(scene: Scene) -> None:
    import_records(scene.database, "set", [trajectory(0, "good"), trajectory(0, "bad")])
    run = Scene.open(scene.database, "run", data=["set"])
    good, bad = scene.values("SELECT id FROM trinity.rollout ORDER BY id")
    correct(run, good, 1.0)
    correct(run, bad, 0.0)
    assert run.pair() == 1
    # The last one is the pair that was derived.
    import_records(scene.database, "set", [preference(1), preference(2), preference(0)])
    run.adopt_again("set")
    sources = "SELECT source FROM trinity.preference WHERE run_id = %s ORDER BY source"
    assert run.values(sources, run.run.id) == ["import", "import", "pair"]


def test_a_pair_comes_back_when_rewards_agree_again_also_where_a_row_has_expired(scene: Scene) -> None:
    scene.make_ready(1, rewards=(1.0, 0.0))
    assert scene.pair() == 1
    _, worse = scene.values("SELECT id FROM trinity.rollout ORDER BY id")
    in_passes = "SELECT seed IS NOT NULL FROM trinity.preference"
    correct(scene, worse, 2.0)
    assert scene.values(in_passes) == [False]
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = 'expired'")
    correct(scene, worse, 0.0)
    assert scene.values(in_passes) == [True]


def test_a_row_that_a_later_import_calls_worse_is_not_imitated_any_more(scene: Scene) -> None:
    import_records(scene.database, "set", [trajectory(0, "bad"), trajectory(0, "other")])
    run = Scene.open(scene.database, "run", data=["set"])
    run.encode()
    assert len(order(run, "draw_rows")) == 2
    import_records(scene.database, "set", [preference(0)])
    run.adopt_again("set")
    assert len(order(run, "draw_rows")) == 1


def test_a_group_is_looked_at_for_pairs_when_something_changed_in_it_and_not_otherwise(scene: Scene) -> None:
    scene.make_ready(2, rewards=(1.0, 0.0, 0.5))
    assert (scene.value(MARKS), scene.pair(margin=0.1), scene.value(MARKS)) == (2, 2, 0)
    first, *_ = scene.values("SELECT id FROM trinity.rollout ORDER BY id")
    correct(scene, first, 1.0)
    assert scene.value(MARKS) == 0, "it has this reward already"
    correct(scene, first, -1.0)
    assert scene.value(MARKS) == 1
    with rolled_back(scene.database) as tx:
        processing.pair_groups(tx, scene.run.id, 0.1, limit=10)
    assert scene.value(MARKS) == 1, "what was undone is to be done"
    assert (scene.pair(margin=0.1), scene.value(MARKS)) == (1, 0)


def test_processors_that_pair_at_once_make_each_pair_once(scene: Scene) -> None:
    scene.make_ready(8, rewards=(1.0, 0.0))
    made = at_once(
        scene.database, [lambda tx: processing.pair_groups(tx, scene.run.id, 0.0, limit=5) for _ in range(3)]
    )
    assert sum(pairs or 0 for pairs in made) + scene.pair() == 8
    assert scene.value("SELECT count(*) FROM trinity.preference") == 8
    assert scene.value(MARKS) == 0


def test_a_run_that_derives_no_pairs_remembers_no_groups(scene: Scene) -> None:
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.run SET config = '{}'")
    scene.make_ready(2)
    assert scene.value(MARKS) == 0
