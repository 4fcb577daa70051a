"""What a run in a cluster has done, asked of its store, and what must be true of it afterwards."""

from tests.acceptance.command import Store

COMMITTED = """
SELECT count(*) FROM batch b JOIN run r ON r.id = b.run_id WHERE r.name = %(run)s AND b.state = 'committed'
"""
REACHED = f"SELECT ({COMMITTED}) >= %(steps)s"
ALIVE = """
SELECT w.id, w.role::text AS role, w.pid FROM worker w JOIN run r ON r.id = w.run_id
WHERE r.name = %(run)s AND w.stopped_at IS NULL ORDER BY w.id
"""
TRAINED_BY_ANOTHER = """
SELECT count(*) > 0 FROM worker w JOIN run r ON r.id = w.run_id
WHERE r.name = %(run)s AND w.stopped_at IS NULL AND w.role = 'train' AND w.pid <> %(pid)s
"""
UNFINISHED = "SELECT count(*) FROM run WHERE name = %(run)s AND state <> 'finished'"
BATCHES = """
SELECT step, included_version FROM batch_view WHERE run = %(run)s AND state = 'committed' ORDER BY step
"""
USED = """
SELECT DISTINCT e.use_count, e.state::text, count(*) AS batches
FROM batch_item i JOIN batch b ON b.id = i.batch_id JOIN experience e ON e.id = i.experience_id
JOIN run r ON r.id = e.run_id
WHERE r.name = %(run)s AND b.state = 'committed'
GROUP BY e.id
"""
USED_BY_NO_BATCH = """
SELECT count(*) FROM experience e WHERE e.use_count > 0 AND NOT EXISTS (
    SELECT FROM batch_item i JOIN batch b ON b.id = i.batch_id
    WHERE i.experience_id = e.id AND b.state = 'committed')
"""
REFUSED = """
SELECT (SELECT count(*) FROM rollout WHERE state = 'refused')
     + (SELECT count(*) FROM processing WHERE outcome = 'refused')
"""
LEASED = """
SELECT (SELECT count(*) FROM experience WHERE worker_id IS NOT NULL)
     + (SELECT count(*) FROM batch WHERE state = 'leased')
"""


def steps(store: Store, run: str) -> int:
    return int(store.value(COMMITTED, run=run))


def check_history(store: Store, run: str) -> None:
    """Each step is one committed batch that a version includes; no row is used twice or left behind."""
    batches = store.rows(BATCHES, run=run)
    assert [one["step"] for one in batches] == [*range(1, len(batches) + 1)]
    assert all(one["included_version"] is not None for one in batches)
    assert store.rows(USED, run=run) == [{"use_count": 1, "state": "trained", "batches": 1}]
    assert store.value(USED_BY_NO_BATCH) == 0
    assert store.value(LEASED) == 0
