-- name: pick_groups
-- Locks complete groups that can be settled, oldest first; skips locked groups. Looks at :among or, if that is NULL,
-- at all complete groups from the run's floor.
--
-- A group waits while a member is still being processed. If the run requires rewards from a source, a group also
-- waits until that source has judged each member, or :wait_seconds have passed since it was complete, unless it is
-- too small in any case. An attempt that lost a step is dropped with its other steps, so it needs no judgement and
-- does not count.
SELECT g.id
FROM trinity.rollout_group g
WHERE g.run_id = %(run_id)s AND g.state = 'complete'
  AND g.id = ANY(coalesce(%(among)s::bigint[], ARRAY(
      SELECT c.id FROM trinity.rollout_group c
      WHERE c.run_id = %(run_id)s AND c.state = 'complete'
        AND c.id >= (SELECT f.floor FROM trinity.floor_of(%(run_id)s) f)
      ORDER BY c.id)))
  AND NOT EXISTS (SELECT FROM trinity.experience e WHERE e.group_id = g.id AND e.state IN ('raw', 'clean'))
  -- LIMIT 1 instead of EXISTS, for which the planner may hash the whole table.
  AND (%(requires_reward)s::text IS NULL
       OR (SELECT count(DISTINCT e.rollout_id) FROM trinity.experience e
           WHERE e.group_id = g.id AND e.state = 'scored'
             AND (SELECT lost.id FROM trinity.experience lost
                  WHERE lost.rollout_id = e.rollout_id AND (lost.state = 'dropped') IS TRUE
                  LIMIT 1) IS NULL) < %(min_group_size)s
       OR (SELECT e.id FROM trinity.experience e
           WHERE e.group_id = g.id AND e.state = 'scored'
             AND (SELECT lost.id FROM trinity.experience lost
                  WHERE lost.rollout_id = e.rollout_id AND (lost.state = 'dropped') IS TRUE LIMIT 1) IS NULL
             AND trinity.is_awaited(e.id, e.rollout_id, %(requires_reward)s)
           LIMIT 1) IS NULL
       OR g.completed_at < clock_timestamp() - make_interval(secs => %(wait_seconds)s::float8))
ORDER BY g.id
LIMIT %(limit)s
FOR NO KEY UPDATE SKIP LOCKED

-- name: drop_unjudged
-- Drops members of groups that no longer wait for a source of rewards and got none: the wait has timed out, or people
-- could not judge them. A member with a reward from elsewhere stays. Runs under the lock of their groups.
WITH unjudged AS (
    UPDATE trinity.experience e SET state = 'dropped'
    FROM trinity.rollout_group g
    WHERE e.group_id = ANY(%(group_ids)s) AND (e.state = 'scored') IS TRUE AND e.source_id IS NULL
      AND e.reward IS NULL AND g.id = e.group_id
      AND (NOT trinity.is_awaited(e.id, e.rollout_id, %(requires_reward)s)
           OR g.completed_at < clock_timestamp() - make_interval(secs => %(wait_seconds)s::float8))
    RETURNING e.run_id, e.id
)
INSERT INTO trinity."drop" (run_id, experience_id, stage, reason)
SELECT run_id, id, 'group', 'no_verdict' FROM unjudged
ON CONFLICT (experience_id) DO NOTHING

-- name: drop_partial_attempts
-- Drops the other steps of attempts that lost a step to a processor, since the reward of the attempt is unknown. Runs
-- under the lock of their groups.
WITH partial AS (
    UPDATE trinity.experience e SET state = 'dropped'
    WHERE e.group_id = ANY(%(group_ids)s) AND (e.state = 'scored') IS TRUE AND e.source_id IS NULL
      AND e.rollout_id IN (SELECT lost.rollout_id FROM trinity.experience lost
                           WHERE lost.group_id = ANY(%(group_ids)s) AND (lost.state = 'dropped') IS TRUE
                             AND lost.source_id IS NULL)
    RETURNING e.run_id, e.id
)
INSERT INTO trinity."drop" (run_id, experience_id, stage, reason)
SELECT run_id, id, 'group', 'partial_attempt' FROM partial
ON CONFLICT (experience_id) DO NOTHING

