"""What claims, draws, commits and rescues cost in a store of a million rows: no table is read as a whole.

Each statement is planned as the sessions of roles plan it, with its values and without: in a new store, while
the server believes that the tables are as empty as when it last looked, and when it knows better.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import DictRow

from tests.integration.test_queries import FORMS, numbered, plan_nodes
from tests.support.postgres import new_database
from trinity_db.postgres.connection import connect
from trinity_db.schema.queries import query

HOT_TABLES = {
    "experience", "rollout_group", "rollout", "payload", "batch_item", "processing", "reward_event",
    "task", "task_stat",
}  # fmt: skip
# How the names of their indexes begin.
ROWS_FOUND_BY = tuple(f"{table}_" for table in sorted(HOT_TABLES))
MAX_BUFFERS = 20_000  # pages; a commit moves 512 rows. All of experience with its indexes are 50,000

STORE = """
SET session_replication_role = replica;
INSERT INTO trinity.run (name, kind, draws, config)
VALUES ('run', 'train', 'groups',
        '{{"processors": {{"retention": {{"payloads": "1d", "processing": "1d"}}}}}}');
INSERT INTO trinity.retention (run_id, family) VALUES (1, 'payloads'), (1, 'processing');
INSERT INTO trinity.run_setting (run_id, config) VALUES (1, '{{}}');
INSERT INTO trinity.worker (run_id, role, setting_id, host, pid, stopped_at)
SELECT 1, 'process', 1, 'host', n, CASE WHEN n > 3 THEN now() END FROM generate_series(1, 20) n;
INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)
VALUES (1, 0, 0, 'checkpoint', '');
INSERT INTO trinity.taskset (name) VALUES ('tasks');
INSERT INTO trinity.task (taskset_id, key, ordinal, prompt_digest, payload)
SELECT 1, n, n - 1, decode(md5(n::text), 'hex'), '{{"prompt": "", "level": 3}}'
FROM generate_series(1, 8 * {groups}) n;
INSERT INTO trinity.task_stat (run_id, task_id, issued)
SELECT 1, n, 1 FROM generate_series(1, 8 * {groups}) n;
INSERT INTO trinity.task_pass (run_id, taskset_id, issued, walk, size, position)
VALUES (1, 1, 8 * {groups}, 'shuffled', 8 * {groups}, 64);

INSERT INTO trinity.rollout_group
    (run_id, task_id, state, expected, arrived, version_min, version_max, worker_id, completed_at)
SELECT 1, 1 + n % 500, s.state::trinity.group_state, 8, 8, 0, 0,
       CASE WHEN s.state IN ('open', 'leased') THEN 1 END,
       CASE WHEN s.state <> 'open' THEN now() END
FROM generate_series(1, {groups}) n,
     LATERAL (SELECT CASE WHEN n > {groups} - 100 THEN 'open' WHEN n > {groups} - 2000 THEN 'complete'
                          WHEN n > {groups} - 4000 THEN 'ready' WHEN n > {groups} - 4064 THEN 'leased'
                          ELSE 'trained' END AS state) s;
INSERT INTO trinity.rollout (run_id, group_id, ordinal, attempt, state)
SELECT 1, 1 + n / 8, n % 8, 1, 'finished' FROM generate_series(0, 8 * {groups} - 1) n;
INSERT INTO trinity.experience
    (run_id, group_id, rollout_id, state, version_min, version_max, reward, worker_id, attempt, use_count)
SELECT 1, g.id, 8 * (g.id - 1) + n,
       CASE g.state WHEN 'open' THEN 'raw'
                    WHEN 'complete' THEN (ARRAY['raw', 'clean', 'scored'])[1 + g.id % 3]
                    ELSE g.state::text END::trinity.experience_state,
       0, 0, n % 2, CASE WHEN g.state = 'leased' OR g.id % 300 = 0 AND g.state = 'complete' THEN 1 END, 1, 0
FROM trinity.rollout_group g, generate_series(1, 8) n ORDER BY g.id, n;
INSERT INTO trinity.experience_text (experience_id, prompt, response)
SELECT n, '', '' FROM generate_series(1, 8 * {groups}) n;
INSERT INTO trinity.payload (experience_id, codec, num_tokens, archive_row)
SELECT n, 'compact-1', 10, n FROM generate_series(1, 8 * {groups}) n;
INSERT INTO trinity.batch
    (run_id, step, worker_id, setting_id, policy_version, size, sampler, seed, query, state, floor)
