-- Evaluations: pass rates, intervals and differences.

-- Probability that at least one of k attempts solves a task, an unbiased estimate from `samples` judged attempts of which
-- `solved` solved it: 1 - C(samples - solved, k) / C(samples, k), as a sum of logarithms to avoid overflow. NULL if fewer
-- than k attempts were judged.
CREATE FUNCTION trinity.pass_at(samples bigint, solved bigint, k integer)
RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN pass_at.k < 1 OR pass_at.samples < pass_at.k THEN NULL
                WHEN pass_at.samples - pass_at.solved < pass_at.k THEN 1
                ELSE 1 - exp(coalesce((SELECT sum(ln(1 - pass_at.k::double precision / i))
                                       FROM generate_series(pass_at.samples - pass_at.solved + 1, pass_at.samples) i), 0))
           END
$$;

-- Tasks of each evaluation with the rewards of their attempts, by attempt_reward and the current rewards of their rows. A failed
-- attempt, or an attempt whose row no processor could judge, has no reward, and is never counted as zero.
CREATE VIEW trinity.evaluation_task_view AS
SELECT v.id AS evaluation_id,
       r.name AS run,
       s.name AS taskset,
       v.version,
       t.key AS task,
       g.id AS group_id,
       v.samples,
       count(a.reward) AS judged,
       count(*) FILTER (WHERE a.has_failed) AS failed,
       count(*) FILTER (WHERE a.reward >= v.solved_reward) AS solved,
       avg(a.reward) AS reward,
       max(a.reward) AS best,
       array_agg(a.reward ORDER BY a.reward) FILTER (WHERE a.reward IS NOT NULL) AS rewards
FROM trinity.evaluation v
JOIN trinity.run r ON r.id = v.run_id
JOIN trinity.taskset s ON s.id = v.taskset_id
JOIN trinity.rollout_group g ON g.evaluation_id = v.id
JOIN trinity.task t ON t.id = g.task_id
LEFT JOIN LATERAL (
    SELECT m.state = 'failed' OR bool_or(e.state = 'dropped') AS has_failed,
           CASE WHEN bool_and(e.state::text = 'evaluated')
                THEN trinity.attempt_reward(m.id, count(e.reward), sum(e.reward), min(e.reward), max(e.reward))
           END AS reward
    FROM trinity.rollout m
    LEFT JOIN trinity.experience e ON e.rollout_id = m.id AND e.source_id IS NULL
    WHERE m.group_id = g.id AND m.state::text <> 'refused'
    GROUP BY m.id
) a ON true
GROUP BY v.id, r.name, s.name, t.key, g.id;
COMMENT ON COLUMN trinity.evaluation_task_view.evaluation_id IS 'Id of the evaluation';
COMMENT ON COLUMN trinity.evaluation_task_view.run IS 'Name of its run';
COMMENT ON COLUMN trinity.evaluation_task_view.taskset IS 'Name of the taskset';
COMMENT ON COLUMN trinity.evaluation_task_view.version IS 'Evaluated policy version';
COMMENT ON COLUMN trinity.evaluation_task_view.task IS 'Key of the task';
COMMENT ON COLUMN trinity.evaluation_task_view.group_id IS 'Rollout group of its attempts';
COMMENT ON COLUMN trinity.evaluation_task_view.samples IS 'Number of planned attempts';
COMMENT ON COLUMN trinity.evaluation_task_view.judged IS 'Number of attempts with a reward';
COMMENT ON COLUMN trinity.evaluation_task_view.failed IS 'Number of attempts that failed, or could not be judged';
COMMENT ON COLUMN trinity.evaluation_task_view.solved IS 'Number of attempts with at least the reward that solves a task';
COMMENT ON COLUMN trinity.evaluation_task_view.reward IS 'Mean reward of the judged attempts; NULL without any';
COMMENT ON COLUMN trinity.evaluation_task_view.best IS 'Highest of their rewards';
COMMENT ON COLUMN trinity.evaluation_task_view.rewards IS 'All of their rewards, lowest first';

