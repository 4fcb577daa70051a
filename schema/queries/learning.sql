-- name: learning_runs
-- The runs with a live worker, or the run with this id unless it is finished.
SELECT r.id, r.name AS run
FROM trinity.run r
WHERE r.kind = 'train'
  AND CASE WHEN %(run_id)s::bigint IS NULL THEN r.id IN (SELECT v.id FROM trinity.run_view v WHERE v.status = 'active')
           ELSE r.id = %(run_id)s AND r.state = 'active' END
ORDER BY r.id

-- name: learning_groups
-- For each run with a live worker, or the run with this id, statistics of its newest :groups judged rollout groups.
-- To keep inactive runs cheap, they are taken from groups of active runs among the newest :depth of the store. Counts
-- groups with at least two rewards that are all equal, those of them in which every attempt solved its task
-- (processors.group.solved_reward), groups not dropped, and those of them without rewards; also the most common mean
-- reward of the unsolved groups with equal rewards. `is_scored`: whether the run has steps that give rewards.
SELECT r.name AS run, coalesce(jsonb_array_length(nullif(r.config #> '{processors,score}', 'null')), 0) > 0 AS is_scored,
       g.*
FROM trinity.run r
CROSS JOIN LATERAL (
    SELECT count(*) AS groups, count(*) FILTER (WHERE n.is_equal) AS equal,
           count(*) FILTER (WHERE n.is_equal AND n.is_solved) AS solved, count(*) FILTER (WHERE n.is_kept) AS kept,
           count(*) FILTER (WHERE n.is_kept AND coalesce(n.reward_count, 0) = 0) AS unrewarded,
           mode() WITHIN GROUP (ORDER BY n.reward_mean) FILTER (WHERE n.is_equal AND NOT n.is_solved) AS reward
    FROM (SELECT g.reward_count, g.reward_mean, g.state <> 'dropped' AS is_kept,
                 g.reward_count >= 2 AND g.reward_variance < 1e-12 AS is_equal,
                 -- By rounding, the mean of equal rewards may be slightly below them.
                 g.reward_mean + 1e-9 >= coalesce((r.config #>> '{processors,group,solved_reward}')::float8, 1) AS is_solved
          FROM trinity.rollout_group g
          WHERE g.run_id = r.id AND g.state IN ('ready', 'leased', 'trained', 'dropped')
            AND g.id > CASE WHEN %(run_id)s::bigint IS NULL THEN (SELECT max(l.id) FROM trinity.rollout_group l) - %(depth)s
                            ELSE 0 END
          ORDER BY g.id DESC LIMIT %(groups)s) n
) g
WHERE r.kind = 'train' AND r.draws = 'groups'
  AND CASE WHEN %(run_id)s::bigint IS NULL THEN r.id IN (SELECT v.id FROM trinity.run_view v WHERE v.status = 'active')
           ELSE r.id = %(run_id)s END
ORDER BY r.id

-- name: learning_drops
-- For each run with a live worker, or the run with this id, the newest :rows rows of the groups in learning_groups,
-- by the reason why they were dropped or expired; NULL for kept rows.
SELECT r.name AS run, e.reason, count(*) AS rows
FROM trinity.run r
CROSS JOIN LATERAL (
    SELECT CASE WHEN n.state IN ('dropped', 'expired') THEN coalesce(d.reason, n.state::text) END AS reason
    FROM (SELECT e.id, e.group_id, e.state
          FROM (SELECT g.id FROM trinity.rollout_group g
                WHERE g.run_id = r.id AND g.state IN ('ready', 'leased', 'trained', 'dropped')
                  AND g.id > CASE WHEN %(run_id)s::bigint IS NULL THEN (SELECT max(l.id) FROM trinity.rollout_group l) - %(depth)s
                                  ELSE 0 END
                ORDER BY g.id DESC LIMIT %(groups)s) g
          JOIN trinity.experience e ON e.group_id = g.id
          ORDER BY e.id DESC LIMIT %(rows)s) n
    LEFT JOIN LATERAL (SELECT d.reason FROM trinity."drop" d WHERE d.experience_id = n.id
                       UNION ALL
                       SELECT d.reason FROM trinity."drop" d WHERE d.group_id = n.group_id
                       LIMIT 1) d ON true
) e
WHERE r.kind = 'train'
  AND CASE WHEN %(run_id)s::bigint IS NULL THEN r.id IN (SELECT v.id FROM trinity.run_view v WHERE v.status = 'active')
           ELSE r.id = %(run_id)s END
GROUP BY r.id, r.name, e.reason
ORDER BY r.id, rows DESC, e.reason

-- name: learning_cleaned
-- For each active run, or the run with this id, the newest :rows rows of the groups in learning_groups, by the reason
-- why a clean step dropped them; NULL for all others. Rows that wait to be cleaned do not count.
SELECT r.name AS run, e.reason, count(*) AS rows
FROM trinity.run r
CROSS JOIN LATERAL (
    SELECT d.reason
    FROM (SELECT e.id
          FROM (SELECT g.id FROM trinity.rollout_group g
                WHERE g.run_id = r.id AND g.state IN ('ready', 'leased', 'trained', 'dropped')
                  AND g.id > CASE WHEN %(run_id)s::bigint IS NULL THEN (SELECT max(l.id) FROM trinity.rollout_group l) - %(depth)s
                                  ELSE 0 END
                ORDER BY g.id DESC LIMIT %(groups)s) g
          JOIN trinity.experience e ON e.group_id = g.id
          ORDER BY e.id DESC LIMIT %(rows)s) n
    LEFT JOIN LATERAL (SELECT d.reason FROM trinity."drop" d WHERE d.experience_id = n.id AND d.stage = 'clean' LIMIT 1) d
        ON true
) e
WHERE r.kind = 'train'
  AND CASE WHEN %(run_id)s::bigint IS NULL THEN r.state = 'active' AND r.deleting_at IS NULL ELSE r.id = %(run_id)s END
GROUP BY r.id, r.name, e.reason
ORDER BY r.id, rows DESC, e.reason

-- name: learning_attempts
-- For each run with a live worker, or the run with this id, how many of the newest :attempts attempts of its newest
-- :groups explored groups failed, with the group and error of the last failure; :depth as in learning_groups.
SELECT r.name AS run, m.*
FROM trinity.run r
CROSS JOIN LATERAL (
    SELECT count(*) AS attempts, count(*) FILTER (WHERE n.state = 'failed') AS failed,
           (array_agg(n.group_id ORDER BY n.id DESC) FILTER (WHERE n.state = 'failed'))[1] AS group_id,
           (array_agg(left(n.error, 1000) ORDER BY n.id DESC) FILTER (WHERE n.state = 'failed'))[1] AS error
    FROM (SELECT m.id, m.group_id, m.state, m.error
          FROM (SELECT g.id FROM trinity.rollout_group g
                WHERE g.run_id = r.id AND g.state <> 'open' AND g.evaluation_id IS NULL
                  AND g.id > CASE WHEN %(run_id)s::bigint IS NULL THEN (SELECT max(l.id) FROM trinity.rollout_group l) - %(depth)s
                                  ELSE 0 END
                ORDER BY g.id DESC LIMIT %(groups)s) g
          JOIN trinity.rollout m ON m.group_id = g.id AND m.state IN ('finished', 'failed')
          ORDER BY m.id DESC LIMIT %(attempts)s) n
) m
WHERE r.kind = 'train'
  AND CASE WHEN %(run_id)s::bigint IS NULL THEN r.id IN (SELECT v.id FROM trinity.run_view v WHERE v.status = 'active')
           ELSE r.id = %(run_id)s END
ORDER BY r.id

-- name: learning_metric
-- For each run with a live worker, or the run with this id, the mean of a metric over its first and its last :steps
-- steps; no row for a run with fewer than twice as many measurements.
SELECT r.name AS run, first.value AS first, last.value AS last, last.step
FROM trinity.run r
CROSS JOIN LATERAL (
    SELECT avg(n.value) AS value, max(n.step) AS step
    FROM (SELECT m.step, m.value FROM trinity.metric m
          WHERE m.run_id = r.id AND m.name = %(name)s ORDER BY m.step, m.id LIMIT %(steps)s) n
) first
CROSS JOIN LATERAL (
    SELECT avg(n.value) AS value, min(n.step) AS first_step, max(n.step) AS step
    FROM (SELECT m.step, m.value FROM trinity.metric m
          WHERE m.run_id = r.id AND m.name = %(name)s ORDER BY m.step DESC, m.id DESC LIMIT %(steps)s) n
) last
WHERE r.kind = 'train' AND last.first_step > first.step
  AND CASE WHEN %(run_id)s::bigint IS NULL THEN r.id IN (SELECT v.id FROM trinity.run_view v WHERE v.status = 'active')
           ELSE r.id = %(run_id)s END
ORDER BY r.id

-- name: learning_falls
-- For each online run with a live worker, or the run with this id, the mean reward over :steps consecutive steps: the
-- first, the best, with the step at its end, and the last, with its highest reward; among its newest :depth steps since
-- its last change of settings. `error` is the standard error of such a mean, from the differences between consecutive
-- steps. No row for a run with fewer than twice as many steps, or one that chooses tasks by difficulty. For a repeated
-- step the last measurement counts.
SELECT r.name AS run, f.*
FROM trinity.run r
CROSS JOIN LATERAL (
    SELECT (array_agg(w.mean ORDER BY w.step))[1] AS first, max(w.mean) AS best,
           (array_agg(w.step ORDER BY w.mean DESC, w.step))[1] AS best_step,
           (array_agg(w.mean ORDER BY w.step DESC))[1] AS last, max(w.step) AS step,
           (array_agg(w.highest ORDER BY w.step DESC))[1] AS highest,
           sqrt(avg(w.change ^ 2) / 2 / %(steps)s) AS error
    FROM (SELECT n.step, n.value - lag(n.value) OVER (ORDER BY n.step) AS change,
                 avg(n.value) OVER recent AS mean, max(n.value) OVER recent AS highest,
                 count(*) OVER recent AS steps
          FROM (SELECT DISTINCT ON (m.step) m.step, m.value
                FROM trinity.metric m
                WHERE m.run_id = r.id AND m.name = 'reward' AND m.role = 'train'
                  AND m.created_at >= (SELECT max(s.created_at) FROM trinity.run_setting s WHERE s.run_id = r.id)
                ORDER BY m.step DESC, m.id DESC LIMIT %(depth)s) n
          WINDOW recent AS (ORDER BY n.step ROWS BETWEEN %(steps)s - 1 PRECEDING AND CURRENT ROW)) w
    WHERE w.steps = %(steps)s
    HAVING count(*) > %(steps)s
) f
WHERE r.kind = 'train' AND r.draws = 'groups' AND r.config ->> 'taskset' IS NOT NULL
  AND coalesce(r.config #>> '{explorer,tasks,name}', 'shuffled') IN ('shuffled', 'sequential')
  AND CASE WHEN %(run_id)s::bigint IS NULL THEN r.id IN (SELECT v.id FROM trinity.run_view v WHERE v.status = 'active')
           ELSE r.id = %(run_id)s END
ORDER BY r.id
