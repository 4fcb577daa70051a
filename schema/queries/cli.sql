-- name: run_progress
-- Progress of a run: its last committed step with the mean reward and response length of its rows, the reward of the
-- step 20 before it (in a shorter run, the first) and the seconds between them, the newest version, and how many
-- groups were started and rows dropped. Commands poll it, so it reads counters of tasks and drops and the rows of two
-- batches, and no table that grows with the store.
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
-- Question and response of one row of the run's last committed batch, with the reward used in the step.
SELECT trinity.question(x.prompt, x.messages) AS question, x.response, i.reward
FROM trinity.batch_item i
JOIN trinity.experience_text x ON x.experience_id = i.experience_id
WHERE i.batch_id = (SELECT id FROM trinity.batch
                    WHERE run_id = %(run_id)s AND state = 'committed' ORDER BY step DESC LIMIT 1)
ORDER BY i.ordinal
LIMIT 1

-- name: run_evaluations
-- For each taskset on which versions of a run were evaluated, the ids of the evaluations of the first and the last
-- version.
SELECT DISTINCT ON (v.taskset_id)
       first_value(v.id) OVER versions AS first_id, last_value(v.id) OVER versions AS last_id
FROM trinity.evaluation v
WHERE v.run_id = %(run_id)s AND v.finished_at IS NOT NULL AND v.error IS NULL
WINDOW versions AS (PARTITION BY v.taskset_id ORDER BY v.version, v.id
                    ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
ORDER BY v.taskset_id

-- name: evaluated_answers
-- For each task of an evaluation, question, response and reward of the first attempt.
SELECT DISTINCT ON (g.id) t.key AS task, trinity.question(x.prompt, x.messages) AS question, x.response, e.reward
FROM trinity.rollout_group g
JOIN trinity.task t ON t.id = g.task_id
JOIN trinity.experience e ON e.group_id = g.id AND e.source_id IS NULL
JOIN trinity.experience_text x ON x.experience_id = e.id
WHERE g.evaluation_id = %(evaluation_id)s
ORDER BY g.id, e.id

-- name: run_summary
-- Totals of a whole run. Attempts of evaluations are excluded.
SELECT (SELECT count(*) FROM trinity.rollout o JOIN trinity.rollout_group g ON g.id = o.group_id
        WHERE o.run_id = %(run_id)s AND o.state <> 'refused' AND g.evaluation_id IS NULL) AS rollouts,
       (SELECT count(*) FROM trinity.batch b WHERE b.run_id = %(run_id)s AND b.state = 'committed') AS trained_batches,
       (SELECT count(*) FROM trinity.policy_version p WHERE p.run_id = %(run_id)s) AS policy_versions,
       (SELECT max(i.staleness) FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id
        WHERE b.run_id = %(run_id)s AND b.state = 'committed') AS max_staleness_seen

-- name: reward_by_version
-- Mean reward by policy version, in order of version.
SELECT version, reward FROM trinity.policy_progress
WHERE run = %(run)s AND reward IS NOT NULL
ORDER BY version

-- name: staleness_by_step
-- Staleness of committed batches, in order of step.
SELECT step, staleness_min, staleness_mean::double precision, staleness_max FROM trinity.batch_view
WHERE run = %(run)s AND state = 'committed'
ORDER BY step

-- name: count_named_runs
-- Number of runs whose name is LIKE a pattern.
SELECT count(*) AS runs FROM trinity.run WHERE name LIKE %(pattern)s

-- name: prunable_runs
-- Names of the runs that may be pruned: all runs that are not being deleted, without data sets.
SELECT r.name FROM trinity.run r WHERE r.kind = 'train' AND r.deleting_at IS NULL ORDER BY r.id

-- name: list_batches
-- The newest batches of a run, newest first, each with the loss recorded at its commit.
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
