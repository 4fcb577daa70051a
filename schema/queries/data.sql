-- name: create_taskset
-- Creates a taskset; no effect if the name is taken.
INSERT INTO trinity.taskset (name) VALUES (%(name)s) ON CONFLICT (name) DO NOTHING

-- name: describe_tasks
-- Whether a taskset has tasks, and whether a data set of the same name has responses to them.
SELECT EXISTS (SELECT FROM trinity.task t JOIN trinity.taskset s ON s.id = t.taskset_id WHERE s.name = %(name)s) AS has_tasks,
       EXISTS (SELECT FROM trinity.rollout_group g JOIN trinity.run r ON r.id = g.run_id
               WHERE r.name = %(name)s AND r.kind = 'data') AS of_responses

-- name: insert_tasks
-- Adds tasks. Existing tasks are unchanged. New ones are numbered after the highest number; imports into a taskset
-- are serialised (lock_tasksets), so no number is assigned twice.
WITH fresh AS (
    SELECT s.id AS taskset_id, n.key, n.payload, n.prompt_digest, row_number() OVER (ORDER BY n.ordinal) AS number
    FROM unnest(%(keys)s::text[], %(payloads)s::text[], %(digests)s::bytea[])
         WITH ORDINALITY AS n (key, payload, prompt_digest, ordinal)
    JOIN trinity.taskset s ON s.name = %(name)s
    WHERE (SELECT t.id FROM trinity.task t WHERE t.taskset_id = s.id AND t.key = n.key) IS NULL
)
INSERT INTO trinity.task (taskset_id, key, payload, prompt_digest, ordinal)
SELECT f.taskset_id, f.key, f.payload::jsonb, f.prompt_digest, l.highest + f.number
FROM fresh f
CROSS JOIN (SELECT coalesce(max(t.ordinal), -1) AS highest FROM trinity.task t
            WHERE t.taskset_id = (SELECT s.id FROM trinity.taskset s WHERE s.name = %(name)s)) l
ORDER BY f.number

-- name: find_tasks
-- Ids of the tasks of a taskset with these keys.
SELECT t.key, t.id
FROM trinity.task t
JOIN trinity.taskset s ON s.id = t.taskset_id
WHERE s.name = %(name)s AND t.key = ANY(%(keys)s)

-- name: find_prompt
-- A task of a taskset whose prompt has this digest.
SELECT t.id
FROM trinity.task t
WHERE t.taskset_id = (SELECT s.id FROM trinity.taskset s WHERE s.name = %(name)s) AND t.prompt_digest = %(digest)s
LIMIT 1

-- name: shared_prompts
-- The other tasksets with tasks that have the same prompts, and the number of such tasks in this one, whatever else
-- the tasks contain. Prompts are compared by a 64-bit hash; a million tasks take some seconds. Prompts of imported
-- responses do not count.
WITH asked AS MATERIALIZED (
    SELECT t.id, t.taskset_id,
           hashtextextended(coalesce(t.payload -> 'messages', t.payload -> 'prompt')::text, 0) AS prompt
    FROM trinity.task t
)
SELECT s.name, count(DISTINCT t.id) AS tasks
FROM trinity.taskset m
JOIN asked t ON t.taskset_id = m.id
JOIN asked o ON o.prompt = t.prompt AND o.taskset_id <> m.id
JOIN trinity.taskset s ON s.id = o.taskset_id
WHERE m.name = %(name)s AND NOT EXISTS (SELECT FROM trinity.run r WHERE r.name = s.name AND r.kind = 'data')
GROUP BY s.name
ORDER BY tasks DESC, s.name

-- name: find_imported
-- Which of these rows the data set already has.
SELECT e.import_key, e.id
FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.import_key = ANY(%(keys)s::uuid[])

-- name: insert_demonstration
-- Adds one response to a locked data set, unless it exists. Replaces COPY, which logins subject to policies may not
-- use.
WITH made AS (
    INSERT INTO trinity.experience (run_id, step, state, import_key)
    SELECT %(run_id)s, 0, 'ready', %(key)s
    WHERE NOT EXISTS (SELECT FROM trinity.experience e WHERE e.run_id = %(run_id)s AND e.import_key = %(key)s)
    RETURNING id
)
INSERT INTO trinity.experience_text (experience_id, prompt, response, messages)
SELECT made.id, %(prompt)s, %(response)s, %(messages)s FROM made
RETURNING experience_id AS id

