-- name: runs_of_copy
-- A run, followed by the data sets and runs from which it adopted rows or for which it made responses, directly or
-- indirectly.
WITH RECURSIVE needed AS (
    SELECT %(run_id)s::bigint AS id
    UNION
    SELECT other.run_id
    FROM needed n
    CROSS JOIN LATERAL (SELECT o.run_id
                        FROM trinity.experience e
                        JOIN trinity.experience o ON o.id = e.source_id
                        WHERE e.run_id = n.id AND e.source_id IS NOT NULL
                        UNION ALL
                        SELECT m.run_id
                        FROM trinity.origin o
                        JOIN trinity.experience m ON m.id = o.experience_id
                        WHERE o.run_id = n.id) other
)
SELECT r.id, r.name, r.kind, r.created_at
FROM trinity.run r
JOIN needed ON needed.id = r.id
ORDER BY r.id <> %(run_id)s, r.id

-- name: tasksets_of_copy
-- The tasksets that these runs need: of tasks that they attempted or made, tasksets that they explore or are
-- evaluated on, and tasksets of data sets, which share the names of their runs.
SELECT s.id
FROM trinity.taskset s
WHERE s.id IN (SELECT t.taskset_id FROM trinity.task t
               WHERE t.id IN (SELECT g.task_id FROM trinity.rollout_group g WHERE g.run_id = ANY(%(runs)s::bigint[])
                              UNION ALL
                              SELECT a.task_id FROM trinity.task_stat a WHERE a.run_id = ANY(%(runs)s::bigint[])
                              UNION ALL
                              SELECT o.task_id FROM trinity.origin o WHERE o.run_id = ANY(%(runs)s::bigint[])))
   OR s.name = ANY(%(names)s::text[])
   OR s.name IN (SELECT r.config ->> 'taskset' FROM trinity.run r WHERE r.id = ANY(%(runs)s::bigint[]))
   OR EXISTS (SELECT FROM trinity.run r
              WHERE r.id = ANY(%(runs)s::bigint[])
                AND (jsonb_typeof(r.config -> 'taskset') = 'object' AND r.config -> 'taskset' ? s.name
                     OR r.config #> '{evaluation,taskset}' ? s.name))
ORDER BY s.id

-- name: taken_names
-- Which of these names a run or a taskset already has.
SELECT n.name FROM unnest(%(names)s::text[]) n (name)
WHERE EXISTS (SELECT FROM trinity.run r WHERE r.name = n.name)
   OR EXISTS (SELECT FROM trinity.taskset s WHERE s.name = n.name)

-- name: import_xact
-- Id of the importing transaction, for rows that record it.
SELECT pg_current_xact_id()::text::bigint AS xact

-- name: stop_copied_workers
-- Marks the workers of copied runs as stopped: their processes belong to the original.
UPDATE trinity.worker w SET stopped_at = w.heartbeat_at WHERE w.run_id = ANY(%(runs)s::bigint[]) AND w.stopped_at IS NULL

-- name: set_checkpoint
-- Records the new place of a version's weights, and of its checkpoint if it was copied, too.
UPDATE trinity.policy_version p SET checkpoint = %(checkpoint)s, resume_from = %(resume_from)s
WHERE p.run_id = %(run_id)s AND p.version = %(version)s AND p.checkpoint_hash = %(checkpoint_hash)s
  AND (%(resume_hash)s::text IS NULL OR p.resume_hash = %(resume_hash)s)

-- name: wait_for_ids
-- Limits how long this transaction waits for sessions that hold the ids of a table.
SELECT set_config('lock_timeout', %(lock_seconds)s::float8 * 1000 || 'ms', true)
