"""What a draw from a pass, and a label, cost in a store of 200,000 adopted rows: an index knows the order."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.rows import DictRow

from tests.integration.test_queries import numbered, plan_nodes
from tests.support.postgres import new_database
from trinity_db.postgres.connection import connect
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
MAX_BUFFERS = 2_000  # pages; all of experience are several thousand


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


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
def test_labels_that_follow_from_a_pair_cost_as_much_in_a_store_of_any_size(
    many_rows: psycopg.Connection[DictRow], plans: str
) -> None:
    with many_rows.transaction(force_rollback=True):
        pair = many_rows.execute(
            "UPDATE trinity.preference SET gives_labels = true"
            " WHERE id = (SELECT min(id) FROM trinity.preference) RETURNING chosen_id, rejected_id"
        ).fetchall()[0]
        ids = [pair["chosen_id"], pair["rejected_id"]]
        many_rows.execute("UPDATE trinity.experience SET draws_labels = true WHERE id = ANY(%s)", [ids])
        many_rows.execute(f"SET LOCAL plan_cache_mode = {plans}")
        following = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {queries()['follow_pairs']}"
        plan = many_rows.execute(following, {"ids": ids}).fetchall()[0]["QUERY PLAN"][0]["Plan"]
        said = "SELECT reward FROM trinity.experience WHERE id = ANY(%s) ORDER BY id"
        assert [row["reward"] for row in many_rows.execute(said, [ids])] == [1.0, 0.0]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < MAX_BUFFERS


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
def test_a_verdict_that_is_taken_back_reads_the_statements_about_its_row_alone(
    many_rows: psycopg.Connection[DictRow], plans: str
) -> None:
    with many_rows.transaction(force_rollback=True):
        [review] = many_rows.execute(
            "INSERT INTO trinity.review"
            " (run_id, experience_id, source, name, weight, wanted, lowest, highest)"
            " SELECT run_id, max(id), 'human', 'human', 1, 1, 0, 1 FROM trinity.experience GROUP BY run_id"
            " RETURNING id, run_id, experience_id"
        ).fetchall()
        event = (
            "INSERT INTO trinity.reward_event (run_id, experience_id, source, name, value)"
            " VALUES (%(run_id)s, %(experience_id)s, 'human', 'human', 0.5) RETURNING id AS event_id"
        )
        written = many_rows.execute(event, review).fetchall()
        many_rows.execute(f"SET LOCAL plan_cache_mode = {plans}")
        values = {"review_id": review["id"]}
        finding = queries()["find_correction"]
        assert many_rows.execute(finding, values).fetchall() == written
        plan = many_rows.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {finding}", values).fetchall()
    top = plan[0]["QUERY PLAN"][0]["Plan"]
    assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < MAX_BUFFERS


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
