-- name: adopt_experiences
-- Copies the hot rows added to a data set since the run last adopted it; text and rollouts stay shared. Imports into
-- a data set are serialised (lock_tasksets), so its rows are committed in order of id, and all rows above the newest
-- adopted row are new.
--
-- All answers to one prompt are held out together, even across data sets; a document, which has no prompt, is held
-- out by its text. Held-out rows are in no pass. Neither are rejected rows of pairs, unless the run learns from
-- labels.
WITH adopted AS (
    INSERT INTO trinity.experience
        (run_id, source_id, group_id, rollout_id, step, state, reward, held_out, seed, draws_labels, ready_xact)
    SELECT r.id, e.id, e.group_id, e.rollout_id, e.step, 'ready', e.reward, kept.is_so,
           CASE WHEN NOT kept.is_so
                     AND (r.draws = 'labels' OR NOT EXISTS (SELECT FROM trinity.preference p WHERE p.rejected_id = e.id))
                THEN r.seed END,
           r.draws = 'labels', pg_current_xact_id()::text::bigint
    FROM trinity.run r
    CROSS JOIN trinity.experience e
    JOIN trinity.experience_text x ON x.experience_id = e.id
    CROSS JOIN LATERAL (
        SELECT abs(hashtextextended(coalesce(nullif(x.prompt, ''), x.response), 0) %% 1000000)
                   < %(holdout)s::float8 * 1000000 AS is_so
    ) kept
    WHERE r.id = %(run_id)s AND e.run_id = %(source_run_id)s AND e.is_offered
      AND e.id > coalesce((SELECT n.id FROM trinity.experience n
                           WHERE n.run_id = %(source_run_id)s AND n.is_offered
                             AND (SELECT a.id FROM trinity.experience a
                                  WHERE a.source_id = n.id AND a.run_id = %(run_id)s) IS NOT NULL
                           ORDER BY n.id DESC LIMIT 1), 0)
    ORDER BY e.id
    ON CONFLICT DO NOTHING
    RETURNING run_id, group_id
)
INSERT INTO trinity.pairing (run_id, group_id)
SELECT DISTINCT a.run_id, a.group_id
FROM adopted a JOIN trinity.run r ON r.id = a.run_id
WHERE a.group_id IS NOT NULL AND r.derives_pairs

-- name: adopt_preferences
-- Copies the pairs added to a data set, like adopt_experiences, for the rows that the run adopted. Pairs that the run
-- derived from rewards do not count as adopted. A pair is dropped if either of its rows is, even if the row was
-- dropped before. From now on the rejected row is in no pass over rows, except passes over labels. Locks the rejected
-- rows in order of id. Returns the rows that new pairs label as good or bad.
WITH made AS (
    INSERT INTO trinity.preference
        (run_id, chosen_id, rejected_id, source, margin, state, held_out, origin_id, seed, gives_labels)
    SELECT r.id, chosen.id, rejected.id, p.source, p.margin,
           CASE WHEN 'dropped' IN (chosen.state, rejected.state) THEN 'dropped' ELSE 'ready' END::trinity.experience_state,
           chosen.held_out, p.chosen_id, CASE WHEN NOT chosen.held_out THEN r.seed END, r.draws = 'labels'
    FROM trinity.run r
    CROSS JOIN trinity.preference p
    JOIN trinity.experience chosen ON chosen.run_id = r.id AND chosen.source_id = p.chosen_id
    JOIN trinity.experience rejected ON rejected.run_id = r.id AND rejected.source_id = p.rejected_id
    WHERE r.id = %(run_id)s AND p.run_id = %(source_run_id)s AND p.state = 'ready'
      AND p.id > coalesce((SELECT n.id FROM trinity.preference n
                           WHERE n.run_id = %(source_run_id)s AND n.state = 'ready'
                             AND (SELECT q.id FROM trinity.preference q
                                  WHERE q.run_id = %(run_id)s AND q.source = n.source
                                    AND q.chosen_id = (SELECT c.id FROM trinity.experience c
                                                       WHERE c.source_id = n.chosen_id AND c.run_id = %(run_id)s)
                                    AND q.rejected_id = (SELECT d.id FROM trinity.experience d
                                                         WHERE d.source_id = n.rejected_id AND d.run_id = %(run_id)s)
                                 ) IS NOT NULL
                           ORDER BY n.id DESC LIMIT 1), 0)
    ORDER BY p.id
    ON CONFLICT DO NOTHING
    RETURNING id, run_id, chosen_id, rejected_id, state, gives_labels
),
dropped AS (
    INSERT INTO trinity."drop" (run_id, preference_id, stage, reason)
    SELECT made.run_id, made.id, 'encode', 'row_dropped' FROM made WHERE made.state = 'dropped'
),
worse AS MATERIALIZED (
    SELECT e.id FROM trinity.experience e
    WHERE e.id IN (SELECT made.rejected_id FROM made) AND e.seed IS NOT NULL AND NOT e.draws_labels
    ORDER BY e.id
    FOR NO KEY UPDATE
),
out_of_passes AS (
    UPDATE trinity.experience e SET seed = NULL FROM worse WHERE e.id = worse.id
)
SELECT DISTINCT side.id
FROM made CROSS JOIN LATERAL unnest(ARRAY[made.chosen_id, made.rejected_id]) AS side (id)
WHERE made.gives_labels

