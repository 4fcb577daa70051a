"""The named queries: valid on both servers, used, explained, and served by the indexes made for them."""

import ast
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import DictRow

import trinity_db
from tests.support.postgres import new_database
from trinity_db.postgres.connection import connect
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.lists import lists
from trinity_db.schema.queries import queries, query
from trinity_db.store import processing

ROOT = Path(trinity_db.__file__).parent.parent
SOURCES = sorted(
    path
    for folder in ("trinity_db", "explorer", "processors", "trainer")
    for path in (ROOT / folder).rglob("*.py")
)


@pytest.fixture(scope="module", params=["18", "15"])
def connection(request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[DictRow]]:
    """A connection to an empty store on each server."""
    names = {"18": ("server", "template"), "15": ("server15", "template15")}[request.param]
    server, template = (request.getfixturevalue(name) for name in names)
    with new_database(server, template) as url, closing(connect(url)) as connection:
        yield connection


@pytest.fixture(scope="module")
def busy_store(server: str, template: str) -> Iterator[psycopg.Connection[DictRow]]:
    """A store of 20,000 rows: a few hundred in each state on the way, the rest trained."""
    with new_database(server, template) as url, closing(connect(url, autocommit=True)) as connection:
        connection.execute(BUSY_STORE)
        connection.execute("ANALYZE")
        yield connection


# 2,500 groups of eight; the last few are on their way, in the states of their groups.
BUSY_STORE = """
INSERT INTO trinity.run (name, kind, config, draws)
SELECT 'run ' || n, 'train', '{}', 'groups' FROM generate_series(1, 2) n;
INSERT INTO trinity.run_setting (run_id, config) SELECT id, config FROM trinity.run;
INSERT INTO trinity.worker (run_id, role, setting_id, host, pid)
SELECT s.run_id, 'process', s.id, 'host', n FROM trinity.run_setting s, generate_series(1, 20) n;
INSERT INTO trinity.policy_version (run_id, version, step, checkpoint_hash)
SELECT id, 0, 0, '' FROM trinity.run;
INSERT INTO trinity.taskset (name) VALUES ('tasks');
INSERT INTO trinity.task (taskset_id, key, ordinal, prompt_digest, payload)
SELECT s.id, n, n, '', '{"prompt": ""}' FROM trinity.taskset s, generate_series(1, 500) n;

INSERT INTO trinity.rollout_group
    (run_id, task_id, state, expected, arrived, version_min, worker_id, completed_at)
SELECT (SELECT min(id) + n % 2 FROM trinity.run), (SELECT min(id) + n % 500 FROM trinity.task),
       s.state::trinity.group_state, 8, 0, 0,
       CASE WHEN n > 2490 THEN (SELECT min(id) FROM trinity.worker) END,
       CASE WHEN s.state <> 'open' THEN now() END
FROM generate_series(1, 2500) n,
     LATERAL (SELECT CASE WHEN n > 2460 THEN 'open' WHEN n > 2420 THEN 'complete' WHEN n > 2380 THEN 'ready'
                          WHEN n > 2360 THEN 'leased' ELSE 'trained' END AS state) s;
INSERT INTO trinity.rollout (run_id, group_id, ordinal, attempt, state)
SELECT g.run_id, g.id, n, 1, 'finished' FROM trinity.rollout_group g, generate_series(0, 7) n
ORDER BY g.id, n;
INSERT INTO trinity.experience
    (run_id, group_id, rollout_id, state, version_min, version_max, reward, worker_id)
SELECT m.run_id, m.group_id, m.id,
       CASE g.state WHEN 'open' THEN 'raw'
                    WHEN 'complete' THEN (ARRAY['raw', 'clean', 'scored'])[1 + m.id % 3]
                    ELSE g.state::text END::trinity.experience_state,
       0, 0, random(), CASE WHEN g.state = 'leased' THEN (SELECT min(id) FROM trinity.worker) END
FROM trinity.rollout m JOIN trinity.rollout_group g ON g.id = m.group_id
ORDER BY m.id;

INSERT INTO trinity.reward_event (run_id, rollout_id, source, name, value)
SELECT run_id, id, 'score', 'score', 1 FROM trinity.rollout;
INSERT INTO trinity.preference (run_id, chosen_id, rejected_id, source, state)
SELECT e.run_id, e.id, e.id + 1, 'pair', CASE WHEN e.state = 'ready' THEN e.state ELSE 'trained' END
FROM trinity.experience e WHERE e.id % 8 = 1 AND e.state IN ('ready', 'trained');
INSERT INTO trinity.batch (run_id, step, worker_id, setting_id, policy_version, size, sampler, seed, query)
SELECT s.run_id, n, (SELECT min(id) FROM trinity.worker), s.id, 0, 20, 'fifo', 0, ''
FROM trinity.run_setting s, generate_series(1, 60) n;
INSERT INTO trinity.batch_item (batch_id, ordinal, experience_id)
SELECT b.id, row_number() OVER (PARTITION BY b.id), e.id
FROM trinity.experience e JOIN trinity.batch b ON b.id = (SELECT min(id) FROM trinity.batch) + e.id % 120;
"""

