-- name: page_runs
-- How far each run is, by the numbers of its last committed step, and how many steps it is to make; NULL if its
-- configuration says none.
SELECT r.id AS run_id, b.step, b.reward, b.staleness,
       CASE WHEN jsonb_typeof(r.config #> '{trainer,steps}') = 'number'
            THEN (r.config #> '{trainer,steps}')::numeric END AS steps
FROM trinity.run r
LEFT JOIN LATERAL (
    SELECT last.step, avg(i.reward) AS reward, max(i.staleness) AS staleness
    FROM (SELECT b.id, b.step FROM trinity.batch b
          WHERE b.run_id = r.id AND b.state = 'committed' ORDER BY b.step DESC LIMIT 1) last
    JOIN trinity.batch_item i ON i.batch_id = last.id
    GROUP BY last.step
) b ON true

-- name: page_run_names
-- What can be chosen as a filter: the runs and data sets, newest first.
SELECT r.name FROM trinity.run r ORDER BY r.id DESC LIMIT 500

-- name: page_curves
-- The metrics of a run's trainer with these names, at most :points of each, every one the mean over as many steps. Of a
-- step that was trained on again, the last measurement counts.
SELECT l.name, min(l.step) AS step, avg(l.value) AS value
FROM (SELECT DISTINCT ON (m.name, m.step) m.name, m.step, m.value
      FROM trinity.metric m
      WHERE m.run_id = %(run_id)s AND m.name = ANY(%(names)s::text[]) AND m.role = 'train'
      ORDER BY m.name, m.step, m.id DESC) l
CROSS JOIN (SELECT coalesce(max(b.step), 0) / %(points)s::integer + 1 AS width
            FROM trinity.batch b WHERE b.run_id = %(run_id)s) w
GROUP BY l.name, l.step / w.width
ORDER BY l.name, min(l.step)

-- name: page_candidates
-- The newest :window experiences below :before that meet the conditions, NULL for one that is not made. A text and a
-- condition of a person are looked for in these alone, so that a page costs the same in a store of any size.
SELECT e.id
FROM trinity.experience e
WHERE (%(run_id)s::bigint IS NULL OR e.run_id = %(run_id)s)
  AND (%(before)s::bigint IS NULL OR e.id < %(before)s)
  AND (%(version)s::integer IS NULL OR %(version)s BETWEEN e.version_min AND e.version_max)
  AND (%(state)s::text IS NULL OR e.state::text = %(state)s)
  AND (%(reward_from)s::float8 IS NULL OR e.reward >= %(reward_from)s)
  AND (%(reward_to)s::float8 IS NULL OR e.reward <= %(reward_to)s)
  AND (%(task)s::text IS NULL
       OR e.group_id IN (SELECT g.id FROM trinity.rollout_group g JOIN trinity.task t ON t.id = g.task_id
                         WHERE t.key = %(task)s AND (%(run_id)s::bigint IS NULL OR g.run_id = %(run_id)s)))
  AND (%(reason)s::text IS NULL
       OR e.id IN (SELECT d.experience_id FROM trinity."drop" d
                   WHERE d.reason = %(reason)s AND (%(run_id)s::bigint IS NULL OR d.run_id = %(run_id)s))
       OR e.group_id IN (SELECT d.group_id FROM trinity."drop" d
                         WHERE d.reason = %(reason)s AND (%(run_id)s::bigint IS NULL OR d.run_id = %(run_id)s)))
ORDER BY e.id DESC
LIMIT %(window)s

-- name: page_condition_rows
-- Some experiences as experience_view has them. A condition on these columns says which of them a person wants to see.
SELECT v.* FROM trinity.experience_view v WHERE v.id = ANY(%(ids)s::bigint[])

-- name: page_experiences
-- The newest :limit of some experiences, of those with a text if :pattern is not NULL, with the beginning of their texts.
WITH found AS MATERIALIZED (
    SELECT e.id
    FROM trinity.experience e
    LEFT JOIN trinity.experience_text x ON %(pattern)s::text IS NOT NULL
                                           AND x.experience_id = coalesce(e.source_id, e.id)
    WHERE e.id = ANY(%(ids)s::bigint[])
      AND (%(pattern)s::text IS NULL OR x.response ILIKE %(pattern)s OR x.prompt ILIKE %(pattern)s)
    ORDER BY e.id DESC
    LIMIT %(limit)s
)
SELECT e.id, r.name AS run, e.state, e.reward, e.version_min, e.version_max, e.prompt_length, e.response_length,
       e.use_count, e.group_id, e.step, e.held_out, left(x.prompt, 200) AS prompt, left(x.response, 300) AS response
FROM found
JOIN trinity.experience e ON e.id = found.id
JOIN trinity.run r ON r.id = e.run_id
LEFT JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
ORDER BY e.id DESC

-- name: page_group
-- A rollout group with its task and run.
SELECT g.id, r.name AS run, g.state, g.expected, g.arrived, g.failed, g.version_min, g.version_max, g.reward_mean,
       sqrt(g.reward_variance) AS reward_deviation, g.priority, g.use_count, g.evaluation_id, g.source_id, g.created_at,
       g.completed_at, s.name AS taskset, t.key AS task, t.payload
FROM trinity.rollout_group g
JOIN trinity.run r ON r.id = g.run_id
JOIN trinity.task t ON t.id = g.task_id
JOIN trinity.taskset s ON s.id = t.taskset_id
WHERE g.id = %(id)s

-- name: page_group_rows
-- The experiences of a group, each with the beginning of its response, what its reward is made of, why it was dropped,
-- and the last batch that it was in.
SELECT e.id, e.state, e.step, e.reward, e.version_min, e.version_max, e.response_length, m.ordinal, m.greedy, m.model,
       m.finish_reason, left(x.response, 6000) AS response, length(x.response) AS characters, p.parts, d.reason,
       b.step AS batch_step, b.state AS used_state, b.advantage, b.staleness, b.included_version
FROM trinity.experience e
LEFT JOIN trinity.rollout m ON m.id = e.rollout_id
LEFT JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
LEFT JOIN trinity."drop" d ON d.experience_id = e.id
LEFT JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_object('source', v.source, 'name', v.name, 'value', v.value, 'weight', v.weight,
                                        'by', v.created_by, 'detail', a.detail) ORDER BY v.name) AS parts
    FROM trinity.reward_part_view v
    JOIN trinity.reward_event a ON a.id = v.event_id
    WHERE v.experience_id = e.id
) p ON true
LEFT JOIN LATERAL (
    SELECT o.step, o.state, o.included_version, i.advantage, i.staleness
    FROM trinity.batch_item i JOIN trinity.batch o ON o.id = i.batch_id
    WHERE i.experience_id = e.id ORDER BY o.id DESC LIMIT 1
) b ON true
WHERE e.group_id = %(id)s
ORDER BY m.ordinal, e.step, e.id
LIMIT %(limit)s

