-- name: record_metrics
-- Writes metrics. All writers of a run's metrics share one lock, taken before their first id. No writer waits for it:
-- it only indicates ids whose rows are not visible yet (see metrics_in_flight). If another login holds the key
-- exclusively, the metrics are written without the lock, and a sink may miss them.
WITH writing AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock_shared(hashtextextended('trinity metrics', %(run_id)s)) AS is_locked
)
INSERT INTO trinity.metric (run_id, role, step, name, value)
SELECT %(run_id)s, %(role)s, %(step)s, m.name, m.value
FROM writing CROSS JOIN unnest(%(names)s::text[], %(values)s::double precision[]) AS m (name, value)

-- name: last_metrics
-- The last written value of each of these metrics for a step.
SELECT DISTINCT ON (m.name) m.name, m.value
FROM trinity.metric m
WHERE m.run_id = %(run_id)s AND m.name = ANY(%(names)s::text[]) AND m.step = %(step)s
ORDER BY m.name, m.id DESC

-- name: last_metric_id
-- The highest assigned id, even if its row is not visible yet or never will be.
SELECT s.last_value AS id FROM trinity.metric_id_seq s

-- name: metrics_in_flight
-- Whether a session is writing metrics of the run. Run it after last_metric_id, as a separate statement. If none is,
-- all writers with lower or equal ids have ended, and later statements see every row up to it. Any login can take the
-- lock, so sessions whose logins may not write metrics are ignored.
SELECT EXISTS (
    SELECT FROM pg_locks l
    JOIN pg_stat_activity a ON a.pid = l.pid AND has_table_privilege(a.usesysid, 'trinity.metric', 'INSERT')
    WHERE l.locktype = 'advisory' AND l.objsubid = 1
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND (l.classid::bigint << 32) | l.objid::bigint = hashtextextended('trinity metrics', %(run_id)s)
) AS is_so

-- name: read_metrics
-- Metrics of a run with ids in (:after, :upto], in order.
SELECT m.id, m.role, m.step, m.name, m.value, m.created_at
FROM trinity.metric m
WHERE m.run_id = %(run_id)s AND m.id > %(after)s AND m.id <= %(upto)s
ORDER BY m.id
LIMIT %(limit)s

-- name: measure_batch
-- Facts about a batch's rollouts: the share that reached the length limit, and for each name of a reward event about
-- them or their steps the mean and deviation of the latest values, unweighted.
WITH item AS MATERIALIZED (
    SELECT e.id, e.rollout_id
    FROM trinity.batch_item i
    JOIN trinity.experience e ON e.id = i.experience_id
    JOIN trinity.rollout_group g ON g.id = e.group_id AND g.run_id = e.run_id -- excludes expert rows
    WHERE i.batch_id = %(batch_id)s AND i.weight > 0 -- 0: sampled only as a baseline
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
