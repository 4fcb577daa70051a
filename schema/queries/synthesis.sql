-- name: count_made
-- Number of results made from the rows of a run.
SELECT count(*) AS made FROM trinity.origin o WHERE o.run_id = %(run_id)s

-- name: count_due_sources
-- Number of groups that are still to be asked about.
SELECT count(*) AS groups FROM trinity.synthesis s
WHERE s.run_id = %(run_id)s AND s.finished_at IS NULL AND s.failed_at IS NULL

-- name: take_sources
-- Leases up to :limit due groups of a run, oldest first; skips locked ones. A lease ends when its worker dies. Groups
-- whose worker died are taken only with :suspects, alone: their rows may be killing it.
WITH picked AS MATERIALIZED (
    SELECT s.id
    FROM trinity.synthesis s
    WHERE s.run_id = %(run_id)s AND s.finished_at IS NULL AND s.failed_at IS NULL
      AND (s.worker_id IS NOT NULL) = %(suspects)s
      AND NOT EXISTS (SELECT FROM trinity.worker w
                      WHERE w.id = s.worker_id AND w.stopped_at IS NULL
                        AND trinity.is_alive(w.heartbeat_at, %(lease_seconds)s::float8))
    ORDER BY s.id
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE trinity.synthesis s SET worker_id = %(worker_id)s, attempt = s.attempt + 1
FROM picked
WHERE s.id = picked.id
RETURNING s.id, s.group_id, s.attempt

-- name: source_rows
-- The row with the highest reward of each group, with its task and taskset, and the number of results made from the
-- task.
SELECT DISTINCT ON (e.group_id) e.id, e.group_id, g.task_id, k.name AS taskset,
       (SELECT count(*) FROM trinity.origin o WHERE o.source_task_id = g.task_id AND o.run_id = g.run_id) AS made
FROM trinity.rollout_group g
JOIN trinity.experience e ON e.group_id = g.id
JOIN trinity.task t ON t.id = g.task_id
JOIN trinity.taskset k ON k.id = t.taskset_id
WHERE g.id = ANY(%(group_ids)s) AND e.source_id IS NULL
ORDER BY e.group_id, e.reward DESC NULLS LAST, e.id

-- name: lock_makers
-- Locks the run's row, so that its processors write their results one after the other and together respect the caps.
SELECT r.id FROM trinity.run r WHERE r.id = %(run_id)s FOR NO KEY UPDATE

-- name: hold_sources
-- Locks the given leases that the worker still holds until the answers are written; returns their attempts.
SELECT s.id, s.attempt FROM trinity.synthesis s
WHERE s.id = ANY(%(ids)s) AND s.worker_id = %(worker_id)s AND s.finished_at IS NULL AND s.failed_at IS NULL
ORDER BY s.id
FOR NO KEY UPDATE

-- name: made_before
-- Which of these results, by digest, were made from the run's rows before.
SELECT o.digest FROM trinity.origin o WHERE o.run_id = %(run_id)s AND o.digest = ANY(%(digests)s)

-- name: count_made_of
-- Number of results made from each of these tasks.
SELECT o.source_task_id AS task_id, count(*) AS made FROM trinity.origin o
WHERE o.run_id = %(run_id)s AND o.source_task_id = ANY(%(task_ids)s)
GROUP BY o.source_task_id

-- name: write_origins
-- Records the origin of results, in the transaction that writes them.
INSERT INTO trinity.origin (synthesis_id, run_id, source_task_id, task_id, experience_id, step, digest, detail)
SELECT n.synthesis_id, %(run_id)s, n.source_task_id, n.task_id, n.experience_id, n.step, n.digest, n.detail::jsonb
FROM unnest(%(synthesis_ids)s::bigint[], %(source_task_ids)s::bigint[], %(task_ids)s::bigint[], %(experience_ids)s::bigint[],
            %(steps)s::text[], %(digests)s::text[], %(details)s::text[])
     AS n (synthesis_id, source_task_id, task_id, experience_id, step, digest, detail)

-- name: finish_sources
-- Ends leases, in the transaction that writes the results.
UPDATE trinity.synthesis s
SET worker_id = NULL, finished_at = now(), processor_version = %(processor_version)s, experience_id = n.experience_id,
    refused = n.refused::jsonb, step = NULL, error = NULL
FROM unnest(%(ids)s::bigint[], %(experience_ids)s::bigint[], %(refused)s::text[]) AS n (id, experience_id, refused)
WHERE s.id = n.id

-- name: fail_sources
-- Returns groups for which a step failed to the queue or, at the last attempt, gives them up.
UPDATE trinity.synthesis s
SET worker_id = NULL, experience_id = n.experience_id, step = n.step, error = n.error,
    failed_at = CASE WHEN s.attempt >= %(max_attempts)s::integer THEN now() END
FROM unnest(%(ids)s::bigint[], %(experience_ids)s::bigint[], %(steps)s::text[], %(errors)s::text[])
     AS n (id, experience_id, step, error)
WHERE s.id = n.id

-- name: release_sources
-- Releases groups that a stopping worker has not completed.
UPDATE trinity.synthesis s SET worker_id = NULL, attempt = s.attempt - 1
WHERE s.id = ANY(ARRAY(SELECT h.id FROM trinity.synthesis h
                       WHERE h.id = ANY(%(ids)s) AND h.worker_id = %(worker_id)s AND h.finished_at IS NULL
                       ORDER BY h.id
                       FOR NO KEY UPDATE))