-- name: reserve_ids
-- Reserves ids for new rows, so that they can refer to each other within one COPY.
SELECT nextval('trinity.rollout_id_seq') AS rollout_id, nextval('trinity.experience_id_seq') AS experience_id
FROM generate_series(1, %(count)s)

-- name: join_groups
-- Makes room for new members in the groups of their tasks. A task gets a new group if it has none, or only full ones
-- (the counters are smallint). The first new member has the ordinal `first`. Locks the groups in order of id, like
-- every statement, whatever the order of the file.
WITH joining AS (
    SELECT n.task_id, n.members,
           (SELECT max(g.id) FROM trinity.rollout_group g
            WHERE g.run_id = %(run_id)s AND g.task_id = n.task_id AND g.arrived + n.members <= 32767) AS group_id
    FROM unnest(%(task_ids)s::bigint[], %(members)s::integer[]) AS n (task_id, members)
),
held AS MATERIALIZED (
    SELECT g.id FROM trinity.rollout_group g
    WHERE g.id = ANY(ARRAY(SELECT j.group_id FROM joining j))
    ORDER BY g.id
    FOR NO KEY UPDATE
),
grown AS (
    UPDATE trinity.rollout_group g SET expected = g.expected + j.members, arrived = g.arrived + j.members
    FROM held JOIN joining j ON j.group_id = held.id
    WHERE g.id = held.id
    RETURNING g.task_id, g.id, g.arrived - j.members AS first
),
started AS (
    INSERT INTO trinity.rollout_group (run_id, task_id, state, expected, arrived, completed_at)
    SELECT %(run_id)s, j.task_id, 'ready', j.members, j.members, now()
    FROM joining j
    WHERE j.group_id IS NULL
    ORDER BY j.task_id
    RETURNING task_id, id, 0 AS first
)
SELECT task_id, id, first FROM grown UNION ALL SELECT task_id, id, first FROM started

-- name: insert_pairs
-- Adds imported preferences. Existing pairs of the data set are unchanged.
INSERT INTO trinity.preference (run_id, chosen_id, rejected_id, source, margin, extra)
SELECT %(run_id)s, n.chosen_id, n.rejected_id, 'import', n.margin, n.extra::jsonb
FROM unnest(%(chosen_ids)s::bigint[], %(rejected_ids)s::bigint[], %(margins)s::double precision[],
            %(extras)s::text[]) WITH ORDINALITY AS n (chosen_id, rejected_id, margin, extra, ordinal)
ORDER BY n.ordinal
ON CONFLICT (run_id, chosen_id, rejected_id) DO NOTHING

-- name: export_tasks
-- All tasks of a taskset, in order of id.
SELECT t.payload
FROM trinity.task t
JOIN trinity.taskset s ON s.id = t.taskset_id
WHERE s.name = %(name)s
ORDER BY t.id

-- name: export_demonstrations
-- Imported responses without a group.
SELECT x.prompt, x.messages, x.tools, x.response, x.reply, x.extra
FROM trinity.experience e
JOIN trinity.run r ON r.id = e.run_id
JOIN trinity.experience_text x ON x.experience_id = e.id
WHERE r.name = %(name)s AND e.group_id IS NULL AND e.source_id IS NULL
ORDER BY e.id

