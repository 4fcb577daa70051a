-- Rewards: parts, changes after training, and rewards that are still due.

-- Contribution of a reward event to the reward: its value times its weight. NULL if a person or a program gave it weight 0, for
-- example because people took all their verdicts back, so that a row without other events has no reward instead of 0. For
-- processing steps a weight of 0 counts as 0.
CREATE FUNCTION trinity.reward_share(value double precision, weight double precision, source text)
RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN reward_share.weight <> 0 OR reward_share.source IN ('score', 'rescore')
                THEN reward_share.value * reward_share.weight END
$$;

-- Whether each row of an attempt has the reward of the whole attempt, as the sequences of a program do.
CREATE FUNCTION trinity.shares_reward(rollout_id bigint)
RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT m.shares_reward FROM trinity.rollout m WHERE m.id = shares_reward.rollout_id
$$;

-- Reward of an attempt, from number, sum, minimum and maximum of the rewards of its rows: their sum or, if each row has the reward
-- of the whole attempt, their mean. The mean of equal numbers is one of them, since a quotient may differ by rounding. A single
-- expression, so that the planner can put it in place of the call.
CREATE FUNCTION trinity.attempt_reward(rollout_id bigint, rewards bigint, total double precision, lowest double precision,
                                       highest double precision)
RETURNS double precision
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN attempt_reward.rewards < 2 OR trinity.shares_reward(attempt_reward.rollout_id) IS NOT TRUE
                THEN attempt_reward.total
                WHEN attempt_reward.lowest = attempt_reward.highest THEN attempt_reward.lowest
                ELSE attempt_reward.total / attempt_reward.rewards END
$$;

-- Whether a row still waits for a source of rewards. It does not if the source gave a reward outside the review queue, or if
-- people have given all the verdicts requested in the queue, even if none of these has a value. No row waits for verdicts with
-- weight 0, since they do not change the reward.
CREATE FUNCTION trinity.is_awaited(experience_id bigint, rollout_id bigint, source text)
RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT FROM trinity.reward_event v
                       WHERE v.rollout_id = is_awaited.rollout_id AND v.source = is_awaited.source
                         AND v.weight <> 0 AND v.detail -> 'review' IS NULL)
       AND NOT EXISTS (SELECT FROM trinity.reward_event v
                       WHERE v.experience_id = is_awaited.experience_id AND v.source = is_awaited.source
                         AND v.weight <> 0 AND v.detail -> 'review' IS NULL)
       AND NOT EXISTS (SELECT FROM trinity.review q
                       WHERE q.experience_id = is_awaited.experience_id AND q.other_id IS NULL
                         AND q.source = is_awaited.source AND q.weight <> 0 AND q.closed_at IS NOT NULL)
$$;

-- Parts of the reward of each experience. THE RULE: of the reward events about an experience, about its source if it was
-- adopted, and about its rollout, the latest of each name counts; the reward is the sum of their values, each times its weight.
-- An event with weight 0 does not change the reward. `refresh_rewards` computes rewards from this view. If no event counts, the
-- reward comes from pairs, by label_in.
--
-- A rescore applies the rule with the events that it writes. Under a name whose latest event is a person's or a program's, it
-- writes none. Rewards that a rerun step no longer gives, or whose step the run no longer has, it repeats with weight 0. So for
-- each step the events of one pass count, and a person's correction is kept.
CREATE VIEW trinity.reward_part_view AS
SELECT DISTINCT ON (e.id, v.name)
       r.name AS run,
       e.id AS experience_id,
       v.name,
       v.value,
       v.weight,
       v.source,
       v.created_by,
       v.processor_version,
       v.created_at,
       v.id AS event_id,
       trinity.reward_share(v.value, v.weight, v.source) AS share
