-- name: page_runs
-- Progress of each run: the numbers of its last committed step, and its configured number of steps; NULL if not
-- configured.
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
-- The choices of the run filter: runs and data sets, newest first.
SELECT r.name FROM trinity.run r ORDER BY r.id DESC LIMIT 500

-- name: page_sources
-- Sources for a new run, newest first: tasksets, and data sets, whose prompts are in a taskset of the same name.
(SELECT 'taskset' AS kind, s.name
 FROM trinity.taskset s
 WHERE EXISTS (SELECT FROM trinity.task t WHERE t.taskset_id = s.id)
   AND NOT EXISTS (SELECT FROM trinity.run r WHERE r.name = s.name AND r.kind = 'data')
 ORDER BY s.id DESC LIMIT 500)
UNION ALL
(SELECT 'data', r.name FROM trinity.run r WHERE r.kind = 'data' AND r.deleting_at IS NULL ORDER BY r.id DESC LIMIT 500)

-- name: page_curves
-- Trainer metrics of a run with these names, at most :points each, every point the mean over the same number of
-- steps. For a repeated step the last measurement counts.
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
-- The newest :window experiences below :before that meet the conditions; a condition is NULL if not used. Texts and a
-- person's own condition are searched only among these, so a page costs the same in a store of any size.
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
-- Some experiences as in experience_view. A person's own condition on these columns filters them.
SELECT v.* FROM trinity.experience_view v WHERE v.id = ANY(%(ids)s::bigint[])

-- name: page_experiences
-- The newest :limit of some experiences (if :pattern is not NULL, of those with a matching text), with the first
-- characters of question and response.
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
       e.use_count, e.group_id, e.step, e.held_out, left(trinity.question(x.prompt, x.messages), 300) AS question,
       left(x.response, 300) AS response
FROM found
JOIN trinity.experience e ON e.id = found.id
JOIN trinity.run r ON r.id = e.run_id
LEFT JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
ORDER BY e.id DESC

-- name: page_group
-- A rollout group with its task and run.
SELECT g.id, r.name AS run, g.state, g.expected, g.arrived, g.failed, g.version_min, g.version_max, g.reward_mean,
       sqrt(g.reward_variance) AS reward_deviation, g.priority, g.use_count, g.evaluation_id, g.source_id, g.created_at,
       g.completed_at, g.task_id, s.name AS taskset, t.key AS task, t.payload
FROM trinity.rollout_group g
JOIN trinity.run r ON r.id = g.run_id
JOIN trinity.task t ON t.id = g.task_id
JOIN trinity.taskset s ON s.id = t.taskset_id
WHERE g.id = %(id)s

-- name: page_group_rows
-- The experiences of groups (if not NULL, only of one policy version), each with the beginning of its response, the
-- parts of its reward, the reason if it was dropped, and its last batch.
SELECT e.id, e.group_id, e.state, e.step, e.reward, e.version_min, e.version_max, e.response_length, m.ordinal, m.greedy,
       m.model, m.finish_reason, left(x.response, 6000) AS response, length(x.response) AS characters, p.parts, d.reason,
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
WHERE e.group_id = ANY(%(group_ids)s::bigint[]) AND (%(version)s::integer IS NULL OR e.version_min = %(version)s)
ORDER BY e.group_id DESC, m.ordinal, e.step, e.id
LIMIT %(limit)s

-- name: page_group_failures
-- The failed attempts of a group, with the beginning of the error and the end of the program's output.
SELECT m.ordinal, m.attempt, left(m.error, 2000) AS error, right(m.output, 2000) AS output, m.finished_at
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
-- Tables and views that this login may read, views first, each with its columns and their comments.
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

