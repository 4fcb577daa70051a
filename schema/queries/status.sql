-- name: status_runs
-- Every run, or the one with this id, with its workers that said no goodbye, its rows and its pairs by state, and
-- whether its latest batch took pairs. Counts are exact and scan the hot rows: about 100 ms for a million.
SELECT r.id, r.name AS run, r.kind,
       CASE WHEN r.deleting_at IS NULL THEN r.state::text ELSE 'being deleted' END AS state,
       r.created_at, r.finished_at, p.version AS policy_version, p.step,
       p.published_at, coalesce(w.workers, '[]') AS workers, coalesce(e.states, '{}') AS experiences,
       coalesce(q.states, '{}') AS preferences,
       EXISTS (SELECT FROM trinity.batch_item i
               WHERE i.batch_id = (SELECT max(b.id) FROM trinity.batch b WHERE b.run_id = r.id)
                 AND i.preference_id IS NOT NULL) AS draws_pairs
FROM trinity.run r
LEFT JOIN LATERAL (
    SELECT p.version, p.step, p.published_at
    FROM trinity.policy_version p
    WHERE p.run_id = r.id
    ORDER BY p.version DESC
    LIMIT 1
) p ON true
LEFT JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_object('role', w.role, 'host', w.host, 'pid', w.pid, 'started_at', w.started_at,
                                        'silent_seconds', w.silent, 'alive', w.alive)
                     ORDER BY w.role, w.id) AS workers
    FROM (SELECT w.id, w.role, w.host, w.pid, w.started_at,
                 round(extract(epoch FROM clock_timestamp() - w.heartbeat_at), 1) AS silent,
                 trinity.is_alive(w.heartbeat_at, %(lease_seconds)s) AS alive
          FROM trinity.worker w
          WHERE w.run_id = r.id AND w.stopped_at IS NULL) w
) w ON true
LEFT JOIN (
    SELECT s.run_id, jsonb_object_agg(s.state, s.rows) AS states
    FROM (SELECT e.run_id, e.state, count(*) AS rows
          FROM trinity.experience e
          WHERE %(run_id)s::bigint IS NULL OR e.run_id = %(run_id)s
          GROUP BY e.run_id, e.state) s
    GROUP BY s.run_id
) e ON e.run_id = r.id
LEFT JOIN (
    SELECT s.run_id, jsonb_object_agg(s.state, s.rows) AS states
    FROM (SELECT p.run_id, p.state, count(*) AS rows
          FROM trinity.preference p
          WHERE %(run_id)s::bigint IS NULL OR p.run_id = %(run_id)s
          GROUP BY p.run_id, p.state) s
    GROUP BY s.run_id
) q ON q.run_id = r.id
WHERE %(run_id)s::bigint IS NULL OR r.id = %(run_id)s
ORDER BY r.id

