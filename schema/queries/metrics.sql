-- name: record_metrics
-- Writes metrics. All writers of a run's metrics share one lock, which each takes before its first id. No writer waits
-- for it: it only shows that there are ids whose rows cannot be seen yet (see metrics_in_flight). If another login
-- holds the key exclusively, the metrics are written without the lock, and a sink may miss them.
WITH writing AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock_shared(hashtextextended('trinity metrics', %(run_id)s)) AS is_locked
)
INSERT INTO trinity.metric (run_id, role, step, name, value)
SELECT %(run_id)s, %(role)s, %(step)s, m.name, m.value
FROM writing CROSS JOIN unnest(%(names)s::text[], %(values)s::double precision[]) AS m (name, value)

-- name: last_metrics
-- What was written last under each of these names for a step.
SELECT DISTINCT ON (m.name) m.name, m.value
FROM trinity.metric m
WHERE m.run_id = %(run_id)s AND m.name = ANY(%(names)s::text[]) AND m.step = %(step)s
ORDER BY m.name, m.id DESC

-- name: last_metric_id
-- The highest id that was given out, even if its row cannot be seen yet or never will be.
SELECT s.last_value AS id FROM trinity.metric_id_seq s

-- name: metrics_in_flight
-- Whether a session is writing metrics of the run right now. It is asked after last_metric_id, in a statement of its
-- own. If no session is, every writer that took an id up to that one has ended, and later statements see all rows up
-- to it that there will ever be. Any login can take the lock, so sessions of logins that may not write metrics do not
-- count.
SELECT EXISTS (
    SELECT FROM pg_locks l
    JOIN pg_stat_activity a ON a.pid = l.pid AND has_table_privilege(a.usesysid, 'trinity.metric', 'INSERT')
    WHERE l.locktype = 'advisory' AND l.objsubid = 1
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND (l.classid::bigint << 32) | l.objid::bigint = hashtextextended('trinity metrics', %(run_id)s)
) AS is_so

-- name: read_metrics
-- Metrics of a run between two ids, in their order.
SELECT m.id, m.role, m.step, m.name, m.value, m.created_at
FROM trinity.metric m
WHERE m.run_id = %(run_id)s AND m.id > %(after)s AND m.id <= %(upto)s
ORDER BY m.id
LIMIT %(limit)s

-- name: measure_batch
-- What only the store knows of a batch's rollouts: the share that ended by its length, and for each name of a reward
-- event about them or their steps the mean and the deviation of the latest values, without weights.
WITH item AS MATERIALIZED (
    SELECT e.id, e.rollout_id
    FROM trinity.batch_item i
    JOIN trinity.experience e ON e.id = i.experience_id
    JOIN trinity.rollout_group g ON g.id = e.group_id AND g.run_id = e.run_id -- of no expert row
    WHERE i.batch_id = %(batch_id)s AND i.weight > 0 -- what is only compared with has none
),
attempt AS MATERIALIZED (
    SELECT DISTINCT item.rollout_id AS id FROM item
),
about AS (
    SELECT v.id, v.rollout_id, v.experience_id, v.name, v.value
    FROM attempt JOIN trinity.reward_event v ON v.rollout_id = attempt.id
    UNION ALL
    SELECT v.id, v.rollout_id, v.experience_id, v.name, v.value
    FROM item JOIN trinity.reward_event v ON v.experience_id = item.id
),
latest AS (
    SELECT DISTINCT ON (about.rollout_id, about.experience_id, about.name) about.name, about.value
    FROM about
    ORDER BY about.rollout_id, about.experience_id, about.name, about.id DESC
)
SELECT (SELECT avg(CASE WHEN m.finish_reason = 'length' THEN 1.0 ELSE 0.0 END)::float8
        FROM attempt JOIN trinity.rollout m ON m.id = attempt.id) AS clipped,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('name', n.name, 'mean', n.mean, 'std', n.std)), '[]')
        FROM (SELECT name, avg(value) AS mean, coalesce(stddev_samp(value), 0) AS std
              FROM latest GROUP BY name ORDER BY name) n) AS rewards