-- name: page_tasks
-- The tasks that a run attempted, as counted in task_stat: :limit of them in the order :sort, below the position
-- given as :rank and :below (NULL for the first page). Conditions are NULL if not used. A text is searched in the
-- prompts of the first :window tasks that meet the other conditions; `looked_at` is their number, and `last_rank` and
-- `last_id` are the position of the last one. Reward and version are those of a task's newest :groups groups. The
-- difficulty is that of drop_view.
WITH candidate AS MATERIALIZED (
    SELECT r.*
    FROM (SELECT f.*, CASE %(sort)s::text
                          WHEN 'lowest' THEN coalesce(-f.solved::float8 / nullif(f.scored, 0), -2)
                          WHEN 'highest' THEN coalesce(f.solved::float8 / nullif(f.scored, 0), -1)
                          WHEN 'attempts' THEN f.scored::float8
                          ELSE coalesce(extract(epoch FROM f.issued_at)::float8, 0) END AS rank
          FROM trinity.task_stat f
          WHERE f.run_id = %(run_id)s
            AND CASE %(solved)s::text WHEN 'never' THEN f.scored > 0 AND f.solved = 0
                                      WHEN 'always' THEN f.scored > 0 AND f.solved = f.scored
                                      WHEN 'sometimes' THEN f.solved > 0 AND f.solved < f.scored
                                      ELSE true END) r
    WHERE (%(below)s::bigint IS NULL OR (r.rank, r.task_id) < (%(rank)s::float8, %(below)s))
      AND (%(taskset)s::text IS NULL
           OR EXISTS (SELECT FROM trinity.task t JOIN trinity.taskset s ON s.id = t.taskset_id
                      WHERE t.id = r.task_id AND s.name = %(taskset)s))
    ORDER BY r.rank DESC, r.task_id DESC
    LIMIT %(window)s
),
found AS MATERIALIZED (
    SELECT c.*
    FROM candidate c
    WHERE %(pattern)s::text IS NULL
       OR EXISTS (SELECT FROM trinity.task t
                  WHERE t.id = c.task_id
                    AND coalesce(t.payload ->> 'prompt', t.payload ->> 'messages') ILIKE %(pattern)s)
    ORDER BY c.rank DESC, c.task_id DESC
    LIMIT %(limit)s
)
SELECT l.looked_at, l.last_rank, l.last_id, f.*
FROM (SELECT count(*) AS looked_at, (array_agg(c.rank ORDER BY c.rank, c.task_id))[1] AS last_rank,
             (array_agg(c.task_id ORDER BY c.rank, c.task_id))[1] AS last_id
      FROM candidate c) l
