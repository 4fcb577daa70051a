-- name: groups_of_run
-- The rollout groups of a run, with their tasks.
SELECT g.id, g.state::text AS state, t.key AS task, s.name AS taskset, g.expected, g.arrived, g.failed, g.version_min,
       g.version_max, g.reward_count, g.reward_mean, g.reward_variance, g.priority, g.use_count, g.evaluation_id,
       g.created_at, g.completed_at, g.ready_at
FROM trinity.rollout_group g
JOIN trinity.task t ON t.id = g.task_id
JOIN trinity.taskset s ON s.id = t.taskset_id
WHERE g.run_id = %(run_id)s

-- name: metrics_of_run
-- The metrics of a run, in the order of their writing.
SELECT m.role::text AS role, m.step, m.name, m.value, m.created_at
FROM trinity.metric m
WHERE m.run_id = %(run_id)s
ORDER BY m.id

-- name: rewards_of_run
-- All reward events about the rows and rollouts of a run.
SELECT w.id, w.experience_id, w.rollout_id, w.source, w.name, w.value, w.weight, w.created_by, w.processor_version, w.detail,
       w.created_at
FROM trinity.reward_event w
WHERE w.run_id = %(run_id)s

-- name: experiences_of_step
-- The rows of a step's batch, unless it was reopened, in the order of the draw: the columns of experience_view with the
-- numbers recorded at the draw in place of current ones.
SELECT i.ordinal, v.id, v.run, v.state, v.group_id, v.member, v.step, v.task, v.prompt, v.response, i.reward, i.advantage,
       i.weight, i.staleness, i.probability, i.preference_id, v.version_min, v.version_max, v.prompt_length, v.response_length,
       v.model, v.finish_reason, v.created_at
FROM trinity.batch b
JOIN trinity.batch_item i ON i.batch_id = b.id
JOIN trinity.experience_view v ON v.id = i.experience_id
WHERE b.run_id = %(run_id)s AND b.step = %(step)s AND b.state <> 'reopened'
ORDER BY i.ordinal

-- name: all_tasksets
-- The tasksets, with the number of their tasks.
SELECT s.id, s.name, (SELECT count(*) FROM trinity.task t WHERE t.taskset_id = s.id) AS tasks FROM trinity.taskset s
