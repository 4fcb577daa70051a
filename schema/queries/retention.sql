-- name: enter_retention
-- Lets processors delete old rows of the run, for the families whose retention its configuration sets.
INSERT INTO trinity.retention (run_id, family)
SELECT %(run_id)s, f.family
FROM unnest(%(families)s::text[]) f (family)
WHERE trinity.kept_for(%(run_id)s, f.family) IS NOT NULL
ON CONFLICT DO NOTHING

-- name: begin_sweeps
-- Creates the sweeps of these families; existing ones are unchanged.
INSERT INTO trinity.sweep (family) SELECT unnest(%(families)s::text[]) ON CONFLICT DO NOTHING

-- name: limit_waits
-- Limits the time that a statement waits for another session's lock, for the rest of the transaction.
SELECT set_config('lock_timeout', %(lock_seconds)s::float8 * 1000 || 'ms', true)

-- name: continue_sweep
-- Locks a sweep in progress until the transaction ends; returns its family, and the id from which it continues. Skips
-- sweeps locked by another processor.
SELECT s.family, s.after_id
FROM trinity.sweep s
WHERE s.after_id > 0
ORDER BY s.family
LIMIT 1
FOR UPDATE SKIP LOCKED

-- name: take_sweep
-- Locks a due sweep in the same way: it never finished, or 1/24 of the shortest retention of such rows has passed
-- since, or a day. None is due without a run that sets a retention.
SELECT s.family, s.after_id
FROM trinity.sweep s
JOIN LATERAL (
    SELECT min(trinity.kept_for(r.run_id, r.family)) AS kept
    FROM trinity.retention r
    WHERE r.family = s.family
) shortest ON shortest.kept IS NOT NULL
WHERE s.after_id = 0 AND (s.ended_at IS NULL OR s.ended_at < now() - least(shortest.kept / 24, interval '1 day'))
ORDER BY s.ended_at NULLS FIRST, s.family
LIMIT 1
FOR UPDATE OF s SKIP LOCKED

-- name: runs_of_experiences
-- The runs with experiences in a range of ids, and the time before which their rows of a family may be deleted.
SELECT e.run_id, trinity.kept_until(e.run_id, %(family)s) AS before
FROM (SELECT DISTINCT e.run_id FROM trinity.experience e WHERE e.id > %(after)s AND e.id <= %(until)s) e
ORDER BY e.run_id

-- name: runs_of_agents
-- The same for agents.
SELECT a.run_id, trinity.kept_until(a.run_id, %(family)s) AS before
FROM (SELECT DISTINCT a.run_id FROM trinity.agent a WHERE a.id > %(after)s AND a.id <= %(until)s) a
ORDER BY a.run_id

-- name: runs_of_metrics
-- The same for metrics.
SELECT m.run_id, trinity.kept_until(m.run_id, %(family)s) AS before
FROM (SELECT DISTINCT m.run_id FROM trinity.metric m WHERE m.id > %(after)s AND m.id <= %(until)s) m
ORDER BY m.run_id

-- name: count_removed
-- Adds removed rows and bytes to the run's retention counts.
UPDATE trinity.retention r
SET num_rows = r.num_rows + %(rows)s, num_bytes = r.num_bytes + %(bytes)s, removed_at = now()
WHERE r.run_id = %(run_id)s AND r.family = %(family)s

-- name: move_sweep
-- Records the position of a sweep. Without an id it has ended, and the next one starts from the beginning.
UPDATE trinity.sweep s
SET after_id = coalesce(%(after)s::bigint, 0), ended_at = CASE WHEN %(after)s::bigint IS NULL THEN now() ELSE s.ended_at END
WHERE s.family = %(family)s

-- name: retention_of
-- Retention of a run by family, what was deleted, and when processors last completed a sweep.
SELECT r.family, trinity.kept_for(r.run_id, r.family) AS kept_for, r.num_rows AS rows, r.num_bytes AS bytes,
       r.removed_at, s.ended_at AS looked_at
FROM trinity.retention r
LEFT JOIN trinity.sweep s ON s.family = r.family
WHERE r.run_id = %(run_id)s
ORDER BY r.family