-- 95 % interval of a share of trials by Wilson's method, which never leaves 0 to 1. NULL without trials.
CREATE FUNCTION trinity.share_interval(share double precision, trials double precision)
RETURNS TABLE (low double precision, high double precision)
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT greatest((share_interval.share + i.z / 2 - i.spread) / (1 + i.z), 0),
           least((share_interval.share + i.z / 2 + i.spread) / (1 + i.z), 1)
    FROM (SELECT q.z, sqrt(q.z * (greatest(share_interval.share * (1 - share_interval.share), 0) + q.z / 4)) AS spread
          FROM (SELECT 1.959964 ^ 2 / nullif(share_interval.trials, 0) AS z) q) i
$$;

-- 95 % interval of a mean over tasks, from the sample variance of the tasks and the range of their values, which it never leaves.
-- It is a Wilson interval with as many trials as would give a share the same standard error: at least the tasks, since no values in
-- the range vary more than its two ends. If each task has one reward, 0 or 1, it is the interval of the share of solved tasks. A
-- variance of rounding errors, as of equal rewards of 0.1, is none.
CREATE FUNCTION trinity.mean_interval(mean double precision, variance double precision, tasks bigint,
                                      lowest double precision, highest double precision)
RETURNS TABLE (low double precision, high double precision)
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT r.lowest + r.width * i.low, r.lowest + r.width * i.high
    FROM (SELECT mean_interval.lowest, mean_interval.highest - mean_interval.lowest AS width,
                 (mean_interval.mean - mean_interval.lowest) * (mean_interval.highest - mean_interval.mean)
                 / CASE WHEN mean_interval.variance > v.rounding THEN mean_interval.variance END AS ratio
          FROM (SELECT (1e-12 * (mean_interval.highest - mean_interval.lowest)) ^ 2 AS rounding) v) r
    CROSS JOIN LATERAL trinity.share_interval(
        CASE WHEN r.width > 0 THEN (mean_interval.mean - r.lowest) / r.width ELSE 0 END,
        mean_interval.tasks * greatest(r.ratio, 1)) i
$$;

-- Results of an evaluation for k attempts per task: their mean reward, the reward of the best of k, and the probability that at
-- least one of k solves the task, each averaged over tasks. The last two include tasks with at least k judged attempts. The
-- limits are 95 % intervals, clustered by task: attempts at one task are correlated, so only tasks count as independent. For
-- rewards see mean_interval; their range is from 0 to the reward that solves a task, widened to all rewards. For the probability
-- they are Wilson intervals with tasks as trials: slightly too wide for more than one attempt per task.
CREATE FUNCTION trinity.evaluation_at(evaluation_id bigint, k integer)
RETURNS TABLE (tasks bigint, mean double precision, mean_low double precision, mean_high double precision,
               tasks_at_k bigint, best double precision, best_low double precision, best_high double precision,
               pass double precision, pass_low double precision, pass_high double precision)
LANGUAGE sql STABLE AS $$
    WITH task AS (
        SELECT w.reward, w.rewards[1] AS lowest, w.best AS highest,
               trinity.pass_at(w.judged, w.solved, evaluation_at.k) AS pass,
               -- The reward at rank i is the best of k with the probability that the k attempts reach rank i and no higher one.
               (SELECT sum(u.reward * (trinity.pass_at(w.judged, w.judged - u.place + 1, evaluation_at.k)
                                       - trinity.pass_at(w.judged, w.judged - u.place, evaluation_at.k)))
                FROM unnest(w.rewards) WITH ORDINALITY AS u (reward, place)) AS best
        FROM trinity.evaluation_task_view w
        WHERE w.evaluation_id = evaluation_at.evaluation_id
    ),
    total AS (
        SELECT count(task.reward) AS tasks, avg(task.reward) AS mean, var_samp(task.reward) AS mean_variance,
               count(task.pass) AS tasks_at_k, avg(task.best) AS best, var_samp(task.best) AS best_variance,
               avg(task.pass) AS pass, least(min(task.lowest), 0) AS lowest,
               greatest(max(task.highest), (SELECT v.solved_reward FROM trinity.evaluation v
                                            WHERE v.id = evaluation_at.evaluation_id)) AS highest
        FROM task
    )
    SELECT t.tasks, t.mean, m.low, m.high, t.tasks_at_k, t.best, b.low, b.high, t.pass, p.low, p.high
    FROM total t
    CROSS JOIN LATERAL trinity.mean_interval(t.mean, t.mean_variance, t.tasks, t.lowest, t.highest) m
    CROSS JOIN LATERAL trinity.mean_interval(t.best, t.best_variance, t.tasks_at_k, t.lowest, t.highest) b
    CROSS JOIN LATERAL trinity.share_interval(t.pass, t.tasks_at_k) p
