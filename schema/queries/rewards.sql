-- name: lock_groups
-- Locks the groups of these reward events and the groups that adopted them, in order of id. Only one transaction at a
-- time changes a group's statistics; transactions that also change members lock the groups first.
WITH about AS MATERIALIZED (
    SELECT r.group_id AS id FROM trinity.rollout r WHERE r.id = ANY(%(rollout_ids)s)
    UNION
    SELECT e.group_id FROM trinity.experience e WHERE e.id = ANY(%(experience_ids)s) AND e.group_id IS NOT NULL
)
SELECT g.id FROM trinity.rollout_group g
WHERE g.id IN (SELECT about.id FROM about
               UNION ALL
               SELECT c.id FROM about JOIN trinity.rollout_group c ON c.source_id = about.id)
ORDER BY g.id
FOR NO KEY UPDATE

-- name: lock_new_copies
-- Locks groups that adopted these groups while lock_groups waited for them, which it did not see. Further ones cannot
-- follow. Their ids are the newest, so the order of locks by id is kept.
SELECT c.id FROM trinity.rollout_group c
WHERE c.source_id = ANY(%(ids)s::bigint[]) AND c.id <> ALL(%(ids)s::bigint[])
ORDER BY c.id
FOR NO KEY UPDATE

-- name: lock_rewarded
-- Locks, in order of id, the experiences whose reward depends on events of these rollouts and experiences: the rows
-- themselves, and rows adopted from them.
SELECT e.id FROM trinity.experience e
WHERE e.id IN (SELECT m.id FROM trinity.experience m WHERE m.rollout_id = ANY(%(rollout_ids)s)
               UNION ALL
               SELECT m.id FROM trinity.experience m WHERE m.id = ANY(%(experience_ids)s)
               UNION ALL
               SELECT m.id FROM trinity.experience m WHERE m.source_id = ANY(%(experience_ids)s))
ORDER BY e.id
FOR NO KEY UPDATE

-- name: lock_judged_data
-- Locks the data sets that these experiences belong to or were adopted from, so that a judgement waits while a run
-- adopts rows. Otherwise it would change the row, but not the run's copy, which is not visible yet.
SELECT s.id FROM trinity.taskset s
WHERE s.name = ANY(ARRAY(SELECT r.name
                         FROM trinity.experience e
                         JOIN trinity.experience o ON o.id = coalesce(e.source_id, e.id)
                         JOIN trinity.run r ON r.id = o.run_id AND r.kind = 'data'
                         WHERE e.id = ANY(%(ids)s)))
ORDER BY s.id
FOR NO KEY UPDATE

-- name: rewarded_members
-- Which of these rows have a reward and are members of settled groups, in runs that compare the members of a group by
-- reward. A draw cannot compare a member without one. Run it under the lock of the groups.
SELECT e.id
FROM trinity.experience e
JOIN trinity.rollout_group g ON g.id = e.group_id AND g.run_id = e.run_id AND g.state IN ('ready', 'leased', 'trained')
JOIN trinity.run r ON r.id = g.run_id AND r.draws = 'groups'
WHERE e.id = ANY(%(ids)s::bigint[]) AND e.state IN ('ready', 'leased', 'trained') AND e.reward IS NOT NULL

-- name: insert_reward_events
-- Inserts the events in the given order. The last event of each name counts.
INSERT INTO trinity.reward_event
    (run_id, rollout_id, experience_id, source, name, value, weight, created_by, processor_version, detail)
SELECT %(run_id)s, v.rollout_id, v.experience_id, %(source)s, v.name, v.value, v.weight, %(created_by)s,
       %(processor_version)s::integer, v.detail
FROM unnest(%(rollout_ids)s::bigint[], %(experience_ids)s::bigint[], %(names)s::text[],
            %(values)s::double precision[], %(weights)s::double precision[], %(details)s::jsonb[])
     WITH ORDINALITY AS v (rollout_id, experience_id, name, value, weight, detail, ordinal)
ORDER BY v.ordinal

-- name: refresh_rewards
-- Sets the reward of these experiences by the rule of reward_part_view. If it changed, their groups are marked for
-- pairing.
WITH total AS (
    SELECT v.experience_id AS id, coalesce(sum(v.share), trinity.label_in(v.experience_id, NULL)) AS reward
    FROM trinity.reward_part_view v
    WHERE v.experience_id = ANY(%(ids)s)
    GROUP BY v.experience_id
),
changed AS (
    UPDATE trinity.experience e SET reward = total.reward
    FROM total
    WHERE e.id = total.id AND e.reward IS DISTINCT FROM total.reward
    RETURNING e.run_id, e.group_id, e.state
)
INSERT INTO trinity.pairing (run_id, group_id)
SELECT DISTINCT c.run_id, c.group_id
FROM changed c JOIN trinity.run r ON r.id = c.run_id
WHERE c.group_id IS NOT NULL AND c.state IN ('ready', 'leased', 'trained') AND r.derives_pairs

