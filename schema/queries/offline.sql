-- name: count_rows
-- Number of rows in the whole training, by uses so far. Rows without tokens count: they get tokens, or are dropped.
-- The rule is that of experience.place.
SELECT e.use_count AS uses, count(*) AS rows
FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.state IN ('ready', 'leased', 'trained') AND e.seed IS NOT NULL
  AND trinity.is_learned_from(e.reward, e.draws_labels)
GROUP BY e.use_count

-- name: fit_rows_to_epochs
-- Adapts up to :limit rows of an offline run to another number of epochs: rows with uses left become ready, others
-- trained. The run's trainer repeats it at its start until no rows change.
UPDATE trinity.experience e
SET state = CASE WHEN e.state = 'ready' THEN 'trained' ELSE 'ready' END::trinity.experience_state
WHERE e.id IN (SELECT f.id FROM trinity.experience f
               WHERE f.run_id = %(run_id)s AND f.seed IS NOT NULL
                 AND f.state = CASE WHEN f.use_count < %(epochs)s THEN 'trained' ELSE 'ready' END::trinity.experience_state
               LIMIT %(limit)s)

-- name: fit_groups_to_epochs
-- Adapts adopted groups and their rows to another number of epochs, like fit_rows_to_epochs.
WITH fitted AS (
    UPDATE trinity.rollout_group g
    SET state = CASE WHEN g.state = 'ready' THEN 'trained' ELSE 'ready' END::trinity.group_state
    WHERE g.id IN (SELECT f.id FROM trinity.rollout_group f
                   WHERE f.run_id = %(run_id)s AND f.seed IS NOT NULL
                     AND f.state = CASE WHEN f.use_count < %(epochs)s THEN 'trained' ELSE 'ready' END::trinity.group_state
                   LIMIT %(limit)s)
    RETURNING g.id, g.state
),
members AS (
    UPDATE trinity.experience e SET state = fitted.state::text::trinity.experience_state
    FROM fitted
    WHERE e.group_id = fitted.id AND e.run_id = %(run_id)s AND (e.state IN ('ready', 'trained')) IS TRUE
)
SELECT id FROM fitted

-- name: count_groups
-- Number of adopted groups in the whole training, by uses so far.
SELECT g.use_count AS uses, count(*) AS rows
FROM trinity.rollout_group g
WHERE g.run_id = %(run_id)s AND g.seed IS NOT NULL AND g.state IN ('ready', 'leased', 'trained')
GROUP BY g.use_count

-- name: seed_groups
-- Adds adopted groups to passes once all their rows have tokens, or drops them if too few attempts fit the model.
WITH fresh AS MATERIALIZED (
    SELECT g.id,
           (SELECT count(DISTINCT e.rollout_id) FROM trinity.experience e
            WHERE e.group_id = g.id AND (e.state = 'ready') IS TRUE) AS size
    FROM trinity.rollout_group g
    WHERE g.run_id = %(run_id)s AND g.state = 'ready' AND g.source_id IS NOT NULL AND g.seed IS NULL
      AND (SELECT e.id FROM trinity.experience e
           WHERE e.group_id = g.id AND e.prompt_length IS NULL AND (e.state = 'ready') IS TRUE LIMIT 1) IS NULL
    ORDER BY g.id
    LIMIT %(limit)s
),
decided AS (
    UPDATE trinity.rollout_group g
    SET state = CASE WHEN fresh.size < %(min_size)s THEN 'dropped' ELSE 'ready' END::trinity.group_state,
        seed = (SELECT r.seed FROM trinity.run r WHERE r.id = g.run_id), ready_at = now(),
        ready_xact = pg_current_xact_id()::text::bigint
    FROM fresh
    WHERE g.id = fresh.id
    RETURNING g.id, g.run_id, g.state, fresh.size
),
dropped AS (
    INSERT INTO trinity."drop" (run_id, group_id, stage, reason, detail)
    SELECT d.run_id, d.id, 'encode', 'group_too_small', jsonb_build_object('size', d.size)
    FROM decided d WHERE d.state = 'dropped'
    ON CONFLICT (group_id) DO NOTHING
),
members AS (
    UPDATE trinity.experience e SET state = 'dropped'
    FROM decided d
    WHERE d.state = 'dropped' AND e.group_id = d.id AND (e.state = 'ready') IS TRUE
)
SELECT d.id FROM decided d

