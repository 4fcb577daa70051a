-- name: drawable_now
-- The rollout groups that may be drawn now, with the columns to choose by: the relation `drawable` in a user's
-- SELECT. Columns that the SELECT does not name are not computed. drawable_then reproduces it for a recorded draw.
SELECT g.id, g.task_id, t.key AS task, s.name AS taskset, t.level, g.priority, m.members, m.uses, m.reward_mean,
       m.reward_std, m.difficulty, m.prompt_length, m.response_length, g.version_min, g.version_max,
       trinity.staleness(g.run_id, %(version)s, g.version_min, g.version_max) + %(versions_ahead)s AS staleness,
       g.created_at, g.ready_at
FROM trinity.drawable(%(run_id)s, %(version)s, %(max_staleness)s::integer - %(versions_ahead)s) d
JOIN trinity.rollout_group g ON g.id = d.id
LEFT JOIN trinity.task t ON t.id = g.task_id
LEFT JOIN trinity.taskset s ON s.id = t.taskset_id
LEFT JOIN LATERAL (
    SELECT count(*)::integer AS members, max(a.uses) AS uses, avg(a.reward ORDER BY a.rollout_id) AS reward_mean,
           sqrt(var_samp(a.reward ORDER BY a.rollout_id)) AS reward_std,
           count(*) FILTER (WHERE a.reward < r.solved_reward)::float8 / nullif(count(a.reward), 0) AS difficulty,
           avg(a.prompt_length)::float8 AS prompt_length, avg(a.response_length)::float8 AS response_length
    FROM (SELECT e.rollout_id, trinity.attempt_reward(e.rollout_id, count(e.reward), sum(e.reward ORDER BY e.id),
                                                      min(e.reward), max(e.reward)) AS reward, max(e.use_count) AS uses,
                 max(e.prompt_length) AS prompt_length, sum(e.response_length) AS response_length
          FROM trinity.experience e
          WHERE e.group_id = g.id AND (e.state = 'ready') IS TRUE AND e.source_id IS NULL
          GROUP BY e.rollout_id) a,
         (SELECT coalesce((r.config #>> '{processors,group,solved_reward}')::float8, 1) AS solved_reward
          FROM trinity.run r WHERE r.id = g.run_id) r
) m ON true

-- name: count_drawable
-- Number of groups that may be drawn now.
SELECT count(*) AS groups FROM trinity.drawable(%(run_id)s, %(version)s, %(max_staleness)s::integer - %(versions_ahead)s) g

-- name: choose_members
-- The members of picked groups, in order, with their rewards and this statement's snapshot. Groups that may not be
-- drawn have no members here, whatever the user's SELECT returned.
SELECT e.id, e.group_id, e.reward,
       trinity.staleness(%(run_id)s, %(version)s, e.version_min, e.version_max) + %(versions_ahead)s AS staleness,
       pg_current_snapshot()::text AS snapshot
FROM trinity.drawable(%(run_id)s, %(version)s, %(max_staleness)s::integer - %(versions_ahead)s) g
JOIN trinity.experience e ON e.group_id = g.id AND (e.state = 'ready') IS TRUE AND e.source_id IS NULL
WHERE g.id = ANY(%(group_ids)s::bigint[])
ORDER BY e.group_id, e.id
