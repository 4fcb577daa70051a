-- name: run_progress
-- Where a run is: its last committed step with the mean reward and response length of the rows, the reward of the step
-- 20 before it (the first one in a shorter run) and the seconds from that step to the last, the newest version, and
-- how many groups were started and rows dropped. Commands repeat it all the time, so it reads counters of tasks and
-- drops and the rows of two batches, and no table that grows with the store.
SELECT r.state,
       coalesce(b.step, 0) AS step,
       b.reward,
       b.length,
       b.staleness,
       b.reward - e.reward AS reward_change,
       b.step - e.step AS steps_between,
       extract(epoch FROM b.committed_at - e.committed_at)::double precision AS seconds_between,
       (SELECT max(p.version) FROM trinity.policy_version p
        WHERE p.run_id = r.id AND p.withdrawn_at IS NULL) AS version,
       (SELECT coalesce(sum(s.issued), 0)::bigint FROM trinity.task_stat s WHERE s.run_id = r.id) AS groups,
       (SELECT count(d.experience_id) FROM trinity."drop" d WHERE d.run_id = r.id) AS dropped
FROM trinity.run r
LEFT JOIN LATERAL (
    SELECT last.step, last.committed_at, avg(i.reward) AS reward, max(i.staleness) AS staleness,
           avg(x.response_length)::double precision AS length
    FROM (SELECT id, step, committed_at FROM trinity.batch
          WHERE run_id = r.id AND state = 'committed' ORDER BY step DESC LIMIT 1) last
    JOIN trinity.batch_item i ON i.batch_id = last.id
    JOIN trinity.experience x ON x.id = i.experience_id
    GROUP BY last.step, last.committed_at
) b ON true
LEFT JOIN LATERAL (
    SELECT first.step, first.committed_at, avg(i.reward) AS reward
    FROM (SELECT id, step, committed_at FROM trinity.batch
          WHERE run_id = r.id AND state = 'committed' AND step = greatest(b.step - 20, 1) LIMIT 1) first
    JOIN trinity.batch_item i ON i.batch_id = first.id
    GROUP BY first.step, first.committed_at
) e ON e.step < b.step
WHERE r.id = %(run_id)s

-- name: run_sample
-- The question and the response of one row of the run's last committed batch, with the reward that the step used.
SELECT trinity.question(x.prompt, x.messages) AS question, x.response, i.reward
FROM trinity.batch_item i
JOIN trinity.experience_text x ON x.experience_id = i.experience_id
WHERE i.batch_id = (SELECT id FROM trinity.batch
                    WHERE run_id = %(run_id)s AND state = 'committed' ORDER BY step DESC LIMIT 1)
ORDER BY i.ordinal
LIMIT 1

-- name: run_evaluations
-- For each taskset that versions of a run were evaluated on, the ids of the evaluations of its first and its last version.
SELECT DISTINCT ON (v.taskset_id)
       first_value(v.id) OVER versions AS first_id, last_value(v.id) OVER versions AS last_id