-- name: page_group_failures
-- The attempts of a group that failed, with the beginning of the error.
SELECT m.ordinal, m.attempt, left(m.error, 2000) AS error, m.finished_at
FROM trinity.rollout m
WHERE m.group_id = %(id)s AND m.state = 'failed'
ORDER BY m.ordinal, m.attempt
LIMIT %(limit)s

-- name: page_steps
-- The experiences of the same run that are steps of one rollout.
SELECT o.id, o.step
FROM trinity.experience e
JOIN trinity.experience o ON o.rollout_id = e.rollout_id AND o.run_id = e.run_id
WHERE e.id = %(id)s
ORDER BY o.step
LIMIT %(limit)s

-- name: page_catalogue
-- The store's tables and views that this login may read, views first, each with its columns and the comments on them.
SELECT c.relname AS name, CASE c.relkind WHEN 'v' THEN 'view' ELSE 'table' END AS kind,
       coalesce(obj_description(c.oid, 'pg_class'), '') AS comment, a.columns
FROM pg_class c
CROSS JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_array(a.attname, format_type(a.atttypid, a.atttypmod),
                                       coalesce(col_description(c.oid, a.attnum), '')) ORDER BY a.attnum) AS columns
    FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
) a
WHERE c.relnamespace = 'trinity'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
  AND has_table_privilege(c.oid, 'SELECT')
ORDER BY c.relkind IN ('v', 'm') DESC, c.relname