# What claims, draws and keeps count while rows flow, and the index that finds its rows.
HOT = {
    "claim_abandoned_groups": "rollout_group_live_idx",
    "claim_rows to clean": "experience_open_idx",
    "claim_rows to score": "experience_open_idx",
    "claim_suspect to clean": "experience_open_idx",
    "claim_suspect to score": "experience_open_idx",
    "count_pace": "rollout_group_live_idx",
    "draw_by_chance": "rollout_group_chance_idx",
    "draw_groups": "rollout_group_live_idx",
    "draw_newest": "rollout_group_live_idx",
    "draw_adopted_groups": "rollout_group_place_idx",
    "draw_pairs": "preference_place_idx",
    "draw_rows": "experience_place_idx",
    "drop_partial_attempts": "experience_group_idx",
    "expire_members": "experience_group_idx",
    "lock_rewarded": "experience_rollout",
    "pair_groups": "experience_group_idx",
    "pick_groups": "rollout_group_live_idx",
    "read_attempts": "experience_pkey",
    "read_claimed to score": "experience_rollout_key",
    "refresh_rewards": "reward_event_rollout",
    "release_leases": "experience_judge_idx",
    "release_own_leases": "experience_judge_idx",
    "run_progress": "batch_item_pkey",
    "settle_groups": "experience_group_idx",
    "stale_groups": "rollout_group_version_idx",
    "write_rollouts": "rollout_group_id_ordinal_attempt_key",
    "write_steps": "rollout_group_id_ordinal_attempt_key",
}


def forms() -> Iterator[tuple[str, str]]:
    """Each query as it is sent, by name: once, or for each stage with its states and columns."""
    stages = lists.stages(lists.load(ProcessorsConfig()))
    for name in queries():
        states = [key for key in ("state", "next_state") if f"%({key})s" in query(name)]
        for stage in stages if states else ():
            literals = {key: getattr(stage, key) for key in states}
            yield f"{name} to {stage.processor}", query(name, **literals)
        if not states:
            yield name, query(name)
    for stage in stages:
        yield f"read_claimed to {stage.processor}", processing.reading(stage.columns)


FORMS = dict(forms())


@pytest.mark.parametrize("name", sorted(FORMS))
def test_every_query_fits_the_tables(connection: psycopg.Connection[DictRow], name: str) -> None:
    statement = numbered(FORMS[name])
    with connection.transaction(force_rollback=True):
        connection.execute(f"PREPARE it AS {statement}", prepare=False)
        prepared = connection.execute("SELECT name FROM pg_prepared_statements WHERE name = 'it'").fetchall()
        assert len(prepared) == 1
        connection.execute("DEALLOCATE it")
        if connection.info.server_version >= 160000:
            assert connection.execute(f"EXPLAIN (GENERIC_PLAN) {statement}", prepare=False).fetchall()


