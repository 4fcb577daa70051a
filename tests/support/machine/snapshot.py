"""What is read back of a run to be compared with the model, and what must never be found in it."""

import math
from typing import Any

from psycopg.rows import tuple_row

from tests.support.machine.history import Table
from trinity_db.postgres.connection import Database

Snapshot = dict[str, tuple[int, str]]
"""Tables by name: how many columns are the key, and the statement, whose only value is the run."""

HISTORY: Snapshot = {
    "versions": (
        1,
        "SELECT version, step, checkpoint_hash, checkpoint IS NOT NULL, withdrawn_at IS NOT NULL"
        " FROM trinity.policy_version WHERE run_id = %s",
    ),
    "batches": (
        1,
        "SELECT id, step, state, worker_id, policy_version, included_version"
        " FROM trinity.batch WHERE run_id = %s",
    ),
}

ONLINE: Snapshot = HISTORY | {
    "items": (
        2,
        "SELECT i.batch_id, i.ordinal, i.experience_id, i.reward, i.advantage, i.staleness"
        " FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id WHERE b.run_id = %s",
    ),
    "leases": (
        1,
        "SELECT id, state, worker_id, attempt, use_count FROM trinity.experience WHERE run_id = %s",
    ),
    "rows": (
        1,
        "SELECT e.id, m.group_id, m.ordinal, m.attempt, e.reward, e.version_min, x.response, p.data"
        " FROM trinity.experience e JOIN trinity.rollout m ON m.id = e.rollout_id"
        " JOIN trinity.experience_text x ON x.experience_id = e.id"
        " JOIN trinity.payload p ON p.experience_id = e.id WHERE e.run_id = %s",
    ),
    "groups": (
        1,
        "SELECT id, task_id, state, worker_id, attempt, expected, arrived, failed, version_min,"
        " version_max, use_count"
        " FROM trinity.rollout_group WHERE run_id = %s",
    ),
    "statistics": (
        1,
        "SELECT id, reward_count, reward_mean, reward_variance FROM trinity.rollout_group"
        " WHERE run_id = %s AND state IN ('ready', 'leased', 'trained')",
    ),
    "rollouts": (
        3,
        "SELECT group_id, ordinal, attempt, state, worker_id FROM trinity.rollout WHERE run_id = %s",
    ),
    "processing": (
        3,
        "SELECT p.experience_id, p.processor, p.attempt, p.outcome, p.step"
        " FROM trinity.processing p JOIN trinity.experience e ON e.id = p.experience_id WHERE e.run_id = %s",
    ),
    "drops": (
        2,
        "SELECT CASE WHEN group_id IS NULL THEN 'row' ELSE 'group' END, coalesce(group_id, experience_id),"
        ' stage, step, reason FROM trinity."drop" WHERE run_id = %s',
    ),
    "tasks": (
        1,
        "SELECT task_id, issued, scored, solved, alpha, beta FROM trinity.task_stat WHERE run_id = %s",
    ),
}
ROWS: Snapshot = HISTORY | {
    "items": (
        2,
        "SELECT i.batch_id, i.ordinal, i.experience_id, i.reward, i.advantage, i.staleness"
        " FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id WHERE b.run_id = %s",
    ),
    "leases": (
        1,
        "SELECT id, state, worker_id, attempt, use_count FROM trinity.experience WHERE run_id = %s",
    ),
}
GROUPS: Snapshot = ROWS | {
    "groups": (1, "SELECT id, state, worker_id, use_count FROM trinity.rollout_group WHERE run_id = %s"),
}
PAIRS: Snapshot = HISTORY | {
    "items": (
        2,
        "SELECT i.batch_id, i.ordinal / 2, i.preference_id, i.reward, i.advantage, i.staleness"
        " FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id"
        " WHERE b.run_id = %s AND i.ordinal %% 2 = 0",
    ),
    "leases": (
        1,
        "SELECT id, state, worker_id, attempt, use_count FROM trinity.preference WHERE run_id = %s",
    ),
}
ROWS_AND_PAIRS: Snapshot = HISTORY | {
    "items": (
        2,
        "SELECT i.batch_id, CASE WHEN i.preference_id IS NULL THEN i.ordinal ELSE i.ordinal / 2 END,"
        " coalesce(-i.preference_id, i.experience_id), i.reward, i.advantage, i.staleness"
        " FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id"
        " WHERE b.run_id = %s AND (i.preference_id IS NULL OR i.ordinal %% 2 = 0)",
    ),
    "leases": (
        1,
        "SELECT used.* FROM trinity.run r CROSS JOIN LATERAL ("
        "SELECT id, state, worker_id, attempt, use_count FROM trinity.experience WHERE run_id = r.id"
        " UNION ALL"
        " SELECT -id, state, worker_id, attempt, use_count FROM trinity.preference WHERE run_id = r.id"
        ") used WHERE r.id = %s",
    ),
}
"""Rows and pairs of one run; a pair has its id with a minus before it."""