-- name: refresh_pairs
-- Adds pairs derived from rewards to passes, or removes them, depending on whether they agree with the current
-- rewards. People's decisions are kept. Runs after refresh_rewards; locks the pairs in order of id.
WITH judged AS MATERIALIZED (
    SELECT e.id, e.run_id
    FROM trinity.experience e JOIN trinity.run r ON r.id = e.run_id AND r.derives_pairs
    WHERE e.id = ANY(%(ids)s)
),
held AS MATERIALIZED (
    SELECT p.id
    FROM trinity.preference p
    WHERE p.source = 'pair' AND p.upheld IS NULL
      AND p.id = ANY(ARRAY(SELECT q.id FROM judged e
                           JOIN trinity.preference q ON q.run_id = e.run_id AND q.chosen_id = e.id
                           UNION
                           SELECT q.id FROM judged e JOIN trinity.preference q ON q.rejected_id = e.id))
    ORDER BY p.id
    FOR NO KEY UPDATE
)
UPDATE trinity.preference p
SET seed = CASE WHEN chosen.reward > rejected.reward AND NOT p.held_out THEN r.seed END
FROM held, trinity.run r, trinity.experience chosen, trinity.experience rejected
WHERE p.id = held.id AND r.id = p.run_id AND chosen.id = p.chosen_id AND rejected.id = p.rejected_id
  AND (p.seed IS NOT NULL) <> (chosen.reward > rejected.reward AND NOT p.held_out)

-- name: refresh_groups
-- Updates the reward statistics of these groups in the transaction that changed a reward, and their priority if it
-- follows from rewards; if steps compute it, it becomes due. The statistics are of attempts, each with its
-- trinity.attempt_reward. Rows that will not be trained on do not count.
WITH refreshed AS (
    UPDATE trinity.rollout_group g
    SET reward_count = s.reward_count, reward_mean = s.reward_mean, reward_variance = s.reward_variance,
        priority = CASE WHEN (SELECT r.config #>> '{processors,group,priority}' FROM trinity.run r
                              WHERE r.id = g.run_id) = 'reward_std'
                        THEN trinity.derived_priority(s.reward_variance) ELSE g.priority END
    FROM (
        SELECT m.group_id, count(m.reward) AS reward_count, avg(m.reward) AS reward_mean,
               var_samp(m.reward) AS reward_variance
        FROM (
            -- Conditions in CASE instead of WHERE: without statistics the planner would scan a partial index for
            -- them. Rows adopted by other runs share the group without being members.
            SELECT e.group_id, trinity.attempt_reward(e.rollout_id, count(c.reward), sum(c.reward), min(c.reward),
                                                      max(c.reward)) AS reward
            FROM trinity.experience e
            JOIN trinity.rollout_group o ON o.id = e.group_id
            CROSS JOIN LATERAL (
                SELECT CASE WHEN e.run_id = o.run_id AND e.state NOT IN ('dropped', 'expired') THEN e.reward END AS reward
            ) c
            WHERE e.group_id = ANY(%(group_ids)s)
            GROUP BY e.group_id, e.rollout_id
        ) m
        GROUP BY m.group_id
    ) s
    WHERE g.id = s.group_id
    RETURNING g.id, g.run_id, g.state
)
INSERT INTO trinity.group_priority (run_id, group_id)
SELECT c.run_id, c.id
FROM refreshed c JOIN trinity.run r ON r.id = c.run_id
WHERE c.state IN ('ready', 'leased', 'trained') AND r.config #> '{processors,priority,0}' IS NOT NULL

-- name: count_settled
-- For locked groups already counted in task_stat: the number of attempts with a reward, and of attempts that solved
-- their task. Runs before and after a reward changes.
SELECT a.id, a.run_id, a.task_id, count(a.reward) AS scored, count(*) FILTER (WHERE a.reward >= a.enough) AS solved
FROM (
    -- Conditions in CASE: see refresh_groups.
    SELECT g.id, g.run_id, g.task_id,
           coalesce((r.config #>> '{processors,group,solved_reward}')::float8, 1) AS enough,
           trinity.attempt_reward(e.rollout_id, count(c.reward), sum(c.reward), min(c.reward), max(c.reward)) AS reward
    FROM trinity.rollout_group g
    JOIN trinity.run r ON r.id = g.run_id AND r.kind = 'train'
    JOIN trinity.experience e ON e.group_id = g.id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN e.source_id IS NULL AND e.state IN ('ready', 'leased', 'trained') THEN e.reward END AS reward
    ) c
    WHERE g.id = ANY(%(group_ids)s) AND (g.state IN ('ready', 'leased', 'trained')) IS TRUE
    GROUP BY g.id, r.id, e.rollout_id
) a
GROUP BY a.id, a.run_id, a.task_id

-- name: correct_solved
-- Corrects the counts of tasks after rewards changed. Locks them in order of the tasks, after all other rows.
WITH moved AS (
    SELECT n.run_id, n.task_id, sum(n.scored)::integer AS scored, sum(n.solved)::integer AS solved
    FROM unnest(%(run_ids)s::bigint[], %(task_ids)s::bigint[], %(scored)s::integer[], %(solved)s::integer[])
        AS n (run_id, task_id, scored, solved)
    GROUP BY n.run_id, n.task_id
),
held AS MATERIALIZED (
    SELECT s.run_id, s.task_id FROM trinity.task_stat s JOIN moved USING (run_id, task_id)
    ORDER BY s.task_id
    FOR NO KEY UPDATE OF s
)
UPDATE trinity.task_stat s
SET scored = s.scored + m.scored, solved = s.solved + m.solved, alpha = s.alpha + m.solved,
    beta = s.beta + m.scored - m.solved
FROM held JOIN moved m USING (run_id, task_id)
WHERE s.run_id = held.run_id AND s.task_id = held.task_id

-- name: find_rewarded
-- The experiences to be judged, with their reward, the mean of their group, and whether their attempt has several
-- steps.
SELECT e.id, e.run_id, e.rollout_id, e.reward, g.reward_mean AS group_mean,
       EXISTS (SELECT FROM trinity.experience s WHERE s.rollout_id = e.rollout_id AND s.step > 0) AS is_step
FROM trinity.experience e
LEFT JOIN trinity.rollout_group g ON g.id = e.group_id
WHERE e.id = ANY(%(ids)s::bigint[])