-- name: count_unsampled
-- Rows of adopted groups without log-probabilities of a policy. The first byte of their arrays indicates that nothing
-- follows the mask.
SELECT count(*) AS rows
FROM trinity.rollout_group g
JOIN trinity.experience e ON e.group_id = g.id AND (e.state = 'ready') IS TRUE
JOIN trinity.payload p ON p.experience_id = e.id
WHERE g.run_id = %(run_id)s AND g.source_id IS NOT NULL AND g.state = 'ready'
  AND get_byte(substring(p.data FOR 1), 0) = 0

-- name: fit_pairs_to_epochs
-- Adapts pairs to another number of epochs, like fit_rows_to_epochs.
UPDATE trinity.preference p
SET state = CASE WHEN p.state = 'ready' THEN 'trained' ELSE 'ready' END::trinity.experience_state
WHERE p.id IN (SELECT f.id FROM trinity.preference f
               WHERE f.run_id = %(run_id)s AND NOT f.held_out
                 AND f.state = CASE WHEN f.use_count < %(epochs)s THEN 'trained' ELSE 'ready' END::trinity.experience_state
               LIMIT %(limit)s)

-- name: count_unlabelled
-- Number of rows without a reward, and therefore without a label, in a run that learns from labels.
SELECT count(*) AS rows
FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.is_offered AND e.draws_labels AND e.reward IS NULL

-- name: count_pairs
-- Number of pairs in the whole training, by uses so far. The rule is that of draw_pairs: a pair contradicted by
-- people has no seed, and a pair upheld by people counts whatever its rewards. Pairs of rows without tokens count,
-- too.
SELECT p.use_count AS uses, count(*) AS rows
FROM trinity.preference p
JOIN trinity.experience chosen ON chosen.id = p.chosen_id
JOIN trinity.experience rejected ON rejected.id = p.rejected_id
WHERE p.run_id = %(run_id)s AND p.state IN ('ready', 'leased', 'trained') AND p.seed IS NOT NULL
  AND (p.source <> 'pair' OR p.upheld OR chosen.reward > rejected.reward)
GROUP BY p.use_count

-- name: held_out_rows
-- Held-out rows, by the rules for drawn rows.
SELECT e.id, e.reward
FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.is_offered AND e.held_out AND e.prompt_length IS NOT NULL
  AND trinity.is_learned_from(e.reward, e.draws_labels)
  AND (e.draws_labels OR NOT EXISTS (SELECT FROM trinity.preference p WHERE p.rejected_id = e.id))
ORDER BY e.id
LIMIT %(limit)s

-- name: held_out_pairs
-- The rows of held-out pairs: the chosen row of each pair, then the rejected one. As in draw_pairs, pairs
-- contradicted by people are left out, and pairs contradicted by their rewards unless people uphold them.
SELECT e.id, e.reward
FROM (SELECT p.id, p.chosen_id, p.rejected_id
      FROM trinity.preference p
      CROSS JOIN LATERAL (SELECT FROM trinity.experience chosen, trinity.experience rejected
                          WHERE chosen.id = p.chosen_id AND rejected.id = p.rejected_id
                            AND chosen.prompt_length IS NOT NULL AND rejected.prompt_length IS NOT NULL
                            AND (p.source <> 'pair' OR p.upheld OR chosen.reward > rejected.reward)
                          LIMIT 1) AS sides
      WHERE p.run_id = %(run_id)s AND p.state = 'ready' AND p.held_out AND p.upheld IS NOT FALSE
      ORDER BY p.id
      LIMIT %(limit)s) AS pair
