-- name: take_priorities
-- Takes up to :limit due priorities of a run, the oldest first, so that no other processor computes them in the next
-- :seconds. Those that a processor took before without giving an answer are taken with :suspects only, by themselves:
-- their rows may be killing it.
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
-- Locks groups and then their rows, in the order in which every statement locks them.
WITH groups AS MATERIALIZED (
    SELECT g.id FROM trinity.rollout_group g WHERE g.id = ANY(%(group_ids)s) ORDER BY g.id FOR NO KEY UPDATE
)
SELECT e.id FROM trinity.experience e
WHERE e.group_id = ANY(ARRAY(SELECT groups.id FROM groups)) AND e.id = ANY(%(ids)s)
ORDER BY e.id
FOR NO KEY UPDATE

-- name: compute_priorities
-- Writes what the steps say, under the lock of the groups. A priority that another processor took since stays due.
UPDATE trinity.group_priority p
SET priority = n.priority, computed_xact = pg_current_xact_id()::text::bigint, taken_at = NULL, experience_id = NULL,
    step = NULL, error = NULL, processor_version = %(processor_version)s, policy_version = %(policy_version)s
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(priorities)s::float8[]) AS n (id, attempt, priority)
WHERE p.id = n.id AND p.attempt = n.attempt AND p.priority IS NULL
RETURNING p.group_id

-- name: set_group_priorities
-- Gives locked groups the priority that was asked for last, of those that are computed.
UPDATE trinity.rollout_group g
SET priority = (SELECT p.priority FROM trinity.group_priority p
                WHERE p.group_id = g.id AND p.priority IS NOT NULL ORDER BY p.id DESC LIMIT 1)
WHERE g.id = ANY(%(group_ids)s)

-- name: set_row_priorities
UPDATE trinity.experience e SET priority = n.priority
FROM unnest(%(ids)s::bigint[], %(priorities)s::float8[]) AS n (id, priority)
WHERE e.id = n.id AND e.group_id = ANY(%(group_ids)s)

-- name: fail_priorities
-- Gives priorities back that a step failed on, or, at the last attempt, gives them up. The groups keep what they have.
UPDATE trinity.group_priority p
SET taken_at = NULL, experience_id = n.experience_id, step = n.step, error = n.error,
    failed_at = CASE WHEN p.attempt >= %(max_attempts)s::integer THEN now() END
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(experience_ids)s::bigint[], %(steps)s::text[], %(errors)s::text[])
     AS n (id, attempt, experience_id, step, error)
WHERE p.id = n.id AND p.attempt = n.attempt AND p.priority IS NULL

-- name: forget_priorities
-- Removes priorities of groups that have no row left to draw.
DELETE FROM trinity.group_priority p WHERE p.id = ANY(%(ids)s) AND p.priority IS NULL

-- name: renew_priorities
-- Makes the priorities of ready groups due again that were computed before this policy version. Run at each version, if
-- a step reads how stale a row is.
INSERT INTO trinity.group_priority (run_id, group_id)
SELECT g.run_id, g.id
FROM trinity.rollout_group g
WHERE g.run_id = %(run_id)s AND g.state = 'ready' AND g.id >= (SELECT f.floor FROM trinity.floor_of(%(run_id)s) f)
  AND (SELECT p.policy_version FROM trinity.group_priority p
       WHERE p.group_id = g.id AND p.priority IS NOT NULL ORDER BY p.id DESC LIMIT 1) <> %(policy_version)s
  AND NOT EXISTS (SELECT FROM trinity.group_priority p
                  WHERE p.group_id = g.id AND p.priority IS NULL AND p.failed_at IS NULL)

-- name: count_due_priorities
SELECT count(*) AS groups FROM trinity.group_priority p
WHERE p.run_id = %(run_id)s AND p.priority IS NULL AND p.failed_at IS NULL