$$;

-- Every evaluation with its results, from the current rewards. mean is the mean reward of an attempt, best the reward of the
-- best of all `samples` attempts at a task, pass_1 and pass_k the probabilities that a task is solved by a single attempt,
-- or by at least one of `samples` attempts. evaluation_at does the same for another k, and explains the 95 % intervals.
CREATE VIEW trinity.evaluation_view AS
SELECT v.id,
       r.name AS run,
       s.name AS taskset,
       v.version,
       p.step,
       v.samples,
       v.temperature,
       v.max_new_tokens,
       g.tasks,
       g.judged,
       g.failed,
       g.tasks * v.samples - g.judged - g.failed AS waiting,
       one.mean,
       one.mean_low,
       one.mean_high,
       one.pass AS pass_1,
       one.pass_low AS pass_1_low,
       one.pass_high AS pass_1_high,
       k.tasks_at_k,
       k.best,
       k.pass AS pass_k,
       k.pass_low AS pass_k_low,
       k.pass_high AS pass_k_high,
       v.created_at,
       v.finished_at,
       v.error
FROM trinity.evaluation v
JOIN trinity.run r ON r.id = v.run_id
JOIN trinity.taskset s ON s.id = v.taskset_id
JOIN trinity.policy_version p ON p.run_id = v.run_id AND p.version = v.version
CROSS JOIN LATERAL (
    SELECT count(*) AS tasks, coalesce(sum(w.judged), 0)::bigint AS judged, coalesce(sum(w.failed), 0)::bigint AS failed
    FROM trinity.evaluation_task_view w WHERE w.evaluation_id = v.id
) g
CROSS JOIN LATERAL trinity.evaluation_at(v.id, 1) one
CROSS JOIN LATERAL trinity.evaluation_at(v.id, v.samples) k;
COMMENT ON COLUMN trinity.evaluation_view.id IS 'Id of the evaluation';
COMMENT ON COLUMN trinity.evaluation_view.run IS 'Name of its run';
COMMENT ON COLUMN trinity.evaluation_view.taskset IS 'Name of the taskset';
COMMENT ON COLUMN trinity.evaluation_view.version IS 'Evaluated policy version';
COMMENT ON COLUMN trinity.evaluation_view.step IS 'Trainer step after which the version was published';
COMMENT ON COLUMN trinity.evaluation_view.samples IS 'Attempts per task';
COMMENT ON COLUMN trinity.evaluation_view.temperature IS 'Sampling temperature';
COMMENT ON COLUMN trinity.evaluation_view.max_new_tokens IS 'Longest response in tokens';
COMMENT ON COLUMN trinity.evaluation_view.tasks IS 'Number of attempted tasks';
COMMENT ON COLUMN trinity.evaluation_view.judged IS 'Attempts with a reward';
COMMENT ON COLUMN trinity.evaluation_view.failed IS 'Attempts that failed, or could not be judged; excluded from all means';
COMMENT ON COLUMN trinity.evaluation_view.waiting IS 'Attempts that have not ended, or have no reward yet';
COMMENT ON COLUMN trinity.evaluation_view.mean IS 'Mean over tasks of the mean reward of their attempts (mean@k)';
COMMENT ON COLUMN trinity.evaluation_view.mean_low IS 'Lower limit of its 95 % interval; NULL without a judged attempt';
COMMENT ON COLUMN trinity.evaluation_view.mean_high IS 'Upper limit of that interval';
COMMENT ON COLUMN trinity.evaluation_view.pass_1 IS 'Probability that one attempt solves a task (pass@1)';
COMMENT ON COLUMN trinity.evaluation_view.pass_1_low IS 'Lower limit of its 95 % interval';
COMMENT ON COLUMN trinity.evaluation_view.pass_1_high IS 'Upper limit of that interval';
COMMENT ON COLUMN trinity.evaluation_view.tasks_at_k IS 'Tasks whose attempts were all judged; best and pass_k include only these';
COMMENT ON COLUMN trinity.evaluation_view.best IS 'Mean over tasks of the highest reward among all attempts (best@k)';
COMMENT ON COLUMN trinity.evaluation_view.pass_k IS 'Probability that at least one of samples attempts solves a task (pass@k)';
COMMENT ON COLUMN trinity.evaluation_view.pass_k_low IS 'Lower limit of its 95 % interval';
COMMENT ON COLUMN trinity.evaluation_view.pass_k_high IS 'Upper limit of that interval';
COMMENT ON COLUMN trinity.evaluation_view.created_at IS 'Time at which it began';
COMMENT ON COLUMN trinity.evaluation_view.finished_at IS 'Time at which its last attempt was judged, or it was given up; NULL before';
COMMENT ON COLUMN trinity.evaluation_view.error IS 'Reason why it was given up; NULL otherwise';

