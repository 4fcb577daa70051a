-- name: list_failures
-- The dead letters of a run, latest first.
SELECT f.experience_id AS experience, f.group_id AS "group", f.version, f.stage, f.step, f.failed_at, f.error, f.obstacle
FROM trinity.failure_view f
WHERE f.run = %(run)s
ORDER BY f.failed_at DESC, f.experience_id DESC
LIMIT %(limit)s

-- name: count_failures_by_obstacle
-- Number of dead letters of a run that cannot be judged again, by obstacle.
SELECT f.obstacle, count(*) AS rows
FROM trinity.failure_view f
WHERE f.run = %(run)s AND f.obstacle IS NOT NULL
GROUP BY f.obstacle
ORDER BY f.obstacle

-- name: hold_draws
-- Locks the run's trainers, so that none draws until this transaction ends: each draw begins with hold_trainer, which
-- waits.
SELECT w.id FROM trinity.worker w
WHERE w.run_id = %(run_id)s AND w.role = 'train' AND w.stopped_at IS NULL
ORDER BY w.id
FOR NO KEY UPDATE

-- name: next_failed_groups
-- Locks, in order of id, the next groups of a run after :after with dead letters that can be judged again.
SELECT g.id FROM trinity.rollout_group g
WHERE g.id = ANY(ARRAY(SELECT DISTINCT f.group_id FROM trinity.failure_view f
                       WHERE f.run = %(run)s AND f.obstacle IS NULL AND f.group_id > %(after)s
                       ORDER BY f.group_id LIMIT %(limit)s))
ORDER BY g.id
FOR NO KEY UPDATE

-- name: lock_failed_members
-- Locks the members of groups in order of id, like every statement that locks rows.
SELECT e.id FROM trinity.experience e WHERE e.group_id = ANY(%(group_ids)s) ORDER BY e.id FOR NO KEY UPDATE

-- name: retry_failures
-- Returns the dead letters of locked groups to the stage that gave them up.
WITH due AS MATERIALIZED (
    SELECT f.experience_id, f.stage FROM trinity.failure_view f
    WHERE f.run = %(run)s AND f.group_id = ANY(%(group_ids)s) AND f.obstacle IS NULL
      AND f.stage IN ('clean', 'score')
),
gone AS (
    DELETE FROM trinity."drop" d USING due WHERE d.experience_id = due.experience_id
)
UPDATE trinity.experience e
SET state = CASE due.stage WHEN 'clean' THEN 'raw' ELSE 'clean' END::trinity.experience_state
FROM due
WHERE e.id = due.experience_id

-- name: retry_priorities
-- Marks priorities as due again for which the steps had failed for good.
UPDATE trinity.group_priority p SET attempt = 0, failed_at = NULL, experience_id = NULL, step = NULL, error = NULL
WHERE p.group_id = ANY(%(group_ids)s) AND p.failed_at IS NOT NULL

-- name: retry_syntheses
-- Marks groups as due again for which synthesis had failed for good.
UPDATE trinity.synthesis s SET attempt = 0, failed_at = NULL, step = NULL, error = NULL
WHERE s.group_id = ANY(%(group_ids)s) AND s.failed_at IS NOT NULL

-- name: reopen_dropped_groups
-- Reverts the group processor's drop of locked groups: they are complete again, and their other members scored. Draws
-- search from the floor of the last batch, so every batch with a higher floor is lowered: each may become the last
-- one after a rollback. The counts of their tasks lose what was counted when they were dropped.
WITH reopened AS (
    UPDATE trinity.rollout_group g SET state = 'complete'
    WHERE g.id = ANY(%(group_ids)s) AND (g.state = 'dropped') IS TRUE
    RETURNING g.id, g.task_id
),
of_groups AS (
    DELETE FROM trinity."drop" d USING reopened WHERE d.group_id = reopened.id
    RETURNING reopened.task_id, d.detail
),
of_members AS (
    DELETE FROM trinity."drop" d USING trinity.experience e
    WHERE e.group_id = ANY(ARRAY(SELECT reopened.id FROM reopened)) AND d.experience_id = e.id AND d.stage = 'group'
    RETURNING e.id
),
scored AS (
    UPDATE trinity.experience e SET state = 'scored' FROM of_members WHERE e.id = of_members.id
),
lowered AS (
    UPDATE trinity.batch b SET floor = (SELECT min(reopened.id) FROM reopened)
    WHERE b.run_id = %(run_id)s AND b.state <> 'reopened' AND b.floor > (SELECT min(reopened.id) FROM reopened)
),
counted AS (
    SELECT o.task_id, coalesce(sum((o.detail ->> 'scored')::integer), 0) AS scored,
           coalesce(sum((o.detail ->> 'solved')::integer), 0) AS solved
    FROM of_groups o
    GROUP BY o.task_id
),
held AS MATERIALIZED (
    SELECT s.run_id, s.task_id FROM trinity.task_stat s JOIN counted USING (task_id)
    WHERE s.run_id = %(run_id)s
    ORDER BY s.task_id
    FOR NO KEY UPDATE OF s
)
UPDATE trinity.task_stat s
SET scored = s.scored - c.scored, solved = s.solved - c.solved, alpha = s.alpha - c.solved,
    beta = s.beta - (c.scored - c.solved)
FROM held JOIN counted c USING (task_id)
WHERE s.run_id = held.run_id AND s.task_id = held.task_id
