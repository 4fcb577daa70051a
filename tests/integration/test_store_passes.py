"""Passes over adopted rows: their order, that an index knows it, and which groups are looked at for pairs."""

from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg.rows import DictRow

from tests.integration.test_queries import numbered, plan_nodes
from tests.postgres import new_database
from tests.replays import correct
from tests.rows import (
    Scene,
    at_once,
    demonstration,
    import_records,
    payload,
    preference,
    rolled_back,
    trajectory,
)
from trinity_db.database import connect
from trinity_db.schema.queries import queries, query
from trinity_db.store import offline, processing

# The definitions: who may be drawn, and in which order.
ROWS = """
SELECT e.id
FROM trinity.experience e JOIN trinity.run r ON r.id = e.run_id
WHERE r.id = %s AND e.state = 'ready' AND NOT e.held_out AND e.prompt_length IS NOT NULL
  AND CASE r.config #>> '{algorithm,name}'
      WHEN 'kto' THEN e.reward IS NOT NULL
      ELSE (e.reward IS NULL OR e.reward > 0)
           AND NOT EXISTS (SELECT FROM trinity.preference p WHERE p.rejected_id = e.id) END
ORDER BY e.use_count, hashint8extended(e.source_id, (r.config ->> 'seed')::bigint + e.use_count), e.id
"""
PAIRS = """
SELECT p.id
FROM trinity.preference p
JOIN trinity.run r ON r.id = p.run_id
JOIN trinity.experience chosen ON chosen.id = p.chosen_id
JOIN trinity.experience rejected ON rejected.id = p.rejected_id
WHERE r.id = %s AND p.state = 'ready' AND NOT p.held_out
  AND chosen.prompt_length IS NOT NULL AND rejected.prompt_length IS NOT NULL
  AND (p.source <> 'pair' OR chosen.reward > rejected.reward)
ORDER BY p.use_count, hashint8extended(chosen.source_id, (r.config ->> 'seed')::bigint + p.use_count), p.id
"""
PLACED = "SELECT count(*) FROM trinity.{} WHERE run_id = %s AND state = 'ready' AND place IS NOT NULL"
MARKS = "SELECT count(*) FROM trinity.pairing"
LAST_ID = "SELECT last_value FROM trinity.experience_id_seq"

# One run in the middle of its second epoch over many rows, of which every other is the worse one of a pair.
MANY = """
INSERT INTO trinity.run (name, kind, config, draws) VALUES ('run', 'train', '{"seed": 3}', 'rows');
INSERT INTO trinity.experience (run_id, state) SELECT r.id, 'dropped' FROM trinity.run r;
INSERT INTO trinity.experience (run_id, source_id, state, prompt_length, use_count)
SELECT r.id, NULL, 'ready', 1, n / 2 % 3 / 2 FROM trinity.run r, generate_series(1, 200000) n;
UPDATE trinity.experience SET source_id = id, seed = CASE WHEN id % 2 = 0 THEN 3 END WHERE state = 'ready';
INSERT INTO trinity.preference (run_id, chosen_id, rejected_id, source, use_count, origin_id, seed)
SELECT run_id, id, id + 1, 'import', use_count, id, 3
FROM trinity.experience WHERE id % 2 = 0 AND id < (SELECT max(id) FROM trinity.experience);
ANALYZE
"""


@pytest.fixture(scope="module", params=["18", "15"])
def many_rows(request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[DictRow]]:
    """A store of 200,000 adopted rows on each server."""
    names = {"18": ("server", "template"), "15": ("server15", "template15")}[request.param]
    server, template = (request.getfixturevalue(name) for name in names)
    with new_database(server, template) as url, closing(connect(url, autocommit=True)) as connection:
        connection.execute(MANY)
        yield connection


def order(scene: Scene, name: str) -> list[int]:
    """All that a draw could take, in its order."""
    with scene.database.transaction() as tx:
        return [row["id"] for row in tx.execute(query(name), {"run_id": scene.run.id, "limit": 1000})]