-- Difference between two evaluations over their common tasks: the second less the first. Tasks are matched by content, so
-- evaluations of other runs and tasksets can be compared. The rewards include tasks with a judged attempt in both evaluations,
-- the probabilities tasks with at least k in both. The 95 % intervals are normal, from the deviation of the differences between
-- tasks, and end at the greatest possible difference: hard tasks are hard for both, so the intervals are narrower than those of each
-- evaluation alone.
CREATE FUNCTION trinity.evaluation_difference(before bigint, after bigint, k integer DEFAULT 1)
RETURNS TABLE (tasks bigint, mean double precision, mean_low double precision, mean_high double precision,
               tasks_at_k bigint, pass double precision, pass_low double precision, pass_high double precision)
LANGUAGE sql STABLE AS $$
    WITH task AS (
        SELECT b.reward - a.reward AS mean, least(a.rewards[1], b.rewards[1]) AS lowest, greatest(a.best, b.best) AS highest,
               trinity.pass_at(b.judged, b.solved, evaluation_difference.k)
               - trinity.pass_at(a.judged, a.solved, evaluation_difference.k) AS pass
        FROM trinity.evaluation_task_view a
        JOIN trinity.evaluation_task_view b ON b.task = a.task
        WHERE a.evaluation_id = evaluation_difference.before AND b.evaluation_id = evaluation_difference.after
    ),
    total AS (
        SELECT count(task.mean) AS tasks, avg(task.mean) AS mean,
               1.959964 * stddev_samp(task.mean) / sqrt(count(task.mean)) AS mean_error,
               count(task.pass) AS tasks_at_k, avg(task.pass) AS pass,
               1.959964 * stddev_samp(task.pass) / sqrt(count(task.pass)) AS pass_error,
               greatest(max(task.highest),
                        (SELECT max(v.solved_reward) FROM trinity.evaluation v
                         WHERE v.id IN (evaluation_difference.before, evaluation_difference.after)))
               - least(min(task.lowest), 0) AS width
        FROM task
    )
    SELECT t.tasks, t.mean, greatest(t.mean - t.mean_error, -t.width), least(t.mean + t.mean_error, t.width),
           t.tasks_at_k, t.pass, greatest(t.pass - t.pass_error, -1), least(t.pass + t.pass_error, 1)
    FROM total t
$$;
