-- name: delete_batches
-- Some batches of a run, with their items.
DELETE FROM trinity.batch
WHERE id IN (SELECT b.id FROM trinity.batch b WHERE b.run_id = %(run_id)s LIMIT %(limit)s)

-- name: delete_preferences
-- Some pairs of a run, with their drops. Their items must be gone.
DELETE FROM trinity.preference
WHERE id IN (SELECT p.id FROM trinity.preference p WHERE p.run_id = %(run_id)s LIMIT %(limit)s)

-- name: delete_experiences
-- A run's rows in a range of ids, with their texts, payloads, scores, reward events, processing records and drops. By
-- range, since no index has all rows of a run: a look never reads more than the range. Fails where another run has
-- adopted one.
DELETE FROM trinity.experience e WHERE e.run_id = %(run_id)s AND e.id > %(after)s AND e.id <= %(until)s

-- name: delete_groups
-- Some groups of a run, with their rollouts, those rollouts' reward events, and drops. Their rows must be gone.
DELETE FROM trinity.rollout_group
WHERE id IN (SELECT g.id FROM trinity.rollout_group g WHERE g.run_id = %(run_id)s LIMIT %(limit)s)

-- name: delete_metrics
DELETE FROM trinity.metric
WHERE id IN (SELECT m.id FROM trinity.metric m WHERE m.run_id = %(run_id)s LIMIT %(limit)s)

-- name: delete_pairings
DELETE FROM trinity.pairing
WHERE (run_id, id) IN (SELECT p.run_id, p.id FROM trinity.pairing p WHERE p.run_id = %(run_id)s LIMIT %(limit)s)

-- name: delete_task_stats
DELETE FROM trinity.task_stat
WHERE (run_id, task_id) IN (SELECT t.run_id, t.task_id FROM trinity.task_stat t
                            WHERE t.run_id = %(run_id)s LIMIT %(limit)s)

-- name: delete_versions
-- All policy versions of a run; no batch may name one any more.
DELETE FROM trinity.policy_version WHERE run_id = %(run_id)s
