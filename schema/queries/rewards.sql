-- name: lock_groups
-- The groups that these reward events are about. Their statistics change in one transaction at a time; whoever
-- changes members too locks the groups first.
SELECT g.id FROM trinity.rollout_group g
WHERE g.id IN (SELECT r.group_id FROM trinity.rollout r WHERE r.id = ANY(%(rollout_ids)s)
               UNION ALL
               SELECT e.group_id FROM trinity.experience e WHERE e.id = ANY(%(experience_ids)s))
ORDER BY g.id
FOR NO KEY UPDATE

-- name: lock_rewarded
-- The experiences whose reward follows from events about these rollouts and experiences: the rows themselves and
-- those that adopted them.
SELECT e.id FROM trinity.experience e
WHERE e.id IN (SELECT m.id FROM trinity.experience m WHERE m.rollout_id = ANY(%(rollout_ids)s)
               UNION ALL
               SELECT m.id FROM trinity.experience m WHERE m.id = ANY(%(experience_ids)s)
               UNION ALL
               SELECT m.id FROM trinity.experience m WHERE m.source_id = ANY(%(experience_ids)s))
ORDER BY e.id
FOR NO KEY UPDATE

-- name: insert_reward_events
-- In the given order: of each name the last one counts.
INSERT INTO trinity.reward_event (run_id, rollout_id, experience_id, source, name, value, weight, created_by)
SELECT %(run_id)s, v.rollout_id, v.experience_id, %(source)s, v.name, v.value, v.weight, %(created_by)s
FROM unnest(%(rollout_ids)s::bigint[], %(experience_ids)s::bigint[], %(names)s::text[],
            %(values)s::double precision[], %(weights)s::double precision[])
     WITH ORDINALITY AS v (rollout_id, experience_id, name, value, weight, ordinal)
ORDER BY v.ordinal

-- name: refresh_rewards
-- Make the reward of these experiences the weighted sum of the latest event of each name about the experience, the
-- one it was adopted from, or their rollout.
WITH latest AS (
    SELECT DISTINCT ON (e.id, v.name) e.id, v.value * v.weight AS part
    FROM trinity.experience e
    CROSS JOIN LATERAL (
        SELECT v.id, v.name, v.value, v.weight FROM trinity.reward_event v WHERE v.rollout_id = e.rollout_id
        UNION ALL
        SELECT v.id, v.name, v.value, v.weight FROM trinity.reward_event v
        WHERE v.experience_id = ANY(ARRAY[e.id, e.source_id])
    ) v
    WHERE e.id = ANY(%(ids)s)
    ORDER BY e.id, v.name, v.id DESC
),
total AS (
    SELECT latest.id, sum(latest.part) AS reward FROM latest GROUP BY latest.id
)
UPDATE trinity.experience e SET reward = total.reward
FROM total
WHERE e.id = total.id AND e.reward IS DISTINCT FROM total.reward

-- name: refresh_groups
-- Bring the reward statistics of these groups up to date, in the transaction that changed a reward. Rows that will
-- not be trained on do not count.
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
        WHERE e.group_id = ANY(%(group_ids)s)
    ) m
    GROUP BY m.group_id
) s
WHERE g.id = s.group_id

-- name: find_rewarded
-- Experiences that somebody has something to say of, with their reward and the mean of their group.
SELECT e.id, e.run_id, e.rollout_id, e.reward, g.reward_mean AS group_mean
FROM trinity.experience e
LEFT JOIN trinity.rollout_group g ON g.id = e.group_id
WHERE e.id = ANY(%(ids)s::bigint[])