SELECT 1, n, 1, 1, 0, 64, 'fifo', 0, '',
       CASE WHEN n = {groups} / 64 - 62 THEN 'leased' ELSE 'committed' END::trinity.batch_state, 64 * n - 63
FROM generate_series(1, {groups} / 64 - 62) n;
INSERT INTO trinity.batch_item (batch_id, ordinal, experience_id)
SELECT 1 + n / 512, n % 512, n + 1 FROM generate_series(0, 512 * ({groups} / 64 - 62) - 1) n;
SET session_replication_role = origin;
"""


@dataclass(frozen=True)
class Store:
    """A store whose rows are numbered from 1 on, eight to a group."""

    session: psycopg.Connection[DictRow]
    groups: int

    def values(self) -> dict[str, Any]:
        """Something that fits, for each parameter of the statements."""
        rows = [8 * self.groups - 8 * 100 - n for n in range(64)]
        groups = [self.groups - 2001 - n for n in range(64)]
        columns = {
            "attempts": [1] * 64,
            "outcomes": ["passed"] * 64,
            "errors": [None] * 64,
            "steps": [None] * 64,
            "details": [None] * 64,
        }
        last = self.groups // 64 - 62
        return columns | {
            "run_id": 1, "worker_id": 1, "limit": 64, "size": 64, "after": 8 * (self.groups - 2000),
            "suspect": 2, "keep": [], "keep_groups": [], "ids": rows, "rewarded": rows, "among": None,
            "group_ids": groups, "experience_ids": rows, "rollout_ids": rows, "batch_id": last,
            "batch_ids": [last],
            "processor": "clean", "processor_version": 1, "requires_reward": None, "wait_seconds": None,
            "min_group_size": 2, "drop_equal_rewards": True, "solved_reward": 1.0, "selection": "positives",
            "version": 0, "versions_ahead": 0, "max_staleness": 1, "max_uses": 1, "keeps_adopted": True,
            "lease_seconds": 30.0,
            "lowest": -60, "alpha": 0.6, "few": 64, "probes": 200, "crowd": 16, "places": 62, "step": 1,
            "seed": 1, "evaluated": False, "taskset_id": 1, "taskset_ids": [1], "positions": list(range(64)),
            "ordinals": [100 * n for n in range(64)], "level": 3.0, "position": 4 * self.groups,
            "task_ids": [1 + 100 * n for n in range(64)], "group_size": 8, "spare": 0,
            "name": "tasks", "keys": ["1", "2"], "digest": bytes(16),
            "family": "payloads", "until": 8 * (self.groups - 2000) + 5000, "before": None, "oldest": 1,
        }  # fmt: skip


def filled(server: str, template: str, groups: int) -> Iterator[Store]:
    with new_database(server, template) as url, closing(connect(url, autocommit=True)) as session:
        for table in sorted(HOT_TABLES):
            session.execute(f"ALTER TABLE trinity.{table} SET (autovacuum_enabled = off)".encode())
        session.execute(query("plan_for_growth"), {"is_local": False})
        yield Store(session, groups)


@pytest.fixture(scope="module")
def store(server: str, template: str) -> Iterator[Store]:
    """Empty yet, on the newest server."""
    yield from filled(server, template, 125_000)


@pytest.fixture(scope="module")
def store15(server15: str, template15: str) -> Iterator[Store]:
    """The same on the oldest, smaller."""
    yield from filled(server15, template15, 25_000)


STATEMENTS = (
    "claim_rows to clean", "claim_rows to score", "claim_suspect to clean", "claim_suspect to score",
    "read_claimed to clean", "read_claimed to score", "hold_rows", "pass_rows to clean", "pass_rows to score",
    "drop_held", "release_held", "record_processing", "record_refused", "count_failures",
    "pick_groups", "settle_groups", "drop_unselected", "ready_members", "drop_members", "count_unprocessed",
    "all_judged", "count_pace", "claim_abandoned_groups", "hold_groups", "count_settled",
    "woken_members", "read_passes", "tasks_at", "harder_tasks", "start_groups",
    "find_tasks", "find_prompt",
    "lock_groups", "lock_new_copies", "lock_rewarded", "refresh_rewards", "refresh_groups",
    "stale_groups", "expire_groups", "expire_members", "draw_groups", "draw_newest", "draw_by_chance",
    "choose_members", "count_drawable",
    "lock_batch_groups", "lock_batch_rows", "lease_experiences", "lease_groups", "lease_members",
    "read_batch", "commit_batch", "use_experiences", "use_groups", "reopen_experiences", "reopen_groups",
    "release_leases", "release_own_leases",
    "continue_sweep", "take_sweep", "runs_of_experiences", "prunable_payloads", "prunable_processing",
    "move_sweep",
)  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize("which", ["store", "store15"])
def test_no_statement_of_the_flow_reads_a_hot_table_from_end_to_end(
    request: pytest.FixtureRequest, which: str
) -> None:
    store: Store = request.getfixturevalue(which)
    session = store.session
    found = offences(store, "a new store", ("force_generic_plan",), "COSTS OFF")
    session.execute("ANALYZE")
    session.execute(STORE.format(groups=store.groups).encode(), prepare=False)
    found += offences(store, "statistics of an empty store", ("force_generic_plan", "force_custom_plan"))
    for table in sorted(HOT_TABLES):
        session.execute(f"ANALYZE trinity.{table}".encode())
    found += offences(store, "new statistics", ("force_generic_plan", "force_custom_plan"))
    assert found == []


@pytest.mark.timeout(600)
def test_what_may_be_drawn_is_found_by_indexes_whatever_is_asked_of_it(store15: Store) -> None:
    """It costs so much for each group that may be drawn, and nothing for those that are done with."""
    text = query("drawable_now")
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)))
    values = [literal(store15.values()[name]) for name in names]
    for mode in ("force_generic_plan", "force_custom_plan"):
        found = explain(store15.session, numbered(text), values, mode, "COSTS OFF")
        assert [offence for offence in found if "sort" not in offence] == []


def offences(
    store: Store, when: str, modes: tuple[str, ...], option: str = "ANALYZE, BUFFERS, TIMING OFF"
) -> list[str]:
    """Statements that read too much, and how; explained with these options."""
    found = []
    for name in STATEMENTS:
        statement = FORMS[name]
        names = list(dict.fromkeys(re.findall(r"%\((\w+)\)[sb]", statement)))
        for mode in modes:
            values = [literal(store.values()[parameter]) for parameter in names]
            for offence in explain(store.session, numbered(statement), values, mode, option):
                found.append(f"{name}, {when}, {mode}: {offence}")
    return found


def explain(
    session: psycopg.Connection[DictRow], statement: str, values: list[sql.Composable], mode: str, option: str
) -> list[str]:
    """What a statement's plan has that it should not have. One that was run is undone."""
    arguments = sql.SQL("({})").format(sql.SQL(", ").join(values)) if values else sql.SQL("")
    with session.transaction(force_rollback=True):
        session.execute(sql.SQL("SET LOCAL plan_cache_mode = {}").format(sql.SQL(mode)))
        session.execute(f"PREPARE it AS {statement}".encode(), prepare=False)
        [row] = session.execute(
            sql.SQL("EXPLAIN ({}, FORMAT JSON) EXECUTE it{}").format(sql.SQL(option), arguments),
            prepare=False,
        ).fetchall()
        session.execute("DEALLOCATE it", prepare=False)
    plan = row["QUERY PLAN"][0]["Plan"]
    buffers = plan.get("Shared Hit Blocks", 0) + plan.get("Shared Read Blocks", 0)
    found = [f"{buffers} pages"] if buffers > MAX_BUFFERS else []
    for node in plan_nodes(plan):
        kind, table = node["Node Type"], node.get("Relation Name")
        if table in HOT_TABLES and kind == "Seq Scan":
            found.append(f"Seq Scan on {table}")
        index = node.get("Index Name", "")
        if index.startswith(ROWS_FOUND_BY) and "Index Cond" not in node and "worker" not in index:
            found.append(f"all of {index}")  # what workers hold is little
        if index == "rollout_group_chance_idx" and kind != "Index Only Scan":
            found.append(f"{kind} where the index alone would do")
        if kind == "Sort" and node.get("Actual Rows", 0) * node.get("Actual Loops", 0) > 1000:
            found.append(f"a sort of {node['Actual Rows']} rows")
    return found


def literal(value: Any) -> sql.Composable:
    """A value as it stands in a statement; the server finds its type."""
    if isinstance(value, list):
        return sql.Literal("{" + ",".join("NULL" if item is None else str(item) for item in value) + "}")
    return sql.Literal(value)
