-- name: create_run
-- Create a run; nothing when the name is taken.
INSERT INTO trinity.run (name, kind, config) VALUES (%(name)s, %(kind)s, %(config)s)
ON CONFLICT (name) DO NOTHING

-- name: find_run
SELECT id, name, kind, state, config, created_at, finished_at FROM trinity.run WHERE name = %(name)s

-- name: list_run_names
SELECT name FROM trinity.run ORDER BY id

-- name: run_state
SELECT state FROM trinity.run WHERE id = %(run_id)s

-- name: finish_run
-- The configured work is done: explorers and processors end. Harmless when repeated.
UPDATE trinity.run SET state = 'finished', finished_at = now() WHERE id = %(run_id)s AND state = 'active'

-- name: find_taskset
SELECT s.id, (SELECT count(*) FROM trinity.task t WHERE t.taskset_id = s.id) AS tasks
FROM trinity.taskset s WHERE s.name = %(name)s

-- name: adopt_experiences
-- Copy the hot rows of a data set into a run; text and rollouts stay shared. Rows the run has already are
-- left alone. All answers to one prompt are held out together, in whichever data sets they are.
INSERT INTO trinity.experience
    (run_id, source_id, group_id, rollout_id, step, state, reward, held_out, ready_xact)
SELECT %(run_id)s, e.id, e.group_id, e.rollout_id, e.step, 'ready', e.reward,
       abs(hashtextextended(x.prompt, 0) %% 1000000) < %(holdout)s::float8 * 1000000,
       pg_current_xact_id()::text::bigint
FROM trinity.experience e
JOIN trinity.experience_text x ON x.experience_id = e.id
WHERE e.run_id = %(source_run_id)s AND e.state = 'ready'
ORDER BY e.id
ON CONFLICT DO NOTHING

-- name: adopt_preferences
-- Copy the pairs of a data set into a run, over the rows it adopted.
INSERT INTO trinity.preference (run_id, chosen_id, rejected_id, source, margin, held_out)
SELECT %(run_id)s, chosen.id, rejected.id, p.source, p.margin, chosen.held_out
FROM trinity.preference p
JOIN trinity.experience chosen ON chosen.run_id = %(run_id)s AND chosen.source_id = p.chosen_id
JOIN trinity.experience rejected ON rejected.run_id = %(run_id)s AND rejected.source_id = p.rejected_id
WHERE p.run_id = %(source_run_id)s AND p.state = 'ready'
ORDER BY p.id
ON CONFLICT DO NOTHING

-- name: announce
-- Wake whoever waits on this run. Several in one transaction are one notification.
SELECT pg_notify('trinity_run_' || %(run_id)s::bigint, '')

-- name: record_metrics
INSERT INTO trinity.metric (run_id, role, step, name, value)
SELECT %(run_id)s, %(role)s, %(step)s, m.name, m.value
FROM unnest(%(names)s::text[], %(values)s::double precision[]) AS m (name, value)