def live_through(scene: Scene, chance: Random) -> None:
    """Something that happens to an offline run, or that people do to its rows."""
    ids = scene.values("SELECT id FROM trinity.experience WHERE run_id = %s ORDER BY id", scene.run.id)
    rated = scene.values(
        "SELECT rollout_id FROM trinity.experience"
        " WHERE run_id = %s AND (reward IS NOT NULL OR draws_labels) ORDER BY id",
        scene.run.id,
    )
    step = scene.value(
        "SELECT coalesce(max(step), 0) + 1 FROM trinity.batch WHERE run_id = %s AND state <> 'reopened'",
        scene.run.id,
    )
    match chance.choice(["rows", "rows", "pairs", "pairs", "judge", "judge", "drop", "pair", "reopen"]):
        case "rows":
            if batch := scene.draw_rows(step, size=chance.randint(1, 9)):
                scene.commit(batch, max_uses=3)
        case "pairs":
            if batch := scene.draw_pairs(step, size=chance.randint(1, 9)):
                scene.commit(batch, max_uses=3)
        case "judge":
            correct(scene, chance.choice(rated), chance.choice([-1.0, 0.0, 0.5, 2.0]), "reward")
        case "drop":
            with scene.database.transaction() as tx:
                offline.drop(tx, scene.run.id, [(chance.choice(ids), "unfit", "somebody said so")])
        case "pair":
            scene.pair()
        case "reopen":
            scene.reopen(version=0)


@pytest.mark.parametrize("algorithm", ["sft", "kto"])
@pytest.mark.parametrize("seed", range(4))
def test_draws_are_in_the_order_that_is_defined_whatever_happens(
    scene: Scene, seed: int, algorithm: str
) -> None:
    chance = Random(seed)
    attempts = [
        trajectory(number % 12, f"attempt {number}", chance.choice([None, -1.0, 0.0, 1.0, 2.0]))
        for number in range(36)
    ]
    import_records(scene.database, "attempts", attempts)
    import_records(scene.database, "pairs", [preference(number) for number in range(20)])
    data = ["attempts", "pairs"]
    run = Scene.open(scene.database, "run over both", data=data, holdout=0.2, seed=seed, algorithm=algorithm)
    with run.database.transaction() as tx:
        texts = offline.unencoded(tx, run.run.id, 0, 1000)
        offline.write_tokens(tx, [(text.id, payload(())) for text in chance.sample(texts, 60)])
    lengths = set()
    for moment in range(40):
        if moment == 20:
            run.encode()
        drawable, pairs = order(run, "draw_rows"), order(run, "draw_pairs")
        assert (drawable, pairs) == (run.values(ROWS, run.run.id), run.values(PAIRS, run.run.id))
        assert run.value(PLACED.format("experience"), run.run.id) == len(drawable), "others stand in the way"
        if moment >= 20:
            assert run.value(PLACED.format("preference"), run.run.id) == len(pairs), "others stand in the way"
        lengths.add((len(drawable), len(pairs)))
        live_through(run, chance)
    assert len(lengths) > 5, "nothing happened"


@pytest.mark.parametrize("name", ["draw_rows", "draw_pairs"])
@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("limit", [64, 512])
def test_a_draw_walks_along_an_index_and_sorts_nothing(
    many_rows: psycopg.Connection[DictRow], name: str, plans: str, limit: int
) -> None:
    run_id = many_rows.execute("SELECT id FROM trinity.run").fetchall()[0]["id"]
    plan = planned(many_rows, name, plans, {"run_id": run_id, "limit": limit})
    table = {"draw_rows": "experience", "draw_pairs": "preference"}[name]
    nodes = list(plan_nodes(plan))
    assert {node["Node Type"] for node in nodes} <= {"Limit", "Index Scan", "Nested Loop"}
    assert f"{table}_place_idx" in {node.get("Index Name") for node in nodes}
    assert max(node["Actual Rows"] for node in nodes) <= limit, "it reads no more than it takes"
    assert plan["Actual Rows"] == limit


def planned(
    connection: psycopg.Connection[DictRow], name: str, plans: str, values: dict[str, int]
) -> dict[str, Any]:
    """The plan of a named query, as it was run."""
    statement = queries()[name]
    ordered = sorted(values, key=statement.index)
    with connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL plan_cache_mode = {plans}")
        connection.execute(f"PREPARE {name} AS {numbered(statement)}", prepare=False)
        given = ", ".join(str(values[value]) for value in ordered)
        found = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {name} ({given})", prepare=False)
        plan: dict[str, Any] = found.fetchall()[0]["QUERY PLAN"][0]["Plan"]
        connection.execute(f"DEALLOCATE {name}")
    return plan


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
