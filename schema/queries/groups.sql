-- name: lock_pace
-- Explorers of a run decide one after the other how much to start, so that together they respect the limit.
SELECT pg_advisory_xact_lock(hashtextextended('trinity pace', %(run_id)s))

-- name: count_pace
-- What the pace is computed from, counted anew each time, so that a restart cannot lose it: groups that were
-- trained on but are in no version up to the explorer's, that wait, that are explored. A dropped group is in
-- none of the numbers: its place is free.
SELECT (SELECT coalesce(sum(b.size), 0) FROM trinity.batch b
        WHERE b.run_id = %(run_id)s AND b.state = 'committed'
          AND (b.included_version IS NULL OR b.included_version > %(version)s))::bigint AS unpublished,
       count(*) FILTER (WHERE g.state <> 'open') AS waiting,
       count(*) FILTER (WHERE g.state = 'open') AS running
FROM trinity.rollout_group g
WHERE g.run_id = %(run_id)s AND g.state IN ('open', 'complete', 'ready', 'leased')

-- name: claim_abandoned_groups
-- Take over groups whose explorer is gone, oldest first; skip what another explorer takes right now. A member of
-- which there is only a refused rollout is missing.
WITH picked AS MATERIALIZED (
    SELECT g.id
    FROM trinity.rollout_group g
    WHERE g.run_id = %(run_id)s AND g.state = 'open' AND g.worker_id IS NULL
    ORDER BY g.id
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
claimed AS (
    UPDATE trinity.rollout_group g SET worker_id = %(worker_id)s, attempt = g.attempt + 1
    FROM picked
    WHERE g.id = picked.id
    RETURNING g.id, g.task_id, g.attempt, g.expected
)
SELECT c.id, c.attempt, t.payload,
       ARRAY(SELECT n FROM generate_series(0, c.expected - 1) n
             WHERE NOT EXISTS (SELECT FROM trinity.rollout r
                               WHERE r.group_id = c.id AND r.ordinal = n AND r.state <> 'refused')
             ORDER BY n) AS members
FROM claimed c
JOIN trinity.task t ON t.id = c.task_id
ORDER BY c.id

-- name: start_groups
-- Start groups on the tasks that this run issued least; ties by id or, shuffled, by a hash that differs with
-- each pass. Counting the issue and opening the group are one statement, so a resume goes on exactly here. Counts
-- of tasks are locked in the order of their ids everywhere.
WITH picked AS MATERIALIZED (
    SELECT t.id
    FROM trinity.task t
    LEFT JOIN trinity.task_stat s ON s.run_id = %(run_id)s AND s.task_id = t.id
    WHERE t.taskset_id = %(taskset_id)s
    ORDER BY coalesce(s.issued, 0),
             CASE WHEN %(shuffle)s THEN hashint8extended(t.id, %(seed)s::bigint + coalesce(s.issued, 0)) END,
             t.id
    LIMIT %(limit)s
),
issued AS (
    INSERT INTO trinity.task_stat AS s (run_id, task_id, issued, issued_at)
    SELECT %(run_id)s, id, 1, now() FROM picked ORDER BY id
    ON CONFLICT (run_id, task_id) DO UPDATE SET issued = s.issued + 1, issued_at = now()
),
started AS (
    INSERT INTO trinity.rollout_group (run_id, task_id, expected, worker_id)
    SELECT %(run_id)s, id, %(group_size)s, %(worker_id)s FROM picked
    RETURNING id, task_id, attempt, expected
)
SELECT s.id, s.attempt, t.payload, ARRAY(SELECT n FROM generate_series(0, s.expected - 1) n ORDER BY n) AS members
FROM started s
JOIN trinity.task t ON t.id = s.task_id
ORDER BY s.id

-- name: known_rollouts
-- Rollouts that are stored already, accepted or refused, as after a write whose commit was unclear.
SELECT r.group_id, r.attempt, r.ordinal, r.state
FROM trinity.rollout r
JOIN unnest(%(group_ids)s::bigint[], %(attempts)s::integer[], %(ordinals)s::integer[])
     AS m (group_id, attempt, ordinal)
  ON r.group_id = m.group_id AND r.attempt = m.attempt AND r.ordinal = m.ordinal

-- name: hold_groups
-- Which of these groups the worker still holds under the attempt it was given. Locks them all for the write, in the
-- order of their ids: also a late write that is repeated waits here for its first try.
SELECT g.id, h.attempt,
       coalesce(g.state = 'open' AND g.worker_id = %(worker_id)s AND g.attempt = h.attempt, false) AS held
FROM trinity.rollout_group g
JOIN unnest(%(group_ids)s::bigint[], %(attempts)s::integer[]) AS h (id, attempt) ON g.id = h.id
ORDER BY g.id
FOR NO KEY UPDATE OF g

-- name: arrive_members
-- Count members that arrived or failed for good; the last one completes the group and ends the lease.
UPDATE trinity.rollout_group g
SET arrived = g.arrived + m.arrived,
    failed = g.failed + m.failed,
    version_min = least(g.version_min, m.version_min),
    state = CASE WHEN g.arrived + g.failed + m.arrived + m.failed = g.expected
                 THEN 'complete' ELSE 'open' END::trinity.group_state,
    completed_at = CASE WHEN g.arrived + g.failed + m.arrived + m.failed = g.expected THEN now() END,
    worker_id = CASE WHEN g.arrived + g.failed + m.arrived + m.failed < g.expected THEN g.worker_id END
FROM unnest(%(group_ids)s::bigint[], %(arrived)s::integer[], %(failed)s::integer[], %(versions)s::integer[])
     AS m (group_id, arrived, failed, version_min)
WHERE g.id = m.group_id

-- name: reserve_ids
-- Ids for rows that are about to be written, so that they can refer to one another in one go.
SELECT nextval('trinity.rollout_id_seq') AS rollout_id, nextval('trinity.experience_id_seq') AS experience_id
FROM generate_series(1, %(count)s)