-- name: settle_groups
-- Makes picked groups ready, or drops them with a reason: too few members are left or, if the run asks for that, all
-- rewards are equal. Attempts are compared by trinity.attempt_reward. An attempt with at least :solved_reward solved its
-- task. With :selection 'positives' or 'negatives', only attempts that solved it, or did not, are kept; the counts of the
-- task include all.
--
-- Runs after the statement that locks the groups, so it sees every reward committed before the lock. It checks again
-- that the groups can be settled. docs/how-it-works/long-statements.md explains each step.
WITH attempts AS (
    SELECT g.id, e.rollout_id,
           count(e.id) FILTER (WHERE e.state IN ('raw', 'clean')) AS unprocessed,
           count(e.id) FILTER (
               WHERE CASE WHEN e.state = 'scored' AND %(requires_reward)s::text IS NOT NULL
                          THEN trinity.is_awaited(e.id, e.rollout_id, %(requires_reward)s)
                               AND (g.completed_at < clock_timestamp() - make_interval(secs => %(wait_seconds)s::float8))
                                   IS NOT TRUE END
           ) AS unrewarded,
           bool_or(e.state = 'scored') AS is_scored,
           trinity.attempt_reward(e.rollout_id, count(e.reward) FILTER (WHERE e.state = 'scored'),
               sum(e.reward) FILTER (WHERE e.state = 'scored'), min(e.reward) FILTER (WHERE e.state = 'scored'),
               max(e.reward) FILTER (WHERE e.state = 'scored')) AS reward
    FROM trinity.rollout_group g
    LEFT JOIN trinity.experience e ON e.group_id = g.id
    WHERE g.id = ANY(%(group_ids)s)
    GROUP BY g.id, e.rollout_id
),
judged AS (
    SELECT a.*, a.is_scored AND CASE %(selection)s::text WHEN 'positives' THEN (a.reward >= %(solved_reward)s::float8) IS TRUE
                                                    WHEN 'negatives' THEN (a.reward < %(solved_reward)s::float8) IS TRUE
                                                    ELSE TRUE END AS is_kept
    FROM attempts a
),
members AS (
    SELECT a.id, sum(a.unprocessed) AS unprocessed, sum(a.unrewarded) AS unrewarded,
           count(*) FILTER (WHERE a.is_scored) AS attempts, count(*) FILTER (WHERE a.is_kept) AS size,
           count(a.reward) AS scored, count(*) FILTER (WHERE a.reward >= %(solved_reward)s::float8) AS solved,
           count(k.reward) AS reward_count, avg(k.reward) AS reward_mean, var_samp(k.reward) AS reward_variance,
           min(k.reward) AS lowest, max(k.reward) AS highest
    FROM judged a
    CROSS JOIN LATERAL (SELECT CASE WHEN a.is_kept THEN a.reward END AS reward) k
    GROUP BY a.id
),
verdict AS (
    SELECT m.*,
           CASE WHEN m.size < %(min_group_size)s THEN 'group_too_small'
                WHEN %(drop_equal_rewards)s AND m.lowest = m.highest THEN 'equal_rewards'
           END AS reason
    FROM members m
)
UPDATE trinity.rollout_group g
SET state = CASE WHEN v.reason IS NULL THEN 'ready' ELSE 'dropped' END::trinity.group_state,
    ready_xact = CASE WHEN v.reason IS NULL THEN pg_current_xact_id()::text::bigint END,
    ready_at = CASE WHEN v.reason IS NULL THEN now() END,
    reward_count = v.reward_count,
    reward_mean = v.reward_mean,
    reward_variance = v.reward_variance,
    priority = (SELECT CASE WHEN r.config #>> '{processors,group,priority}' = 'reward_std'
                            THEN trinity.derived_priority(v.reward_variance)
                            WHEN r.config #> '{processors,priority,0}' IS NOT NULL THEN 0
                            ELSE g.priority END
                FROM trinity.run r WHERE r.id = g.run_id)
FROM verdict v
WHERE g.id = v.id AND g.state = 'complete' AND v.unprocessed = 0
  AND (%(requires_reward)s IS NULL OR v.unrewarded = 0 OR v.attempts < %(min_group_size)s)
RETURNING g.id, g.task_id, v.reason, v.size, v.scored, v.solved, v.lowest