CROSS JOIN LATERAL (VALUES (0, pair.chosen_id), (1, pair.rejected_id)) AS side (place, id)
JOIN trinity.experience e ON e.id = side.id
ORDER BY pair.id, side.place

-- name: unencoded_rows
-- Adopted rows without tokens. `traced`: the source row, if it has tokens (an imported trace, or a row of another
-- run); `temperature`: the source run's sampling temperature.
SELECT e.id, x.prompt, x.response, x.messages, x.tools, x.reply,
       (SELECT p.experience_id FROM trinity.payload p WHERE p.experience_id = e.source_id) AS traced,
       (r.config #>> '{explorer,temperature}')::float8 AS temperature
FROM trinity.experience e
JOIN trinity.experience o ON o.id = e.source_id
JOIN trinity.run r ON r.id = o.run_id
JOIN trinity.experience_text x ON x.experience_id = e.source_id
WHERE e.run_id = %(run_id)s AND e.is_offered AND e.prompt_length IS NULL AND e.id > %(after)s
ORDER BY e.id
LIMIT %(limit)s

-- name: unencoded_sources
-- Source runs of adopted rows without tokens, with their starting models; data sets are excluded.
SELECT r.id, r.name, r.config -> 'model' AS model
FROM trinity.run r
WHERE r.kind = 'train'
  AND r.id IN (SELECT o.run_id FROM trinity.experience e JOIN trinity.experience o ON o.id = e.source_id
               WHERE e.run_id = %(run_id)s AND e.is_offered AND e.prompt_length IS NULL)
ORDER BY r.id

-- name: count_unencoded
-- Number of adopted rows without tokens.
SELECT count(*) AS rows
FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.is_offered AND e.prompt_length IS NULL

-- name: encode_rows
-- Records the lengths of rows that have tokens now. From now on they can be drawn.
UPDATE trinity.experience e
SET prompt_length = n.prompt_length, response_length = n.response_length,
    ready_xact = pg_current_xact_id()::text::bigint
FROM unnest(%(ids)s::bigint[], %(prompt_lengths)s::integer[], %(response_lengths)s::integer[])
     AS n (id, prompt_length, response_length)
WHERE e.id = n.id

-- name: insert_payloads
-- Stores arrays. They are immutable: existing ones are unchanged.
INSERT INTO trinity.payload (experience_id, codec, num_tokens, data)
SELECT n.id, n.codec, n.num_tokens, n.data
FROM unnest(%(ids)s::bigint[], %(codecs)s::text[], %(num_tokens)s::integer[], %(data)s::bytea[])
     AS n (id, codec, num_tokens, data)
ON CONFLICT (experience_id) DO NOTHING

-- name: drop_ready
-- Drops ready rows that do not fit the model. The other members of their groups may form new pairs.
WITH dropped AS (
    UPDATE trinity.experience e SET state = 'dropped' WHERE e.id = ANY(%(ids)s) AND (e.state = 'ready') IS TRUE
    RETURNING e.run_id, e.group_id
)
INSERT INTO trinity.pairing (run_id, group_id)
SELECT DISTINCT d.run_id, d.group_id
FROM dropped d JOIN trinity.run r ON r.id = d.run_id
WHERE d.group_id IS NOT NULL AND r.derives_pairs

-- name: drop_pairs_of
-- Drops the pairs of dropped rows, since a pair needs both rows.
WITH dropped AS (
    UPDATE trinity.preference p SET state = 'dropped'
    WHERE p.run_id = %(run_id)s AND (p.chosen_id = ANY(%(ids)s) OR p.rejected_id = ANY(%(ids)s)) AND p.state = 'ready'
    RETURNING p.id, p.run_id
)
INSERT INTO trinity."drop" (run_id, preference_id, stage, reason)
SELECT run_id, id, %(stage)s, 'row_dropped' FROM dropped