# What must never be found, asked of SQL alone; each statement has the run's id as its only value.
BROKEN_PROMISES = """
SELECT 'a rollout was accepted twice', m.group_id
FROM trinity.rollout m WHERE m.run_id = %(run_id)s AND m.state <> 'refused'
GROUP BY m.group_id, m.ordinal HAVING count(*) > 1
UNION ALL
SELECT 'uses are not those of committed batches', e.id
FROM trinity.experience e
LEFT JOIN trinity.batch_item i ON i.experience_id = e.id AND i.preference_id IS NULL
LEFT JOIN trinity.batch b ON b.id = i.batch_id AND b.state = 'committed'
WHERE e.run_id = %(run_id)s GROUP BY e.id, e.use_count HAVING count(b.id) <> e.use_count
UNION ALL
SELECT 'uses of a group are not those of committed batches', g.id
FROM trinity.rollout_group g
LEFT JOIN trinity.experience e ON e.group_id = g.id AND e.run_id = g.run_id
LEFT JOIN trinity.batch_item i ON i.experience_id = e.id
LEFT JOIN trinity.batch b ON b.id = i.batch_id AND b.state = 'committed'
WHERE g.run_id = %(run_id)s GROUP BY g.id HAVING count(DISTINCT b.id) <> g.use_count
UNION ALL
SELECT 'uses of a pair are not those of committed batches', p.id
FROM trinity.preference p
LEFT JOIN trinity.batch_item i ON i.preference_id = p.id
LEFT JOIN trinity.batch b ON b.id = i.batch_id AND b.state = 'committed'
WHERE p.run_id = %(run_id)s GROUP BY p.id HAVING count(DISTINCT b.id) <> p.use_count
UNION ALL
SELECT 'a pass used a row twice, or a pair', coalesce(i.preference_id, i.experience_id)
FROM trinity.batch b JOIN trinity.batch_item i ON i.batch_id = b.id
WHERE b.run_id = %(run_id)s AND b.state = 'committed' AND b.sampler IN ('epochs', 'group_epochs')
GROUP BY b.epoch, i.preference_id, i.experience_id HAVING count(*) > 1
UNION ALL
SELECT 'a row was used too often', e.id
FROM trinity.experience e WHERE e.run_id = %(run_id)s AND e.use_count > %(max_uses)s
UNION ALL
SELECT 'a leased row is in no leased batch, or in two', e.id
FROM trinity.experience e
LEFT JOIN trinity.batch_item i ON i.experience_id = e.id
LEFT JOIN trinity.batch b ON b.id = i.batch_id AND b.state = 'leased'
WHERE e.run_id = %(run_id)s AND e.state = 'leased' GROUP BY e.id HAVING count(b.id) <> 1
UNION ALL
SELECT 'a step has two batches', b.step
FROM trinity.batch b WHERE b.run_id = %(run_id)s AND b.state <> 'reopened' GROUP BY b.step HAVING count(*) > 1
UNION ALL
SELECT 'a group is split', g.id
FROM trinity.rollout_group g JOIN trinity.experience e ON e.group_id = g.id
WHERE g.run_id = %(run_id)s AND g.state IN ('ready', 'leased', 'trained') AND e.state <> 'dropped'
  AND e.state::text <> g.state::text
UNION ALL
SELECT 'part of a group was drawn', b.id
FROM trinity.batch b
JOIN trinity.batch_item i ON i.batch_id = b.id
JOIN trinity.experience e ON e.id = i.experience_id
JOIN trinity.experience other ON other.group_id = e.group_id AND other.state <> 'dropped'
WHERE b.run_id = %(run_id)s AND e.source_id IS NULL
  AND NOT EXISTS (SELECT FROM trinity.batch_item o WHERE o.batch_id = b.id AND o.experience_id = other.id)
UNION ALL
SELECT 'a row was drawn too stale', b.id
FROM trinity.batch b JOIN trinity.batch_item i ON i.batch_id = b.id
WHERE b.run_id = %(run_id)s AND (i.staleness > %(max_staleness)s OR i.staleness < 0)
UNION ALL
SELECT 'a row was dropped without a reason, or has one and was not', e.id
FROM trinity.experience e LEFT JOIN trinity."drop" d ON d.experience_id = e.id
WHERE e.run_id = %(run_id)s AND (d.id IS NOT NULL) <> (e.state IN ('dropped', 'expired'))
UNION ALL
SELECT 'members do not add up', g.id
FROM trinity.rollout_group g LEFT JOIN trinity.rollout m ON m.group_id = g.id AND m.state <> 'refused'
WHERE g.run_id = %(run_id)s AND g.source_id IS NULL GROUP BY g.id
HAVING count(m.id) <> g.arrived + g.failed OR (g.state <> 'open') <> (count(m.id) = g.expected)
"""


def read_back(database: Database, snapshot: Snapshot, run_id: int) -> dict[str, Table]:
    """The run as it is stored: tables of entries by their keys."""
    found: dict[str, Table] = {}
    with database.transaction() as tx:
        cursor = tx.cursor(row_factory=tuple_row)
        for name, (num_keys, statement) in snapshot.items():
            entries = cursor.execute(statement.encode(), [run_id]).fetchall()
            found[name] = {
                entry[0] if num_keys == 1 else entry[:num_keys]: entry[num_keys:] for entry in entries
            }
            assert len(found[name]) == len(entries), f"{name}: a key is there twice"
    return found


def broken_promises(database: Database, run_id: int, max_uses: int, max_staleness: int | None) -> list[str]:
    """What SQL alone finds wrong."""
    values = {"run_id": run_id, "max_uses": max_uses, "max_staleness": max_staleness}
    with database.transaction() as tx:
        found = tx.cursor(row_factory=tuple_row).execute(BROKEN_PROMISES, values).fetchall()
    return [f"{promise}: {row_id}" for promise, row_id in found]


def differences(expected: dict[str, Table], found: dict[str, Table]) -> list[str]:
    """One line for each entry that is not the same in both, floats but for rounding."""
    return [
        f"{table} {key}: expected {expected[table].get(key)}, found {found[table].get(key)}"
        for table in expected
        for key in sorted(expected[table].keys() | found[table].keys())
        if not _same(expected[table].get(key), found[table].get(key))
    ]


def _same(left: tuple[Any, ...] | None, right: tuple[Any, ...] | None) -> bool:
    if left is None or right is None or len(left) != len(right):
        return False
    return all(
        math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
        if isinstance(a, float) and isinstance(b, float)
        else a == b
        for a, b in zip(left, right, strict=True)
    )