-- name: drop_unselected
-- Drops the attempts that :selection excludes, as decided by settle_groups in the same transaction, under the lock of
-- their groups.
WITH unselected AS (
    UPDATE trinity.experience e SET state = 'dropped'
    WHERE e.group_id = ANY(%(group_ids)s) AND (e.state = 'scored') IS TRUE AND e.source_id IS NULL
      AND e.rollout_id IN (SELECT a.rollout_id FROM trinity.experience a
                           WHERE a.group_id = ANY(%(group_ids)s) AND (a.state = 'scored') IS TRUE
                           GROUP BY a.rollout_id
                           HAVING ((trinity.attempt_reward(a.rollout_id, count(a.reward), sum(a.reward),
                                                           min(a.reward), max(a.reward)) >= %(solved_reward)s::float8)
                                   = (%(selection)s::text = 'positives'))
                                  IS NOT TRUE)
    RETURNING e.run_id, e.id, e.reward
)
INSERT INTO trinity."drop" (run_id, experience_id, stage, reason, detail)
SELECT run_id, id, 'group', CASE %(selection)s WHEN 'positives' THEN 'not_positive' ELSE 'not_negative' END,
       jsonb_build_object('reward', reward)
FROM unselected
ON CONFLICT (experience_id) DO NOTHING

-- name: ready_members
-- Makes the members of ready groups ready, under the lock of their groups, so members need no order. From now on they
-- can be paired, and their priority is due if steps compute it.
WITH ready AS (
    UPDATE trinity.experience e SET state = 'ready' WHERE e.group_id = ANY(%(group_ids)s) AND e.state = 'scored'
    RETURNING e.run_id, e.group_id
),
due AS (
    INSERT INTO trinity.group_priority (run_id, group_id)
    SELECT DISTINCT m.run_id, m.group_id
    FROM ready m JOIN trinity.run r ON r.id = m.run_id
    WHERE r.config #> '{processors,priority,0}' IS NOT NULL
)
INSERT INTO trinity.pairing (run_id, group_id)
SELECT DISTINCT m.run_id, m.group_id FROM ready m JOIN trinity.run r ON r.id = m.run_id WHERE r.derives_pairs

-- name: mark_sources
-- Marks groups settled in this transaction as sources of synthesised tasks and responses.
INSERT INTO trinity.synthesis (run_id, group_id)
SELECT %(run_id)s, n.id FROM unnest(%(group_ids)s::bigint[]) AS n (id) ORDER BY n.id
ON CONFLICT (group_id) DO NOTHING

-- name: drop_members
-- Drops the members of groups that are dropped as a whole.
UPDATE trinity.experience e SET state = 'dropped'
WHERE e.group_id = ANY(%(group_ids)s) AND e.state = 'scored'
RETURNING e.id, e.group_id

-- name: record_group_drops
-- Records why groups were dropped; existing records are unchanged.
INSERT INTO trinity."drop" (run_id, group_id, stage, reason, detail)
SELECT %(run_id)s, d.id, %(stage)s, d.reason, d.detail
FROM unnest(%(group_ids)s::bigint[], %(reasons)s::text[], %(details)s::jsonb[]) AS d (id, reason, detail)
ON CONFLICT (group_id) DO NOTHING

-- name: count_solved
-- Updates the counts of tasks by which groups are chosen: rollouts with a reward, rollouts that solved the task, and
-- the resulting Beta posterior. In order of the tasks, since explorers write the same rows.
INSERT INTO trinity.task_stat AS s (run_id, task_id, scored, solved, alpha, beta)
SELECT %(run_id)s, n.task_id, sum(n.scored), sum(n.solved), 1 + sum(n.solved), 1 + sum(n.scored - n.solved)
FROM unnest(%(task_ids)s::bigint[], %(scored)s::integer[], %(solved)s::integer[]) AS n (task_id, scored, solved)
GROUP BY n.task_id
ORDER BY n.task_id
ON CONFLICT (run_id, task_id) DO UPDATE
SET scored = s.scored + excluded.scored,
    solved = s.solved + excluded.solved,
    alpha = s.alpha + excluded.solved,
    beta = s.beta + excluded.scored - excluded.solved
