-- name: take_priorities
-- Claims up to :limit due priorities of a run for :seconds, oldest first; skips locked ones. Those claimed before
-- without a result are claimed only with :suspects, alone: their rows may be killing the processor.
WITH picked AS MATERIALIZED (
    SELECT p.id
    FROM trinity.group_priority p
    WHERE p.run_id = %(run_id)s AND p.priority IS NULL AND p.failed_at IS NULL
      AND (p.taken_at IS NULL
           OR abs(extract(epoch FROM clock_timestamp() - p.taken_at)) > %(seconds)s::float8)
      AND (p.taken_at IS NOT NULL) = %(suspects)s
    ORDER BY p.id
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE trinity.group_priority p SET taken_at = clock_timestamp(), attempt = p.attempt + 1
FROM picked
WHERE p.id = picked.id
RETURNING p.id, p.group_id, p.attempt

-- name: prioritised_rows
-- The members of groups that may still be drawn, now or after a batch is reopened.
SELECT e.id, e.group_id
FROM trinity.experience e
WHERE e.group_id = ANY(%(group_ids)s) AND (e.state IN ('ready', 'leased', 'trained')) IS TRUE AND e.source_id IS NULL
ORDER BY e.id

-- name: lock_prioritised
-- Locks groups and then their rows, in order of id, like every statement.
WITH groups AS MATERIALIZED (
    SELECT g.id FROM trinity.rollout_group g WHERE g.id = ANY(%(group_ids)s) ORDER BY g.id FOR NO KEY UPDATE
)
SELECT e.id FROM trinity.experience e
WHERE e.group_id = ANY(ARRAY(SELECT groups.id FROM groups)) AND e.id = ANY(%(ids)s)
ORDER BY e.id
FOR NO KEY UPDATE

-- name: compute_priorities
-- Writes computed priorities, under the lock of the groups. A priority that another processor has claimed since stays
-- due.
UPDATE trinity.group_priority p
SET priority = n.priority, computed_xact = pg_current_xact_id()::text::bigint, taken_at = NULL, experience_id = NULL,
    step = NULL, error = NULL, processor_version = %(processor_version)s, policy_version = %(policy_version)s
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(priorities)s::float8[]) AS n (id, attempt, priority)
WHERE p.id = n.id AND p.attempt = n.attempt AND p.priority IS NULL
RETURNING p.group_id

-- name: set_group_priorities
-- Sets the priority of locked groups to the most recently requested of the computed ones.
UPDATE trinity.rollout_group g
SET priority = (SELECT p.priority FROM trinity.group_priority p
                WHERE p.group_id = g.id AND p.priority IS NOT NULL ORDER BY p.id DESC LIMIT 1)
WHERE g.id = ANY(%(group_ids)s)

-- name: set_row_priorities
-- Sets the priorities of rows, under the lock of their groups.
UPDATE trinity.experience e SET priority = n.priority
FROM unnest(%(ids)s::bigint[], %(priorities)s::float8[]) AS n (id, priority)
WHERE e.id = n.id AND e.group_id = ANY(%(group_ids)s)

-- name: fail_priorities
-- Returns priorities for which a step failed to the queue or, at the last attempt, gives them up. The groups keep
-- their priority.
UPDATE trinity.group_priority p
SET taken_at = NULL, experience_id = n.experience_id, step = n.step, error = n.error,
    failed_at = CASE WHEN p.attempt >= %(max_attempts)s::integer THEN now() END
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(experience_ids)s::bigint[], %(steps)s::text[], %(errors)s::text[])
     AS n (id, attempt, experience_id, step, error)
WHERE p.id = n.id AND p.attempt = n.attempt AND p.priority IS NULL

-- name: forget_priorities
-- Deletes priorities of groups that have no drawable rows left.
DELETE FROM trinity.group_priority p WHERE p.id = ANY(%(ids)s) AND p.priority IS NULL

-- name: renew_priorities
-- Marks priorities of ready groups computed before this policy version as due. Used at each version if a step reads
-- the staleness of rows.
INSERT INTO trinity.group_priority (run_id, group_id)
SELECT g.run_id, g.id
FROM trinity.rollout_group g
WHERE g.run_id = %(run_id)s AND g.state = 'ready' AND g.id >= (SELECT f.floor FROM trinity.floor_of(%(run_id)s) f)
  AND (SELECT p.policy_version FROM trinity.group_priority p
       WHERE p.group_id = g.id AND p.priority IS NOT NULL ORDER BY p.id DESC LIMIT 1) <> %(policy_version)s
  AND NOT EXISTS (SELECT FROM trinity.group_priority p
                  WHERE p.group_id = g.id AND p.priority IS NULL AND p.failed_at IS NULL)

-- name: count_due_priorities
-- Number of priorities that are due and were not given up.
SELECT count(*) AS groups FROM trinity.group_priority p
WHERE p.run_id = %(run_id)s AND p.priority IS NULL AND p.failed_at IS NULL