-- name: status_detail
-- How one run fares: groups by state, staleness of its latest batches, what was explored and trained lately, the reward of
-- its newest versions and the loss of their last steps, why rows were dropped, whose rewards are awaited (NULL: nobody's),
-- how many rows cannot be learned from as they have no reward for a label, which writes came too late. Counts are exact
-- and scan rows, rollouts and verdicts: some hundred milliseconds for a million.
SELECT (SELECT coalesce(jsonb_object_agg(s.state, s.rows), '{}')
        FROM (SELECT g.state, count(*) AS rows FROM trinity.rollout_group g
              WHERE g.run_id = %(run_id)s GROUP BY g.state) s) AS groups,
       (SELECT jsonb_build_object('batches', count(DISTINCT b.id), 'mean', avg(i.staleness), 'max', max(i.staleness))
        FROM (SELECT b.id FROM trinity.batch b
              WHERE b.run_id = %(run_id)s AND b.state <> 'reopened'
              ORDER BY b.step DESC LIMIT %(batches)s) b
        JOIN trinity.batch_item i ON i.batch_id = b.id
        WHERE i.staleness IS NOT NULL) AS staleness,
       jsonb_build_object(
           'seconds', %(window_seconds)s::integer,
           'rollouts_per_second',
           (SELECT round(count(*) / %(window_seconds)s::numeric, 2) FROM trinity.rollout m
            WHERE m.run_id = %(run_id)s AND m.finished_at > now() - make_interval(secs => %(window_seconds)s)),
           'trained_rows_per_second',
           (SELECT round(count(*) / %(window_seconds)s::numeric, 2)
            FROM trinity.batch b JOIN trinity.batch_item i ON i.batch_id = b.id
            WHERE b.run_id = %(run_id)s AND b.state = 'committed'
              AND b.committed_at > now() - make_interval(secs => %(window_seconds)s))) AS rates,
       (SELECT coalesce(jsonb_agg(to_jsonb(v)), '[]')
        FROM (SELECT p.version, p.step, coalesce(e.rows, 0) AS experiences, e.reward,
                     (SELECT m.value FROM trinity.metric m
                      WHERE m.run_id = p.run_id AND m.name = 'loss' AND m.step = p.step
                      ORDER BY m.id DESC LIMIT 1) AS loss
              FROM trinity.policy_version p
              LEFT JOIN (SELECT e.version_min, count(*) AS rows, avg(e.reward) AS reward
                         FROM trinity.experience e
                         WHERE e.run_id = %(run_id)s
                           AND e.version_min > (SELECT max(p.version) - %(versions)s::integer
                                                FROM trinity.policy_version p WHERE p.run_id = %(run_id)s)
                         GROUP BY e.version_min) e ON e.version_min = p.version
              WHERE p.run_id = %(run_id)s
              ORDER BY p.version DESC LIMIT %(versions)s) v) AS rewards,
       (SELECT coalesce(jsonb_agg(to_jsonb(d)), '[]')
        FROM (SELECT d.stage, d.step, d.reason, count(d.experience_id) AS experiences, count(d.group_id) AS groups,
                     count(d.preference_id) AS preferences
              FROM trinity."drop" d
              WHERE d.run_id = %(run_id)s
              GROUP BY d.stage, d.step, d.reason
              ORDER BY count(*) DESC, d.stage, d.step, d.reason) d) AS drops,
       (SELECT jsonb_build_object('source', v.source, 'experiences', count(*), 'groups', count(DISTINCT v.group_id))
        FROM trinity.awaited_reward_view v
        WHERE v.run = (SELECT r.name FROM trinity.run r WHERE r.id = %(run_id)s)
        GROUP BY v.source) AS awaited,
       (SELECT count(*) FROM trinity.experience e
        WHERE e.run_id = %(run_id)s AND e.state = 'ready' AND e.draws_labels AND e.reward IS NULL) AS unlabelled,
       jsonb_build_object(
           'rollouts',
           (SELECT count(*) FROM trinity.rollout m WHERE m.run_id = %(run_id)s AND m.state = 'refused'),
           'processing',
           (SELECT count(*) FROM trinity.processing p JOIN trinity.experience e ON e.id = p.experience_id
            WHERE e.run_id = %(run_id)s AND p.outcome = 'refused'),
           'batches',
           (SELECT coalesce(sum(m.value), 0)::integer FROM trinity.metric m
            WHERE m.run_id = %(run_id)s AND m.name = 'refused/batches')) AS refused,
       (SELECT coalesce(jsonb_agg(to_jsonb(s) - 'run_id' ORDER BY s.id), '[]')
        FROM trinity.setback s WHERE s.run_id = %(run_id)s) AS setbacks,
       (SELECT jsonb_build_object('payloads', sum(a.num_rows), 'bytes', sum(a.num_bytes))
        FROM trinity.archive a WHERE a.run_id = %(run_id)s HAVING count(*) > 0) AS archived

-- name: status_disk
-- About how many rows a run has by family of tables, and how many bytes they take with their share of the indexes: an
-- estimate. Its rows are counted by %(rows)s; text, payloads and processing records are looked at for some of them, and
-- items for some of the batches. Rows and metrics are picked by id, one from each of some equal parts of all ids; a run
-- that has too few rows for that gets a scan of the hot rows. Space that is free inside the tables is not counted. About
-- 50 ms for a million rows, and 100 ms more with the scan.
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
               + coalesce(pg_column_size(x.messages), 0) + coalesce(pg_column_size(x.extra), 0)
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

-- name: show_experience
-- One experience with everything of which there is one. An adopted row shares the text of its source.
SELECT e.id, r.name AS run, e.state, e.held_out, e.reward, e.version_min, e.version_max,
       trinity.staleness((SELECT max(p.version) FROM trinity.policy_version p
        WHERE p.run_id = e.run_id AND p.checkpoint IS NOT NULL),
                         e.version_min, e.version_max) AS staleness_now,
       e.use_count, e.prompt_length, e.response_length, e.source_id, e.group_id, g.state AS group_state,
       m.ordinal AS member, e.rollout_id, e.step, m.greedy, m.model, m.finish_reason, m.started_at, m.finished_at,
       e.worker_id, e.attempt, e.created_at, s.name AS taskset, t.key AS task, t.payload AS task_payload,
       (SELECT p.pruned_at FROM trinity.payload p WHERE p.experience_id = e.id) AS arrays_pruned_at,
       x.prompt, x.response, x.messages, x.state AS environment
FROM trinity.experience e
JOIN trinity.run r ON r.id = e.run_id
LEFT JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
LEFT JOIN trinity.rollout m ON m.id = e.rollout_id
LEFT JOIN trinity.rollout_group g ON g.id = e.group_id
LEFT JOIN trinity.task t ON t.id = g.task_id
LEFT JOIN trinity.taskset s ON s.id = t.taskset_id
WHERE e.id = %(id)s

-- name: show_tokenizer
-- The folder whose tokenizer made an experience's tokens: the newest checkpoint of the run, or the model that the run
-- started from. NULL where the run has neither.
SELECT coalesce((SELECT p.checkpoint FROM trinity.policy_version p
                 WHERE p.run_id = e.run_id AND p.checkpoint IS NOT NULL ORDER BY p.version DESC LIMIT 1),
                r.config #>> '{model,path}') AS path
FROM trinity.experience e
JOIN trinity.run r ON r.id = e.run_id
WHERE e.id = %(id)s

-- name: show_rewards
-- What was said about an experience, the one it was adopted from, or their rollout; the latest of each name counts.
SELECT v.created_at, v.source, v.name, v.value, v.weight, v.created_by, v.detail,
       row_number() OVER (PARTITION BY v.name ORDER BY v.id DESC) = 1 AS latest
FROM trinity.experience e
CROSS JOIN LATERAL (
    SELECT v.* FROM trinity.reward_event v WHERE v.rollout_id = e.rollout_id
    UNION ALL
    SELECT v.* FROM trinity.reward_event v WHERE v.experience_id = ANY(ARRAY[e.id, e.source_id])
) v
WHERE e.id = %(id)s
ORDER BY v.id

-- name: show_processing
SELECT p.created_at, p.processor, p.processor_version, p.attempt, p.outcome, p.step, p.error
FROM trinity.processing p
WHERE p.experience_id = %(id)s
ORDER BY p.id

-- name: show_drops
-- Why an experience, or the group of a run's own experience, will not be trained on.
SELECT d.created_at, d.stage, d.step, d.reason, d.detail, d.group_id
FROM trinity.experience e
JOIN trinity."drop" d ON d.experience_id = e.id OR (d.group_id = e.group_id AND d.run_id = e.run_id)
WHERE e.id = %(id)s
ORDER BY d.id

-- name: show_preferences
SELECT p.id, p.chosen_id, p.rejected_id, p.state, p.source, p.margin, p.use_count, p.held_out
FROM trinity.preference p
WHERE p.chosen_id = %(id)s OR p.rejected_id = %(id)s
ORDER BY p.id

-- name: show_batches
-- The batches an experience was in, with the numbers they used.
SELECT b.id, b.step, b.state, b.sampler, b.policy_version, b.included_version, i.ordinal, i.preference_id, i.reward,
       i.advantage, i.staleness, i.weight, i.probability, b.created_at, b.committed_at
FROM trinity.batch_item i
JOIN trinity.batch b ON b.id = i.batch_id
WHERE i.experience_id = %(id)s
ORDER BY b.id, i.ordinal