LEFT JOIN (
    SELECT f.task_id AS id, f.rank, f.issued, f.scored, f.solved, f.issued_at, s.name AS taskset,
           CASE WHEN f.scored > 0 THEN width_bucket(f.beta / (f.alpha + f.beta), 0, 1, 4) END AS difficulty,
           left(coalesce(t.payload ->> 'prompt', t.payload #>> '{messages,-1,content}'), 300) AS prompt, g.reward, g.version
    FROM found f
    JOIN trinity.task t ON t.id = f.task_id
    JOIN trinity.taskset s ON s.id = t.taskset_id
    CROSS JOIN LATERAL (
        SELECT sum(n.reward_mean * n.reward_count) / nullif(sum(n.reward_count), 0) AS reward, max(n.version_max) AS version
        FROM (SELECT g.reward_mean, g.reward_count, g.version_max
              FROM trinity.rollout_group g
              WHERE g.run_id = f.run_id AND g.task_id = f.task_id AND g.evaluation_id IS NULL
              ORDER BY g.id DESC LIMIT %(groups)s) n
    ) g
) f ON true
ORDER BY f.rank DESC, f.id DESC

-- name: page_tasksets
-- The tasksets that a run explores.
SELECT s.name
FROM trinity.task_pass p JOIN trinity.taskset s ON s.id = p.taskset_id
WHERE p.run_id = %(run_id)s
ORDER BY s.name

-- name: page_task
-- A task as counted for one run, with the first and last policy version that attempted it, including evaluations.
SELECT t.id, t.key, t.payload, t.level, t.created_at, s.name AS taskset, f.issued, f.scored, f.solved, f.issued_at,
       CASE WHEN f.scored > 0 THEN width_bucket(f.beta / (f.alpha + f.beta), 0, 1, 4) END AS difficulty,
       g.first, g.last
FROM trinity.task t
JOIN trinity.taskset s ON s.id = t.taskset_id
LEFT JOIN trinity.task_stat f ON f.run_id = %(run_id)s AND f.task_id = t.id
CROSS JOIN LATERAL (SELECT min(g.version_min) AS first, max(g.version_min) AS last
                    FROM trinity.rollout_group g WHERE g.run_id = %(run_id)s AND g.task_id = t.id) g
WHERE t.id = %(id)s

-- name: page_task_versions
-- Rewards of each policy version at a task: for the newest :versions versions, and the newest :groups groups of each,
-- separately for training and evaluation. An attempt belongs to the version of its oldest token. In training it
-- counts as in task_stat: its group was settled, and no step of it was lost before. In an evaluation it counts as in
-- evaluation_task_view. Rewards are the current ones.
WITH grouped AS MATERIALIZED (
    SELECT n.id, n.state, n.evaluation_id
    FROM (SELECT g.id, g.state, g.evaluation_id, dense_rank() OVER (ORDER BY g.version_min DESC) AS age,
                 row_number() OVER (PARTITION BY g.version_min, g.evaluation_id IS NULL ORDER BY g.id DESC) AS place
          FROM trinity.rollout_group g
          WHERE g.run_id = %(run_id)s AND g.task_id = %(id)s AND g.version_min IS NOT NULL) n
    WHERE n.age <= %(versions)s AND n.place <= %(groups)s
),
attempt AS (
    SELECT min(e.version_min) AS version,
           CASE WHEN g.state IN ('ready', 'leased', 'trained', 'dropped')
                     AND bool_and(d.id IS NULL OR d.stage IN ('group', 'draw') AND d.reason <> 'partial_attempt')
                THEN trinity.attempt_reward(e.rollout_id, count(e.reward), sum(e.reward), min(e.reward), max(e.reward))
           END AS reward
    FROM grouped g
    JOIN trinity.experience e ON e.group_id = g.id AND e.source_id IS NULL
    LEFT JOIN trinity."drop" d ON d.experience_id = e.id
    WHERE g.evaluation_id IS NULL
    GROUP BY g.id, g.state, e.rollout_id
)
SELECT false AS evaluated, a.version, count(*) AS attempts, count(a.reward) AS judged,
       count(*) FILTER (WHERE a.reward >= r.solved_reward) AS solved, avg(a.reward) AS reward
FROM attempt a,
     (SELECT coalesce((r.config #>> '{processors,group,solved_reward}')::float8, 1) AS solved_reward
      FROM trinity.run r WHERE r.id = %(run_id)s) r
GROUP BY a.version
UNION ALL
SELECT true, w.version, sum(w.samples)::bigint, sum(w.judged)::bigint, sum(w.solved)::bigint,
       sum(w.reward * w.judged) / nullif(sum(w.judged), 0)
FROM trinity.evaluation_task_view w
WHERE w.group_id = ANY(ARRAY(SELECT g.id FROM grouped g WHERE g.evaluation_id IS NOT NULL))
GROUP BY w.version
ORDER BY 2 DESC, 1

-- name: page_task_groups
-- The newest groups of a task with an attempt whose oldest token is from a policy version.
SELECT g.id
FROM trinity.rollout_group g
WHERE g.run_id = %(run_id)s AND g.task_id = %(id)s AND %(version)s BETWEEN g.version_min AND g.version_max
  AND EXISTS (SELECT FROM trinity.experience e WHERE e.group_id = g.id AND e.version_min = %(version)s)
ORDER BY g.id DESC
LIMIT %(limit)s

-- name: page_evaluations
-- The evaluations of a run (if :taskset is not NULL, on this taskset), newest versions first, below the evaluation
-- :before (NULL for the first page). The results are read one evaluation at a time: about 0.1 ms per attempt.
SELECT v.id, s.name AS taskset, v.version, v.samples, v.temperature, v.finished_at, v.error
FROM trinity.evaluation v JOIN trinity.taskset s ON s.id = v.taskset_id
WHERE v.run_id = %(run_id)s AND (%(taskset)s::text IS NULL OR s.name = %(taskset)s)
  AND (%(before)s::bigint IS NULL
       OR (v.version, v.id) < (SELECT o.version, o.id FROM trinity.evaluation o WHERE o.id = %(before)s))
ORDER BY v.version DESC, v.id DESC
LIMIT %(limit)s

-- name: page_best_limits
-- The interval of best@k of an evaluation, which is not in evaluation_view.
SELECT a.best_low, a.best_high
FROM trinity.evaluation v CROSS JOIN LATERAL trinity.evaluation_at(v.id, v.samples) a
WHERE v.id = %(id)s

-- name: page_evaluated
-- The evaluations of a run by taskset and number of attempts, with the first and last version.
SELECT s.name AS taskset, v.samples, min(v.version) AS first, max(v.version) AS last
FROM trinity.evaluation v JOIN trinity.taskset s ON s.id = v.taskset_id
WHERE v.run_id = %(run_id)s
GROUP BY s.name, v.samples
ORDER BY s.name, v.samples

-- name: page_evaluation_curves
-- Results of a run's evaluations when they ended, by version; if a version has several of one name, the last one.
-- Only the newest :limit measurements.
SELECT DISTINCT ON (m.name, p.version) m.name, p.version, m.value
FROM (SELECT m.id, m.name, m.step, m.value FROM trinity.metric m
      WHERE m.run_id = %(run_id)s AND m.name = ANY(%(names)s::text[])
      ORDER BY m.id DESC LIMIT %(limit)s) m
JOIN trinity.policy_version p ON p.run_id = %(run_id)s AND p.step = m.step
ORDER BY m.name, p.version, m.id DESC

-- name: page_evaluation_pairs
-- Pairs of evaluations that two versions of a run have in common: with the same settings and taskset; only one
-- taskset if :taskset is not NULL.
SELECT a.id AS before, b.id AS after, s.name AS taskset, a.samples, a.temperature, a.max_new_tokens
FROM trinity.evaluation a
JOIN trinity.evaluation b ON b.run_id = a.run_id AND b.taskset_id = a.taskset_id AND b.samples = a.samples
                         AND b.temperature = a.temperature AND b.max_new_tokens = a.max_new_tokens AND b.seed = a.seed
JOIN trinity.taskset s ON s.id = a.taskset_id
WHERE a.run_id = %(run_id)s AND a.version = %(a)s AND b.version = %(b)s
  AND (%(taskset)s::text IS NULL OR s.name = %(taskset)s)
ORDER BY s.name, a.id
LIMIT %(limit)s

-- name: page_evaluation_tasks
-- The tasks of an evaluation with the rewards of their attempts, in order, after the group :after (NULL for the first
-- page).
SELECT w.group_id, w.judged, w.failed, w.solved, w.reward, w.best, t.id AS task_id,
       left(coalesce(t.payload ->> 'prompt', t.payload #>> '{messages,-1,content}'), 300) AS prompt
FROM trinity.evaluation_task_view w
JOIN trinity.rollout_group g ON g.id = w.group_id
JOIN trinity.task t ON t.id = g.task_id
WHERE w.evaluation_id = %(id)s AND (%(after)s::bigint IS NULL OR w.group_id > %(after)s)
  AND CASE %(solved)s::text WHEN 'never' THEN w.judged > 0 AND w.solved = 0
                            WHEN 'always' THEN w.judged > 0 AND w.solved = w.judged
                            WHEN 'sometimes' THEN w.solved > 0 AND w.solved < w.judged
                            ELSE true END
ORDER BY w.group_id
LIMIT %(limit)s