-- name: hold_source
-- Locks (FOR SHARE) a run whose rows another run is about to adopt; its deletion waits until this transaction ends.
SELECT r.deleting_at IS NOT NULL AS is_being_deleted FROM trinity.run r WHERE r.id = %(source_run_id)s FOR SHARE

-- name: source_facts
-- Whether a run or data set has rows, rewards and pairs that another run can learn from.
SELECT EXISTS (SELECT FROM trinity.rollout_group g CROSS JOIN LATERAL trinity.adoptable_rows(g.id) a
               WHERE g.run_id = %(source_run_id)s AND NOT a.pruned) AS has_rows,
       EXISTS (SELECT FROM trinity.rollout_group g CROSS JOIN LATERAL trinity.adoptable_rows(g.id) a
               WHERE g.run_id = %(source_run_id)s AND NOT a.pruned AND a.reward IS NOT NULL) AS has_rewards,
       EXISTS (SELECT FROM trinity.preference p
               WHERE p.run_id = %(source_run_id)s AND p.state <> 'dropped' AND p.upheld IS NOT FALSE) AS has_pairs

-- name: list_sources
-- The runs and data sets of these names, in the given order.
SELECT r.id, r.name, r.kind
FROM unnest(%(names)s::text[]) WITH ORDINALITY AS n (name, place)
JOIN trinity.run r ON r.name = n.name
ORDER BY n.place

-- name: rows_to_adopt
-- Locks (FOR SHARE) the next groups of a run, by id after :after, with rows that another run can adopt and has not. A
-- reward waits until its row is copied.
SELECT g.id
FROM trinity.rollout_group g
WHERE g.run_id = %(source_run_id)s AND g.id > %(after)s
  AND EXISTS (SELECT FROM trinity.adoptable_rows(g.id) a
              WHERE NOT a.greedy AND NOT a.pruned
                AND (SELECT c.id FROM trinity.experience c
                     WHERE c.source_id = a.id AND c.run_id = %(run_id)s) IS NULL)
ORDER BY g.id
LIMIT %(limit)s
FOR SHARE

-- name: adopt_rows
-- Copies the hot rows of locked groups of a run, like adopt_experiences; text and rollouts stay shared. Rows that the
-- run already has are unchanged.
WITH adopted AS (
    INSERT INTO trinity.experience
        (run_id, source_id, group_id, rollout_id, step, state, reward, held_out, seed, draws_labels, ready_xact)
    SELECT r.id, a.id, g.id, a.rollout_id, a.step, 'ready', a.reward, kept.is_so,
           CASE WHEN NOT kept.is_so THEN r.seed END, r.draws = 'labels', pg_current_xact_id()::text::bigint
    FROM trinity.run r
    CROSS JOIN unnest(%(ids)s::bigint[]) AS g (id)
    CROSS JOIN LATERAL trinity.adoptable_rows(g.id) a
    JOIN trinity.experience_text x ON x.experience_id = a.id
    CROSS JOIN LATERAL (
        SELECT abs(hashtextextended(x.prompt, 0) %% 1000000) < %(holdout)s::float8 * 1000000 AS is_so
    ) kept
    WHERE r.id = %(run_id)s AND NOT a.greedy AND NOT a.pruned
    ORDER BY a.id
    ON CONFLICT DO NOTHING
    RETURNING run_id, group_id
),
marked AS (
    INSERT INTO trinity.pairing (run_id, group_id)
    SELECT DISTINCT a.run_id, a.group_id FROM adopted a JOIN trinity.run r ON r.id = a.run_id WHERE r.derives_pairs
)
SELECT count(*) AS rows FROM adopted