FROM trinity.experience e
LEFT JOIN trinity.run r ON r.id = e.run_id
CROSS JOIN LATERAL (
    SELECT a.* FROM trinity.reward_event a WHERE a.rollout_id = e.rollout_id
    UNION ALL
    SELECT a.* FROM trinity.reward_event a WHERE a.experience_id = ANY(ARRAY[e.id, e.source_id])
) v
ORDER BY e.id, v.name, v.id DESC;
COMMENT ON COLUMN trinity.reward_part_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.reward_part_view.experience_id IS 'Experience';
COMMENT ON COLUMN trinity.reward_part_view.name IS 'Name of the reward';
COMMENT ON COLUMN trinity.reward_part_view.value IS 'Value of the reward event';
COMMENT ON COLUMN trinity.reward_part_view.weight IS 'Factor of the value in the reward; 0: recorded without changing it';
COMMENT ON COLUMN trinity.reward_part_view.source IS 'Origin: explore, score, rescore, import or a source named by a person';
COMMENT ON COLUMN trinity.reward_part_view.created_by IS 'Person or program that gave it; NULL if unknown';
COMMENT ON COLUMN trinity.reward_part_view.processor_version IS 'Version of the list of steps that made it, as in step_list of the processor score; NULL if not from a step';
COMMENT ON COLUMN trinity.reward_part_view.created_at IS 'Time at which it was recorded';
COMMENT ON COLUMN trinity.reward_part_view.event_id IS 'Id of the reward event';
COMMENT ON COLUMN trinity.reward_part_view.share IS
    'Contribution to the reward: value times weight; NULL if a person or a program gave weight 0';

-- Reward of an experience at training: the reward used by the last committed batch that contained it. For a row that no batch
-- used with a reward, the reward without rescores.
CREATE FUNCTION trinity.reward_at_training(experience_id bigint, rollout_id bigint, reward double precision)
RETURNS double precision
LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        (SELECT i.reward
         FROM trinity.batch_item i
         JOIN trinity.batch b ON b.id = i.batch_id AND b.state = 'committed'
         WHERE i.experience_id = reward_at_training.experience_id AND i.reward IS NOT NULL
         ORDER BY b.id DESC LIMIT 1),
        CASE WHEN EXISTS (SELECT FROM trinity.reward_event v
                          WHERE v.rollout_id = reward_at_training.rollout_id AND v.source = 'rescore')
                  OR EXISTS (SELECT FROM trinity.reward_event v
                             WHERE v.experience_id = reward_at_training.experience_id AND v.source = 'rescore')
             THEN (SELECT sum(trinity.reward_share(v.value, v.weight, v.source) ORDER BY v.name)
                   FROM (SELECT DISTINCT ON (a.name) a.name, a.value, a.weight, a.source
                         FROM (SELECT w.* FROM trinity.reward_event w
                               WHERE w.rollout_id = reward_at_training.rollout_id
                               UNION ALL
                               SELECT w.* FROM trinity.reward_event w
                               WHERE w.experience_id = reward_at_training.experience_id) a
                         WHERE a.source <> 'rescore'
                         ORDER BY a.name, a.id DESC) v)
             ELSE reward_at_training.reward END)
$$;

-- Rows that were trained on with a reward other than their current one, with their latest reward event.
CREATE VIEW trinity.reward_change_view AS
SELECT r.name AS run,
       i.experience_id,
       b.step,
       b.included_version,
       i.reward AS reward_used,
       e.reward AS reward_now,
       v.created_at AS changed_at,
       v.source,
       v.created_by AS changed_by
FROM trinity.batch b
JOIN trinity.run r ON r.id = b.run_id
JOIN trinity.batch_item i ON i.batch_id = b.id
JOIN trinity.experience e ON e.id = i.experience_id
LEFT JOIN LATERAL (
    SELECT a.id, a.created_at, a.source, a.created_by FROM trinity.reward_event a WHERE a.rollout_id = e.rollout_id
    UNION ALL
    SELECT a.id, a.created_at, a.source, a.created_by FROM trinity.reward_event a
    WHERE a.experience_id = ANY(ARRAY[e.id, e.source_id])
    ORDER BY id DESC
    LIMIT 1
) v ON true
WHERE b.state = 'committed'
  -- Implied by the next condition; avoids looking up the events of unchanged rows.
  AND (i.reward IS NULL OR i.reward IS DISTINCT FROM e.reward)
  -- An item without a reward: the row had none, or none was recorded; then the event's time decides.
  AND CASE WHEN i.reward IS NULL THEN v.created_at > b.created_at ELSE i.reward IS DISTINCT FROM e.reward END;