FROM trinity.evaluation v
WHERE v.run_id = %(run_id)s AND v.finished_at IS NOT NULL AND v.error IS NULL
WINDOW versions AS (PARTITION BY v.taskset_id ORDER BY v.version, v.id
                    ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
ORDER BY v.taskset_id

-- name: evaluated_answers
-- For each task of an evaluation, the question, response and reward of its first attempt.
SELECT DISTINCT ON (g.id) t.key AS task, trinity.question(x.prompt, x.messages) AS question, x.response, e.reward
FROM trinity.rollout_group g
JOIN trinity.task t ON t.id = g.task_id
JOIN trinity.experience e ON e.group_id = g.id AND e.source_id IS NULL
JOIN trinity.experience_text x ON x.experience_id = e.id
WHERE g.evaluation_id = %(evaluation_id)s
ORDER BY g.id, e.id

-- name: first_task
SELECT t.payload FROM trinity.task t WHERE t.taskset_id = %(taskset_id)s ORDER BY t.ordinal LIMIT 1

-- name: first_imported_row
-- The prompt of the first imported row that a run may still draw.
SELECT x.prompt, x.messages, x.tools
FROM (SELECT e.source_id FROM trinity.experience e
      WHERE e.run_id = %(run_id)s AND e.is_offered
      ORDER BY e.id LIMIT 1) AS first
JOIN trinity.experience_text x ON x.experience_id = first.source_id

-- name: working_runs
-- Runs that have a living worker, oldest first.
SELECT v.run FROM trinity.run_view v WHERE v.kind = 'train' AND v.status = 'active' ORDER BY v.id

-- name: run_summary
-- A run from its first step to its last. Attempts of evaluations do not count.
SELECT (SELECT count(*) FROM trinity.rollout o JOIN trinity.rollout_group g ON g.id = o.group_id
        WHERE o.run_id = %(run_id)s AND o.state <> 'refused' AND g.evaluation_id IS NULL) AS rollouts,
       (SELECT count(*) FROM trinity.batch b WHERE b.run_id = %(run_id)s AND b.state = 'committed') AS trained_batches,
       (SELECT count(*) FROM trinity.policy_version p WHERE p.run_id = %(run_id)s) AS policy_versions,
       (SELECT max(i.staleness) FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id
        WHERE b.run_id = %(run_id)s AND b.state = 'committed') AS max_staleness_seen

-- name: reward_by_version
SELECT version, reward FROM trinity.policy_progress
WHERE run = %(run)s AND reward IS NOT NULL
ORDER BY version

-- name: staleness_by_step
SELECT step, staleness_min, staleness_mean::double precision, staleness_max FROM trinity.batch_view
WHERE run = %(run)s AND state = 'committed'
ORDER BY step

-- name: count_named_runs
-- How many runs have a name that is LIKE a pattern.
SELECT count(*) AS runs FROM trinity.run WHERE name LIKE %(pattern)s

-- name: prunable_runs
SELECT r.name FROM trinity.run r WHERE r.kind = 'train' AND r.deleting_at IS NULL ORDER BY r.id

-- name: list_batches
-- The newest batches of a run, newest first, each with the loss that was recorded at its commit.
SELECT b.id, b.step, b.state, b.setting_id, b.sampler, b.policy_version, b.included_version, i.rows, i.reward_mean,
       i.staleness_mean, i.staleness_max, m.value AS loss, b.created_at, b.committed_at
FROM (SELECT * FROM trinity.batch x WHERE x.run_id = %(run_id)s ORDER BY x.id DESC LIMIT %(limit)s) b
CROSS JOIN LATERAL (
    SELECT count(*) AS rows, avg(item.reward) AS reward_mean, avg(item.staleness)::double precision AS staleness_mean,
           max(item.staleness) AS staleness_max
    FROM trinity.batch_item item
    WHERE item.batch_id = b.id
) i
LEFT JOIN trinity.metric m ON m.run_id = %(run_id)s AND m.name = 'loss' AND m.step = b.step
                          AND m.created_at = b.committed_at
ORDER BY b.id DESC

-- name: status_disk
-- An estimate of how many rows a run has by family of tables, and how many bytes they take with their share of the
-- indexes.
--
-- Rows are counted by %(rows)s. Text, payloads and processing records are read for a sample of the rows, items for a
-- sample of the batches. Rows and metrics are sampled by id, one from each of some equal parts of all ids. If a run
-- has too few rows for that, the statement scans the hot rows. Free space inside the tables is not counted. It takes
-- about 50 ms for a million rows, and 100 ms more with the scan.
WITH part AS MATERIALIZED (
    SELECT coalesce(min(e.id), 0) AS first, coalesce(max(e.id) - min(e.id), 0) / %(sample)s + 1 AS ids
    FROM trinity.experience e
),
met AS MATERIALIZED (
    SELECT e.id
    FROM part
    CROSS JOIN generate_series(0, %(sample)s::integer) n
    CROSS JOIN LATERAL (SELECT part.first + part.ids * n + floor(random() * part.ids)::bigint AS id OFFSET 0) chosen
    JOIN trinity.experience e ON e.id = chosen.id AND e.run_id = %(run_id)s
),
picked AS MATERIALIZED (
    SELECT met.id FROM met WHERE (SELECT count(*) FROM met) >= %(sample)s / 10
    UNION ALL
    (SELECT e.id FROM trinity.experience e
     WHERE e.run_id = %(run_id)s AND (SELECT count(*) FROM met) < %(sample)s / 10
     ORDER BY hashint8extended(e.id, 0) LIMIT %(sample)s)
),
batches AS MATERIALIZED (
    SELECT b.id, pg_column_size(b.*) + coalesce(pg_column_size(b.query), 0) AS bytes, count(*) OVER () AS rows
    FROM trinity.batch b WHERE b.run_id = %(run_id)s
    ORDER BY hashint8extended(b.id, 0) LIMIT %(sample)s / 50
),
part_of_metrics AS MATERIALIZED (
    SELECT coalesce(min(m.id), 0) AS first, coalesce(max(m.id) - min(m.id), 0) / %(sample)s + 1 AS ids
    FROM trinity.metric m
),
measured AS MATERIALIZED (
    SELECT pg_column_size(m.*) * part.ids AS bytes, part.ids AS rows
    FROM part_of_metrics part
    CROSS JOIN generate_series(0, %(sample)s::integer) n
    CROSS JOIN LATERAL (SELECT part.first + part.ids * n + floor(random() * part.ids)::bigint AS id OFFSET 0) chosen
    JOIN trinity.metric m ON m.id = chosen.id AND m.run_id = %(run_id)s
),
found (family, relation, looked_at, of, rows, bytes) AS MATERIALIZED (
    SELECT 'hot rows', 'experience', count(*), %(rows)s::bigint, count(*), sum(pg_column_size(e.*))
    FROM picked p JOIN trinity.experience e ON e.id = p.id
    UNION ALL
    SELECT 'text', 'experience_text', (SELECT count(*) FROM picked), %(rows)s, count(*),
           sum(40 + coalesce(pg_column_size(x.prompt), 0) + coalesce(pg_column_size(x.response), 0)
               + coalesce(pg_column_size(x.messages), 0) + coalesce(pg_column_size(x.tools), 0)
               + coalesce(pg_column_size(x.reply), 0) + coalesce(pg_column_size(x.extra), 0)
               + coalesce(pg_column_size(x.state), 0))
    FROM picked p JOIN trinity.experience_text x ON x.experience_id = p.id
    UNION ALL
    SELECT 'payloads', 'payload', (SELECT count(*) FROM picked), %(rows)s, count(*),
           sum(64 + coalesce(pg_column_size(y.data), 0))
    FROM picked p JOIN trinity.payload y ON y.experience_id = p.id
    UNION ALL
    SELECT 'processing', 'processing', (SELECT count(*) FROM picked), %(rows)s, count(*), sum(pg_column_size(c.*))
    FROM picked p JOIN trinity.processing c ON c.experience_id = p.id
    UNION ALL
    SELECT 'batches', 'batch', count(*), max(b.rows), count(*), sum(b.bytes) FROM batches b
    UNION ALL
    SELECT 'batch items', 'batch_item', (SELECT count(*) FROM batches), (SELECT max(b.rows) FROM batches b), count(*),
           sum(pg_column_size(i.*))
    FROM batches b JOIN trinity.batch_item i ON i.batch_id = b.id
    UNION ALL
    SELECT 'metrics', 'metric', 1, 1, coalesce(sum(m.rows), 0), sum(m.bytes) FROM measured m
)
SELECT f.family,
       coalesce(round(f.rows * f.of / nullif(f.looked_at, 0)), 0)::bigint AS rows,
       coalesce(round(f.bytes * f.of / nullif(f.looked_at, 0)
                      * (pg_total_relation_size(c.oid) / nullif(pg_table_size(c.oid), 0)::numeric)), 0)::bigint AS bytes
FROM found f
JOIN pg_class c ON c.relname = f.relation AND c.relnamespace = 'trinity'::regnamespace AND c.relkind = 'r'