-- name: groups_to_adopt
-- Locks (FOR SHARE) the next groups of a run or data set, by id after :after, that another run can adopt completely
-- and has not. No row of the group is pruned, and each attempt has a reward. A group that the run has adopted but
-- never drawn is returned again if it has gained attempts, for example from a later import.
SELECT g.id
FROM trinity.rollout_group g
WHERE g.run_id = %(source_run_id)s AND g.id > %(after)s
  AND coalesce((SELECT c.state = 'ready' AND c.use_count = 0 AND c.arrived < g.arrived
                       AND NOT EXISTS (SELECT FROM trinity.experience e
                                       JOIN trinity.batch_item i ON i.experience_id = e.id
                                       WHERE e.group_id = c.id)
                FROM trinity.rollout_group c WHERE c.source_id = g.id AND c.run_id = %(run_id)s), true)
  AND (SELECT bool_and(m.is_whole) AND NOT bool_and(m.is_copied)
       FROM (SELECT NOT bool_or(a.pruned) AND count(a.reward) > 0 AS is_whole,
                    bool_and((SELECT e.id FROM trinity.experience e
                              WHERE e.source_id = a.id AND e.run_id = %(run_id)s) IS NOT NULL) AS is_copied
             FROM trinity.adoptable_rows(g.id) a GROUP BY a.rollout_id) m)
ORDER BY g.id
LIMIT %(limit)s
FOR SHARE

-- name: adopt_groups
-- Copies locked groups with their rows. The copies belong to this run, with their own states and uses; texts,
-- rollouts and rewards stay shared. They are in no pass until their rows have tokens (seed_groups), and again when a
-- copy gains attempts. Locks the growing copies in order of id.
WITH member AS MATERIALIZED (
    SELECT g.id AS group_id, a.*
    FROM unnest(%(ids)s::bigint[]) AS g (id)
    CROSS JOIN LATERAL trinity.adoptable_rows(g.id) a
),
total AS (
    SELECT t.group_id, count(*) AS size, avg(t.reward) AS mean, var_samp(t.reward) AS variance
    FROM (SELECT m.group_id, trinity.attempt_reward(m.rollout_id, count(m.reward), sum(m.reward), min(m.reward),
                                                    max(m.reward)) AS reward,
                 NOT bool_or(m.pruned) AND count(m.reward) > 0 AS is_whole
          FROM member m GROUP BY m.group_id, m.rollout_id) t
    GROUP BY t.group_id
    HAVING bool_and(t.is_whole)
),
made AS (
    INSERT INTO trinity.rollout_group
        (run_id, source_id, task_id, state, expected, arrived, completed_at, reward_count, reward_mean, reward_variance)
    SELECT %(run_id)s, g.id, g.task_id, 'ready', total.size, total.size, now(), total.size, total.mean, total.variance
    FROM total JOIN trinity.rollout_group g ON g.id = total.group_id
    ORDER BY g.id
    ON CONFLICT DO NOTHING
    RETURNING id, source_id
),
held AS MATERIALIZED (
    SELECT c.id
    FROM total JOIN trinity.rollout_group c ON c.source_id = total.group_id AND c.run_id = %(run_id)s
    WHERE c.state = 'ready' AND c.use_count = 0 AND c.arrived < total.size
      AND NOT EXISTS (SELECT FROM trinity.experience e JOIN trinity.batch_item i ON i.experience_id = e.id
                      WHERE e.group_id = c.id)
    ORDER BY c.id
    FOR NO KEY UPDATE OF c
),
grown AS (
    UPDATE trinity.rollout_group c
    SET expected = total.size, arrived = total.size, reward_count = total.size, reward_mean = total.mean,
        reward_variance = total.variance, seed = NULL
    FROM held, total
    WHERE c.id = held.id AND total.group_id = c.source_id
    RETURNING c.id, c.source_id
),
adopted AS (
    INSERT INTO trinity.experience
        (run_id, source_id, group_id, rollout_id, step, state, reward, ready_xact)
    SELECT %(run_id)s, m.id, c.id, m.rollout_id, m.step, 'ready', m.reward, pg_current_xact_id()::text::bigint
    FROM (SELECT made.id, made.source_id FROM made UNION ALL SELECT grown.id, grown.source_id FROM grown) c
    JOIN member m ON m.group_id = c.source_id
    ORDER BY m.id
    ON CONFLICT DO NOTHING
    RETURNING id
)
SELECT count(*) AS rows FROM adopted

