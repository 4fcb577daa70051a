-- name: lock_groups
-- Reward statistics of a group change in one transaction at a time.
SELECT g.id FROM trinity.rollout_group g
WHERE g.id IN (SELECT r.group_id FROM trinity.rollout r WHERE r.id = ANY(%(rollout_ids)s))
ORDER BY g.id
FOR NO KEY UPDATE

-- name: insert_reward_events
INSERT INTO trinity.reward_event (run_id, rollout_id, source, name, value, weight, created_by)
SELECT %(run_id)s, v.rollout_id, %(source)s, v.name, v.value, v.weight, %(created_by)s
FROM unnest(%(rollout_ids)s::bigint[], %(names)s::text[], %(values)s::double precision[],
            %(weights)s::double precision[]) AS v (rollout_id, name, value, weight)

-- name: refresh_rewards
-- Make the reward of these rollouts' experiences, adopted ones too, the weighted sum of the latest event of
-- each name.
WITH latest AS (
    SELECT DISTINCT ON (v.rollout_id, v.name) v.rollout_id, v.value * v.weight AS part
    FROM trinity.reward_event v
    WHERE v.rollout_id = ANY(%(rollout_ids)s)
    ORDER BY v.rollout_id, v.name, v.id DESC
),
total AS (
    SELECT latest.rollout_id, sum(latest.part) AS reward FROM latest GROUP BY latest.rollout_id
)
UPDATE trinity.experience e SET reward = total.reward
FROM total
WHERE e.rollout_id = total.rollout_id AND e.reward IS DISTINCT FROM total.reward

-- name: refresh_groups
-- Bring the reward statistics of these rollouts' groups up to date, in the transaction that changed a reward.
UPDATE trinity.rollout_group g
SET reward_count = s.reward_count, reward_mean = s.reward_mean, reward_variance = s.reward_variance
FROM (
    SELECT m.group_id, count(m.reward) AS reward_count, avg(m.reward) AS reward_mean,
           var_samp(m.reward) AS reward_variance
    FROM (
        -- Conditions in the CASE, not in WHERE: without statistics the planner would scan a partial index for them.
        SELECT e.group_id,
               CASE WHEN e.source_id IS NULL AND e.state NOT IN ('dropped', 'expired') THEN e.reward END AS reward
        FROM trinity.experience e
        WHERE e.group_id IN (SELECT r.group_id FROM trinity.rollout r WHERE r.id = ANY(%(rollout_ids)s))
    ) m
    GROUP BY m.group_id
) s
WHERE g.id = s.group_id
