-- name: write_steps
-- The further steps of attempts of which write_rollouts has written the first one, in the same transaction: raw, or
-- late where that was refused. What is stored already is left alone. They may be of other policy versions.
WITH given AS MATERIALIZED (
    SELECT w.*, r.id AS rollout_id, r.run_id, r.state = 'finished' AS is_held
    FROM unnest(%(group_ids)b::bigint[], %(attempts)b::integer[], %(ordinals)b::smallint[], %(steps)b::smallint[],
            %(prompts)b::text[], %(responses)b::text[], %(states)b::text[], %(payloads)b::bytea[],
            %(prompt_lengths)b::integer[], %(response_lengths)b::integer[], %(oldest)b::integer[],
            %(newest)b::integer[]) WITH ORDINALITY
        AS w (group_id, attempt, ordinal, step, prompt, response, environment, data, prompt_length, response_length,
            version_min, version_max, position)
    JOIN trinity.rollout r ON r.group_id = w.group_id AND r.ordinal = w.ordinal AND r.attempt = w.attempt
    WHERE NOT EXISTS (SELECT FROM trinity.experience e
                      WHERE e.rollout_id = r.id AND e.step = w.step AND e.run_id = r.run_id)
),
new AS MATERIALIZED (
    SELECT n.*, nextval('trinity.experience_id_seq') AS id FROM (SELECT * FROM given ORDER BY position) n
),
fresh AS (
    INSERT INTO trinity.experience (id, run_id, group_id, rollout_id, step, state, version_min, version_max,
        prompt_length, response_length)
    SELECT id, run_id, group_id, rollout_id, step,
        CASE WHEN is_held THEN 'raw' ELSE 'dropped' END::trinity.experience_state,
        version_min, version_max, prompt_length, response_length
    FROM new
),
texts AS (
    INSERT INTO trinity.experience_text (experience_id, prompt, response, state)
    SELECT id, prompt, response, environment FROM new
),
payloads AS (
    INSERT INTO trinity.payload (experience_id, codec, num_tokens, data)
    SELECT id, %(codec)s, prompt_length + response_length, data FROM new
),
late AS (
    INSERT INTO trinity."drop" (run_id, experience_id, stage, reason)
    SELECT run_id, id, 'explore', 'late' FROM new WHERE NOT is_held
),
attempts AS (
    UPDATE trinity.rollout r
    SET version_min = least(r.version_min, n.oldest), version_max = greatest(r.version_max, n.newest)
    FROM (SELECT rollout_id, min(version_min) AS oldest, max(version_max) AS newest FROM new GROUP BY rollout_id) n
    WHERE r.id = n.rollout_id AND (n.oldest < r.version_min OR n.newest > r.version_max)
)
UPDATE trinity.rollout_group g
SET version_min = least(g.version_min, n.oldest), version_max = greatest(g.version_max, n.newest)
FROM (SELECT group_id, min(version_min) AS oldest, max(version_max) AS newest FROM new WHERE is_held GROUP BY group_id) n
WHERE g.id = n.group_id AND (n.oldest < g.version_min OR n.newest > g.version_max)

-- name: reward_steps
-- What a workflow says of steps that this transaction has written, or a try before it. Nothing is said twice.
WITH given AS MATERIALIZED (
    SELECT e.id, e.run_id, w.value
    FROM unnest(%(group_ids)b::bigint[], %(attempts)b::integer[], %(ordinals)b::smallint[], %(steps)b::smallint[],
            %(rewards)b::float8[]) AS w (group_id, attempt, ordinal, step, value)
    JOIN trinity.rollout r ON r.group_id = w.group_id AND r.ordinal = w.ordinal AND r.attempt = w.attempt
    JOIN trinity.experience e ON e.rollout_id = r.id AND e.step = w.step AND e.run_id = r.run_id
    WHERE NOT EXISTS (SELECT FROM trinity.reward_event v WHERE v.experience_id = e.id AND v.name = 'workflow')
),
said AS (
    INSERT INTO trinity.reward_event (run_id, experience_id, source, name, value)
    SELECT run_id, id, 'explore', 'workflow', value FROM given ORDER BY id
)
UPDATE trinity.experience e SET reward = given.value FROM given WHERE e.id = given.id

-- name: drop_partial_attempts
-- What is left of attempts that lost a step to a processor goes too: what they earned is not known any more. Under the
-- lock of their groups.
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

-- name: read_attempts
-- What rows are within their attempts, in the order given; a row without a rollout is an attempt of its own. Equal
-- numbers stand for equal states of one group: 64 bits of a hash of what the workflow called the state, or of the prompt.
-- Texts are read only where they are asked for.
SELECT coalesce(e.rollout_id, -e.id) AS rollouts, e.step AS steps, coalesce(m.greedy, false) AS greedy,
       CASE WHEN %(with_states)s
            THEN (SELECT hashtextextended(coalesce(x.state, x.prompt), coalesce(e.group_id, -e.id))
                  FROM trinity.experience_text x WHERE x.experience_id = coalesce(e.source_id, e.id)) END AS states
FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS w (id, position)
JOIN trinity.experience e ON e.id = w.id
LEFT JOIN trinity.rollout m ON m.id = e.rollout_id
ORDER BY w.position