-- name: pairs_to_adopt
-- The next pairs of a run, by id after :after, whose rows another run has adopted, but not the pair. Pairs
-- contradicted by people are left out.
SELECT p.id
FROM trinity.preference p
JOIN trinity.experience chosen ON chosen.run_id = %(run_id)s AND chosen.source_id = p.chosen_id
JOIN trinity.experience rejected ON rejected.run_id = %(run_id)s AND rejected.source_id = p.rejected_id
WHERE p.run_id = %(source_run_id)s AND p.state <> 'dropped' AND p.upheld IS NOT FALSE AND p.id > %(after)s
  AND (SELECT q.id FROM trinity.preference q
       WHERE q.run_id = %(run_id)s AND q.chosen_id = chosen.id AND q.rejected_id = rejected.id) IS NULL
ORDER BY p.id
LIMIT %(limit)s

-- name: adopt_pairs
-- Copies pairs of a run for the rows that another run adopted, like adopt_preferences. A pair upheld by people does
-- not follow rewards in the other run, either. A pair derived from rewards gives no labels. Locks the rejected rows
-- in order of id. Returns the rows that new pairs label.
WITH made AS (
    INSERT INTO trinity.preference
        (run_id, chosen_id, rejected_id, source, margin, state, held_out, origin_id, seed, gives_labels)
    SELECT r.id, chosen.id, rejected.id, CASE WHEN p.upheld AND p.source = 'pair' THEN 'human' ELSE p.source END, p.margin,
           CASE WHEN 'dropped' IN (chosen.state, rejected.state) THEN 'dropped' ELSE 'ready' END::trinity.experience_state,
           chosen.held_out, p.chosen_id, CASE WHEN NOT chosen.held_out THEN r.seed END,
           r.draws = 'labels' AND (p.source <> 'pair' OR p.upheld IS TRUE)
    FROM trinity.run r
    CROSS JOIN trinity.preference p
    JOIN trinity.experience chosen ON chosen.run_id = r.id AND chosen.source_id = p.chosen_id
    JOIN trinity.experience rejected ON rejected.run_id = r.id AND rejected.source_id = p.rejected_id
    WHERE r.id = %(run_id)s AND p.id = ANY(%(ids)s)
    ORDER BY p.id
    ON CONFLICT DO NOTHING
    RETURNING id, run_id, chosen_id, rejected_id, state, gives_labels
),
dropped AS (
    INSERT INTO trinity."drop" (run_id, preference_id, stage, reason)
    SELECT made.run_id, made.id, 'encode', 'row_dropped' FROM made WHERE made.state = 'dropped'
),
worse AS MATERIALIZED (
    SELECT e.id FROM trinity.experience e
    WHERE e.id IN (SELECT made.rejected_id FROM made) AND e.seed IS NOT NULL AND NOT e.draws_labels
    ORDER BY e.id
    FOR NO KEY UPDATE
),
out_of_passes AS (
    UPDATE trinity.experience e SET seed = NULL FROM worse WHERE e.id = worse.id
)
SELECT count(DISTINCT made.id) AS rows,
       coalesce(array_agg(DISTINCT side.id) FILTER (WHERE made.gives_labels), '{}') AS labelled
FROM made CROSS JOIN LATERAL unnest(ARRAY[made.chosen_id, made.rejected_id]) AS side (id)
