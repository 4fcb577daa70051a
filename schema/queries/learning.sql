-- name: learning_runs
-- The runs with a living worker, or the one with this id unless its work is done.
SELECT r.id, r.name AS run
FROM trinity.run r
WHERE r.kind = 'train'
  AND CASE WHEN %(run_id)s::bigint IS NULL THEN r.id IN (SELECT v.id FROM trinity.run_view v WHERE v.status = 'active')
           ELSE r.id = %(run_id)s AND r.state = 'active' END
ORDER BY r.id

-- name: learning_groups
-- Of each run with a living worker, or of the one with this id, its newest :groups judged rollout groups, of active
-- runs among the newest :depth of the store, so that runs that rest cost little: how many have two rewards or more and
-- all of them equal, in how many of these every attempt solved its task (processors.group.solved_reward), how many were
-- not dropped, how many of these have no reward, and which mean reward most of the equal ones that are not solved have.
-- `is_scored` says whether the run has steps that give rewards.
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
                 -- A mean of equal rewards may be smaller than they are by the last digits.
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
-- Of each run with a living worker, or of the one with this id, the newest :rows rows of the groups that
-- learning_groups looks at, by the reason for which they were dropped or expired; NULL for those that were kept.
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
-- Of each active run, or of the one with this id, the newest :rows rows of the groups that learning_groups looks at, by
-- the reason for which a clean step dropped them; NULL for all others. Rows that wait to be cleaned do not count.
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
-- Of each run with a living worker, or of the one with this id, how many of the newest :attempts attempts of its newest
-- :groups explored groups failed, with the group and the error of the last one that did; :depth as in learning_groups.
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
-- Of each run with a living worker, or of the one with this id, the mean of a metric over its first and over its last
-- :steps steps; no row for a run that has not measured it in twice as many.
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
