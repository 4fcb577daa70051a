"""Passes over adopted rows: an index knows their order, and which groups are looked at for pairs."""

from collections.abc import Iterator
from contextlib import closing
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
    preference,
    rolled_back,
    trajectory,
)
from trinity_db.database import connect
from trinity_db.schema.queries import queries, query
from trinity_db.store import processing

MARKS = "SELECT count(*) FROM trinity.pairing"
LAST_ID = "SELECT last_value FROM trinity.experience_id_seq"

# One run in the middle of its second epoch over many rows; every other one is the worse one of a pair.
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