COMMENT ON COLUMN trinity.reward_change_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.reward_change_view.experience_id IS 'Experience';
COMMENT ON COLUMN trinity.reward_change_view.step IS 'Trainer step that used it';
COMMENT ON COLUMN trinity.reward_change_view.included_version IS 'First policy version that includes the step';
COMMENT ON COLUMN trinity.reward_change_view.reward_used IS 'Reward used by the step';
COMMENT ON COLUMN trinity.reward_change_view.reward_now IS 'Current reward';
COMMENT ON COLUMN trinity.reward_change_view.changed_at IS 'Time of the latest reward event';
COMMENT ON COLUMN trinity.reward_change_view.source IS 'Source of that event';
COMMENT ON COLUMN trinity.reward_change_view.changed_by IS 'Person or program that gave it; NULL if unknown';

-- Rows that active runs with requires_reward wait for: the members of complete groups that the source has not judged yet,
-- without attempts that lost a step.
CREATE VIEW trinity.awaited_reward_view AS
SELECT r.name AS run,
       r.config ->> 'requires_reward' AS source,
       e.id AS experience_id,
       e.group_id,
       x.prompt,
       x.response,
       e.created_at
FROM trinity.run r
JOIN trinity.rollout_group g ON g.run_id = r.id AND g.state = 'complete'
JOIN trinity.experience e ON e.group_id = g.id AND e.state = 'scored'
LEFT JOIN trinity.experience_text x ON x.experience_id = e.id
WHERE r.state = 'active' AND r.config ->> 'requires_reward' IS NOT NULL
  AND NOT EXISTS (SELECT FROM trinity.experience lost WHERE lost.rollout_id = e.rollout_id AND lost.state = 'dropped')
  AND trinity.is_awaited(e.id, e.rollout_id, r.config ->> 'requires_reward');
COMMENT ON COLUMN trinity.awaited_reward_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.awaited_reward_view.source IS 'Source of the required reward';
COMMENT ON COLUMN trinity.awaited_reward_view.experience_id IS 'Experience to be judged';
COMMENT ON COLUMN trinity.awaited_reward_view.group_id IS 'Its rollout group';
COMMENT ON COLUMN trinity.awaited_reward_view.prompt IS 'Prompt as text';
COMMENT ON COLUMN trinity.awaited_reward_view.response IS 'Response as text';
COMMENT ON COLUMN trinity.awaited_reward_view.created_at IS 'Time at which it was written';

-- Reward of an experience as of a snapshot: the weighted sum of the latest event of each name about the experience, about its
-- source if it was adopted, or about their rollout. If no event counts, the label from pairs; without events and pairs,
-- the reward with which the experience was imported or adopted.
CREATE FUNCTION trinity.reward_in(experience_id bigint, seen pg_snapshot)
RETURNS double precision
LANGUAGE sql STABLE AS $$
    WITH about AS MATERIALIZED (
        SELECT v.id, v.name, trinity.reward_share(v.value, v.weight, v.source) AS part,
               pg_visible_in_snapshot(v.xact::text::xid8, seen) AS is_seen
        FROM trinity.experience e
        CROSS JOIN LATERAL (
            SELECT v.* FROM trinity.reward_event v WHERE v.rollout_id = e.rollout_id
            UNION ALL
            SELECT v.* FROM trinity.reward_event v WHERE v.experience_id = ANY(ARRAY[e.id, e.source_id])
        ) v
        WHERE e.id = reward_in.experience_id
    ),
    latest AS (
        SELECT DISTINCT ON (about.name) about.name, about.part
        FROM about
        WHERE about.is_seen
        ORDER BY about.name, about.id DESC
    )
    SELECT coalesce((SELECT sum(latest.part ORDER BY latest.name) FROM latest),
                    trinity.label_in(reward_in.experience_id, reward_in.seen),
                    (SELECT e.reward FROM trinity.experience e
                     WHERE e.id = reward_in.experience_id AND NOT EXISTS (SELECT FROM about)
                       AND NOT EXISTS (SELECT FROM trinity.preference p WHERE p.chosen_id = e.id AND p.gives_labels)
                       AND NOT EXISTS (SELECT FROM trinity.preference p WHERE p.rejected_id = e.id AND p.gives_labels)))
$$;