-- name: export_trajectories
-- All attempts of a run or a data set, except those of evaluations, by step, with their current rewards. The prompt
-- is the task's, since a run applies its template again. Only a user's own workflow may have asked something else,
-- which is in `asked`. `experience` distinguishes equal answers of a run: no other row of any store has this id.
-- Imported rows are distinguished by content.
SELECT t.payload, CASE WHEN position('.py:' IN r.config #>> '{explorer,workflow}') > 0 THEN x.prompt END AS asked,
       x.response, x.reply, e.reward, m.model, x.extra,
       CASE WHEN e.import_key IS NULL
            THEN md5(concat_ws('/', r.name, extract(epoch FROM r.created_at), e.id)) END AS experience
FROM trinity.experience e
JOIN trinity.run r ON r.id = e.run_id
JOIN trinity.experience_text x ON x.experience_id = e.id
JOIN trinity.rollout m ON m.id = e.rollout_id
JOIN trinity.rollout_group g ON g.id = e.group_id
JOIN trinity.task t ON t.id = g.task_id
WHERE r.name = %(name)s AND e.source_id IS NULL AND g.evaluation_id IS NULL
ORDER BY e.id

-- name: export_traces
-- The sequences of all successful attempts with tokens of a run or a data set, by step, with their current rewards.
-- Greedy attempts and those of evaluations are excluded: no training uses them. `attempt` distinguishes a run's
-- attempts, and `rewards` contains the attempt's rewards by name; imported rows have them in `extra`.
SELECT e.rollout_id, e.group_id, e.id, e.reward, x.prompt, x.response, x.extra, m.model, t.payload AS task,
       CASE WHEN e.import_key IS NULL
            THEN md5(concat_ws('/', r.name, extract(epoch FROM r.created_at), 'attempt', m.id)) END AS attempt,
       CASE WHEN e.import_key IS NULL AND e.step = 0
            THEN (SELECT jsonb_object_agg(v.name, v.value)
                  FROM (SELECT DISTINCT ON (v.name) v.name, v.value FROM trinity.reward_event v
                        WHERE v.rollout_id = m.id ORDER BY v.name, v.id DESC) v) END AS rewards
FROM trinity.experience e
JOIN trinity.run r ON r.id = e.run_id
JOIN trinity.payload p ON p.experience_id = e.id
JOIN trinity.experience_text x ON x.experience_id = e.id
JOIN trinity.rollout m ON m.id = e.rollout_id
JOIN trinity.rollout_group g ON g.id = e.group_id
JOIN trinity.task t ON t.id = g.task_id
WHERE r.name = %(name)s AND e.source_id IS NULL AND g.evaluation_id IS NULL AND m.state = 'finished' AND NOT m.greedy
ORDER BY e.rollout_id, e.step

-- name: export_pairs
-- Pairs, with `asked` as in export_trajectories; no workflow made the prompts of adopted rows. Pairs that a run
-- derived from rewards include the ids of their rows, which keeps pairs of equal answers apart.
SELECT t.payload, x.response AS chosen, y.response AS rejected, x.reply AS chosen_reply, y.reply AS rejected_reply,
       p.margin, p.extra,
       CASE WHEN p.source = 'pair'
            THEN md5(concat_ws('/', r.name, extract(epoch FROM r.created_at), p.chosen_id)) END AS chosen_experience,
       CASE WHEN p.source = 'pair'
            THEN md5(concat_ws('/', r.name, extract(epoch FROM r.created_at), p.rejected_id)) END AS rejected_experience,
       CASE WHEN chosen.source_id IS NULL AND position('.py:' IN r.config #>> '{explorer,workflow}') > 0
            THEN x.prompt END AS asked
FROM trinity.preference p
JOIN trinity.run r ON r.id = p.run_id
JOIN trinity.experience chosen ON chosen.id = p.chosen_id
JOIN trinity.rollout_group g ON g.id = chosen.group_id
JOIN trinity.task t ON t.id = g.task_id
JOIN trinity.experience_text x ON x.experience_id = coalesce(chosen.source_id, chosen.id)
JOIN trinity.experience rejected ON rejected.id = p.rejected_id
JOIN trinity.experience_text y ON y.experience_id = coalesce(rejected.source_id, rejected.id)
WHERE r.name = %(name)s
ORDER BY p.id

-- name: export_verdicts
-- Responses with a verdict (an imported one, or a later event of the same name), except those of evaluations. The
-- latest verdict counts. `asked` is as in export_trajectories.
SELECT t.payload, CASE WHEN position('.py:' IN r.config #>> '{explorer,workflow}') > 0 THEN x.prompt END AS asked,
       x.response, x.reply, v.value > 0 AS label, x.extra,
       CASE WHEN e.import_key IS NULL
            THEN md5(concat_ws('/', r.name, extract(epoch FROM r.created_at), e.id)) END AS experience
FROM trinity.experience e
JOIN trinity.run r ON r.id = e.run_id
JOIN trinity.experience_text x ON x.experience_id = e.id
JOIN trinity.rollout_group g ON g.id = e.group_id
JOIN trinity.task t ON t.id = g.task_id
JOIN LATERAL (SELECT v.value FROM trinity.reward_event v
              WHERE v.rollout_id = e.rollout_id AND v.name = 'label' ORDER BY v.id DESC LIMIT 1) v ON true
WHERE r.name = %(name)s AND e.source_id IS NULL AND g.evaluation_id IS NULL
ORDER BY e.id