def test_every_query_is_used() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES]
    names = {name for tree in trees for name in strings(tree)}
    names |= {prefix + name for tree in trees for prefix in prefixes(tree) for name in strings(tree)}
    assert set(queries()) - names == set()


def test_every_query_that_is_asked_for_exists() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES]
    asked = {name for tree in trees for argument in arguments(tree) for name in strings(argument)}
    assert len(asked) > 50
    assert asked - set(queries()) - {prefix for tree in trees for prefix in prefixes(tree)} == set()


@pytest.mark.parametrize("name", sorted(queries()))
def test_a_query_that_is_not_plain_says_what_it_guarantees(name: str) -> None:
    text = queries()[name]
    is_plain = len(text.splitlines()) < 10 and not re.search(r"\bWITH\b|\bFOR NO KEY UPDATE\b", text)
    assert is_plain or text.startswith("-- "), text


def test_queries_stand_in_lines_that_fit_a_screen() -> None:
    assert {name for name, text in queries().items() if max(map(len, text.splitlines())) > 130} == set()


def test_psycopg_remembers_how_it_reads_each_query() -> None:
    assert {name for name in queries() if len(query(name)) > 4096} == set()


@pytest.mark.parametrize("name", sorted(HOT))
def test_a_query_of_the_hot_path_reads_no_table_from_end_to_end(
    busy_store: psycopg.Connection[DictRow], name: str
) -> None:
    statement = numbered(FORMS[name])
    rows = busy_store.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {statement}", prepare=False).fetchall()
    nodes = list(plan_nodes(rows[0]["QUERY PLAN"][0]["Plan"]))
    scanned = {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"}
    assert scanned.isdisjoint({"experience", "rollout_group", "rollout", "reward_event"})
    assert [node["Index Name"] for node in nodes if node.get("Index Name", "").startswith(HOT[name])]


@pytest.mark.parametrize(
    ("steps", "tables"),
    [
        ([], {"experience", "processing"}),
        (["not_empty"], {"experience", "processing", "experience_text"}),
        (["finite_logprobs"], {"experience", "processing", "payload"}),
        (["not_truncated"], {"experience", "processing", "rollout"}),
    ],
)
def test_what_no_step_reads_is_not_read(
    busy_store: psycopg.Connection[DictRow], steps: list[str], tables: set[str]
) -> None:
    config = ProcessorsConfig.model_validate({"clean": steps})
    clean, _ = lists.stages(lists.load(config))
    statement = numbered(processing.reading(clean.columns))
    rows = busy_store.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {statement}", prepare=False).fetchall()
    nodes = plan_nodes(rows[0]["QUERY PLAN"][0]["Plan"])
    assert {node["Relation Name"] for node in nodes if "Relation Name" in node} == tables


def test_every_column_that_steps_may_read_can_be_read(connection: psycopg.Connection[DictRow]) -> None:
    assert len(processing.columns()) > 15
    assert all(processing.columns().values()), "each has its meaning"
    connection.execute(numbered(processing.reading(tuple(processing.columns()))).replace("$1", "'{}'"))


def numbered(statement: str) -> str:
    """A query with the server's own placeholders in place of psycopg's."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    return re.sub(r"%\((\w+)\)[sb]", number, statement).replace("%%", "%")


def strings(tree: ast.AST) -> Iterator[str]:
    """The string constants in a tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def arguments(tree: ast.AST) -> Iterator[ast.expr]:
    """What `query` is called with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "query":
            yield from node.args


def prefixes(tree: ast.AST) -> set[str]:
    """The beginnings of query names that are put together, as in f"show_{part}"."""
    put_together = [argument for argument in arguments(tree) if isinstance(argument, ast.JoinedStr)]
    return {name for argument in put_together for name in strings(argument.values[0])}


def plan_nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A plan's nodes, from the top."""
    yield node
    for child in node.get("Plans", []):
        yield from plan_nodes(child)
