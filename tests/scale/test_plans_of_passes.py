"""What a draw from a pass costs in a store of 200,000 adopted rows: an index knows the order."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.rows import DictRow

from tests.integration.test_queries import numbered, plan_nodes
from tests.postgres import new_database
from trinity_db.database import connect
from trinity_db.schema.queries import queries

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
