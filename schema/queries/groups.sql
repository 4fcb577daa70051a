-- name: lock_pace
-- Serialises the explorers of a run while they decide how many groups to start, so that together they respect the
-- limit. Locks the run's row, which a read-only login cannot.
SELECT r.id FROM trinity.run r WHERE r.id = %(run_id)s FOR NO KEY UPDATE

-- name: count_pace
-- The inputs of the pace: groups trained on but in no version up to the explorer's, waiting groups, groups in
-- exploration, and all groups that the run has started. They are counted each time, so a restart loses none. A
-- dropped group is in none of the first three: its slot is free.
SELECT (SELECT coalesce(sum(b.size), 0) FROM trinity.batch b
        WHERE b.run_id = %(run_id)s AND b.state = 'committed'
          AND (b.included_version IS NULL OR b.included_version > %(version)s))::bigint AS unpublished,
       count(*) FILTER (WHERE g.state <> 'open') AS waiting,
       count(*) FILTER (WHERE g.state = 'open') AS running,
       (SELECT coalesce(sum(p.issued), 0) FROM trinity.task_pass p WHERE p.run_id = %(run_id)s)::bigint AS started
FROM trinity.rollout_group g
WHERE g.run_id = %(run_id)s AND g.state IN ('open', 'complete', 'ready', 'leased')
  AND g.id >= (SELECT f.floor FROM trinity.floor_of(%(run_id)s) f)

-- name: count_explored
-- Number of groups that a run has started, and whether any is still in exploration or abandoned.
SELECT (SELECT coalesce(sum(p.issued), 0) FROM trinity.task_pass p WHERE p.run_id = %(run_id)s)::bigint AS started,
       EXISTS (SELECT FROM trinity.rollout_group g
               WHERE g.run_id = %(run_id)s AND g.state = 'open'
                 AND g.id >= (SELECT f.floor FROM trinity.floor_of(%(run_id)s) f)) AS open

-- name: claim_abandoned_groups
-- Takes over groups whose explorer is gone, oldest first; skips groups that another explorer is claiming. A member is
-- missing if its only rollouts were refused. Spare members have the highest numbers. A group whose missing members
-- are all parked waits until one of them may resume; `parked` lists the members that may.
WITH live AS MATERIALIZED (
    SELECT f.floor, trinity.oldest_within(%(run_id)s, %(version)s, %(max_staleness)s) AS oldest
    FROM trinity.floor_of(%(run_id)s) f
),
picked AS MATERIALIZED (
    SELECT g.id
    FROM live
    CROSS JOIN trinity.rollout_group g
    WHERE g.run_id = %(run_id)s AND g.state = 'open' AND g.worker_id IS NULL
      AND g.id >= (SELECT live.floor FROM live)
      AND g.arrived + g.failed + (SELECT count(*) FROM trinity.parked_members(g.id, live.oldest) p WHERE NOT p.is_due)
          < g.expected + %(spare)s
    ORDER BY g.id
    LIMIT %(limit)s
    FOR NO KEY UPDATE OF g SKIP LOCKED
),
claimed AS (
    UPDATE trinity.rollout_group g SET worker_id = %(worker_id)s, attempt = g.attempt + 1
    FROM picked
    WHERE g.id = picked.id
    RETURNING g.id, g.task_id, g.attempt, g.expected
)
SELECT c.id, c.attempt, c.expected, t.payload,
       ARRAY(SELECT n FROM generate_series(0, c.expected + %(spare)s - 1) n
             WHERE NOT EXISTS (SELECT FROM trinity.rollout r
                               WHERE r.group_id = c.id AND r.ordinal = n AND r.state <> 'refused')
               AND n <> ALL (p.waiting)
             ORDER BY n) AS members,
       p.due AS parked, p.stale, cardinality(p.waiting) > 0 AS waits
FROM claimed c
JOIN trinity.task t ON t.id = c.task_id
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(m.ordinal) FILTER (WHERE NOT m.is_due), '{}') AS waiting,
           coalesce(array_agg(m.ordinal) FILTER (WHERE m.is_due), '{}') AS due,
           coalesce(array_agg(m.ordinal) FILTER (WHERE m.is_stale), '{}') AS stale
    FROM live CROSS JOIN LATERAL trinity.parked_members(c.id, live.oldest) m
) p
ORDER BY c.id

-- name: start_groups
-- Starts a group for each of these tasks. Counts the issue in the transaction that moves the pass, so a resumed run
-- continues at the exact position. Locks counts of tasks in order of id, like every statement.
WITH picked AS MATERIALIZED (
    SELECT n.id, n.place FROM unnest(%(task_ids)s::bigint[]) WITH ORDINALITY AS n (id, place)
),
issued AS (
    INSERT INTO trinity.task_stat AS s (run_id, task_id, issued, issued_at)
    SELECT %(run_id)s, id, count(*), now() FROM picked GROUP BY id ORDER BY id
    ON CONFLICT (run_id, task_id) DO UPDATE SET issued = s.issued + excluded.issued, issued_at = now()
),
started AS (
    INSERT INTO trinity.rollout_group (run_id, task_id, expected, worker_id)
    SELECT %(run_id)s, id, %(group_size)s, %(worker_id)s FROM picked ORDER BY place
    RETURNING id, task_id, attempt, expected
)
SELECT s.id, s.attempt, s.expected, t.payload,
       ARRAY(SELECT n FROM generate_series(0, s.expected + %(spare)s - 1) n ORDER BY n) AS members
FROM started s
JOIN trinity.task t ON t.id = s.task_id
ORDER BY s.id

-- name: hold_groups
-- Locks the groups of a write in order of id. Only a later statement sees reliably which workers hold them and what
-- is stored. A repeated late write also waits here for its first try.
SELECT g.id FROM trinity.rollout_group g WHERE g.id = ANY(%(group_ids)s) ORDER BY g.id FOR NO KEY UPDATE

-- name: find_complete_groups
-- The complete groups among the given ones, so that attempts at spare members can stop.
SELECT g.id FROM trinity.rollout_group g WHERE g.id = ANY(%(group_ids)s) AND g.completed_at IS NOT NULL

-- name: write_rollouts
-- Writes rollouts with their first steps, under the lock of their groups. A stored rollout is unchanged. A rollout of
-- a worker that lost its group is refused, but kept. The last member completes its group and ends the lease. Surplus
-- rollouts are spare: refused, too, and kept. Rows of an evaluation skip the clean steps, so that none is dropped.
-- Returns the number of refused rollouts (now or before), how many of them are spare, and the number of rollouts
-- whose group exists. One statement writes a rollout with its row, text and arrays: the policies of roles.sql allow
-- explorers no other way. docs/how-it-works/long-statements.md explains each step.
WITH given AS MATERIALIZED (
    SELECT m.*, r.state AS known,
        (g.state IN ('open', 'evaluating') AND g.worker_id = %(worker_id)s AND g.attempt = m.attempt) IS TRUE AS is_held,
        g.attempt = m.attempt AND (g.completed_at IS NOT NULL OR g.worker_id = %(worker_id)s) AS is_own,
        g.expected - g.arrived - g.failed AS room, g.evaluation_id IS NOT NULL AS is_eval
    FROM unnest(%(group_ids)b::bigint[], %(attempts)b::integer[], %(ordinals)b::smallint[],
            %(reasons)b::text[], %(errors)b::text[], %(oldest)b::integer[], %(newest)b::integer[],
            %(started_at)b::timestamptz[], %(finished_at)b::timestamptz[],
            %(prompt_lengths)b::integer[], %(response_lengths)b::integer[], %(greedy)b::bool[], %(outputs)b::text[])
        WITH ORDINALITY
        m (group_id, attempt, ordinal, finish_reason, error, version_min, version_max, started_at, finished_at,
            prompt_length, response_length, greedy, output, nth)
    JOIN trinity.rollout_group g ON g.id = group_id
    LEFT JOIN trinity.rollout r ON r.group_id = m.group_id AND r.ordinal = m.ordinal AND r.attempt = m.attempt
),
new AS MATERIALIZED (
    SELECT n.*, nextval('trinity.rollout_id_seq') AS rollout_id,
        CASE WHEN error IS NULL THEN nextval('trinity.experience_id_seq') END AS id
    FROM (SELECT *, is_held AND row_number() OVER (PARTITION BY group_id, is_held ORDER BY nth) <= room
              AS is_in
          FROM given WHERE known IS NULL ORDER BY nth) n
),
rollouts AS (
    INSERT INTO trinity.rollout (id, run_id, group_id, ordinal, attempt, greedy, state, finish_reason, error, output,
        worker_id, version_min, version_max, started_at, finished_at)
    SELECT rollout_id, %(run_id)s, group_id, ordinal, attempt, greedy,
        CASE WHEN NOT is_in THEN 'refused' WHEN error IS NULL THEN 'finished' ELSE 'failed' END::trinity.rollout_state,
        CASE WHEN is_in THEN finish_reason WHEN is_own THEN 'spare' ELSE coalesce(error, finish_reason) END,
        CASE WHEN is_in THEN error END,
        output, %(worker_id)s, version_min, version_max, started_at, finished_at
    FROM new
),
fresh AS (
    INSERT INTO trinity.experience (id, run_id, group_id, rollout_id, state, held_out, version_min, version_max,
        prompt_length, response_length)
    SELECT id, %(run_id)s, group_id, rollout_id,
        CASE WHEN NOT is_in THEN 'dropped' WHEN is_eval THEN 'clean' ELSE 'raw' END::trinity.experience_state,
        is_eval, version_min, version_max, prompt_length, response_length
    FROM new WHERE id IS NOT NULL
),
texts AS (
    INSERT INTO trinity.experience_text (experience_id, prompt, response, messages, state, requests)
    SELECT id, prompt, response, messages, state, requests
    FROM unnest(%(prompts)b::text[], %(responses)b::text[], %(messages)b::jsonb[], %(states)b::text[],
            %(requests)b::jsonb[]) WITH ORDINALITY
        w (prompt, response, messages, state, requests, nth)
    JOIN new USING (nth) WHERE id IS NOT NULL
),
payloads AS (
    INSERT INTO trinity.payload (experience_id, codec, num_tokens, data)
    SELECT id, codec, prompt_length + response_length, data
    FROM unnest(%(codecs)b::text[], %(payloads)b::bytea[]) WITH ORDINALITY w (codec, data, nth)
    JOIN new USING (nth) WHERE id IS NOT NULL
),
late AS (
    INSERT INTO trinity."drop" (run_id, experience_id, stage, reason)
    SELECT %(run_id)s, id, 'explore', CASE WHEN is_own THEN 'spare' ELSE 'late' END
    FROM new WHERE NOT is_in AND NOT is_eval AND id IS NOT NULL
),
arrived AS (
    UPDATE trinity.rollout_group g
    SET arrived = g.arrived + m.arrived, failed = g.failed + m.failed,
        version_min = least(version_min, low), version_max = greatest(version_max, high),
        state = CASE WHEN ended < room THEN g.state WHEN evaluation_id IS NULL THEN 'complete' ELSE 'evaluated' END,
        completed_at = CASE WHEN ended = room THEN now() END,
        worker_id = CASE WHEN ended < room THEN worker_id END
    FROM (SELECT group_id, room, count(id) AS arrived, count(error) AS failed, count(*) AS ended,
            min(version_min) AS low, max(version_max) AS high
        FROM new WHERE is_in GROUP BY group_id, room) m
    WHERE g.id = group_id
)
SELECT count(*) FILTER (WHERE refused) AS refused, count(*) FILTER (WHERE refused AND is_own) AS spare, count(*) AS known
FROM (SELECT g.is_own, coalesce(NOT n.is_in, g.known = 'refused') AS refused
      FROM given g LEFT JOIN new n USING (nth)) w

-- name: write_given_back
-- Records attempts that did not begin, with the reason. A refused rollout is not a member, so these members stay
-- missing.
INSERT INTO trinity.rollout (run_id, group_id, ordinal, attempt, greedy, state, finish_reason, worker_id, started_at,
    finished_at)
SELECT g.run_id, g.id, m.ordinal, m.attempt, m.greedy, 'refused', m.reason, %(worker_id)s, m.started_at, m.finished_at
FROM unnest(%(group_ids)s::bigint[], %(ordinals)s::smallint[], %(attempts)s::integer[], %(greedy)s::bool[],
            %(reasons)s::text[], %(started_at)s::timestamptz[], %(finished_at)s::timestamptz[])
     AS m (group_id, ordinal, attempt, greedy, reason, started_at, finished_at)
JOIN trinity.rollout_group g ON g.id = m.group_id
ON CONFLICT (group_id, ordinal, attempt) DO NOTHING

-- name: give_back_groups
-- Ends the lease on groups, so that any explorer of the run, including this one, may claim them. The next claim
-- increments their attempt.
UPDATE trinity.rollout_group g SET worker_id = NULL
WHERE g.id = ANY(%(group_ids)s) AND g.worker_id = %(worker_id)s AND g.state IN ('open', 'evaluating')

-- name: write_steps
-- Writes the further steps of attempts whose first step write_rollouts wrote in the same transaction. They are raw,
-- or late or spare if the rollout was refused. Stored steps are unchanged. Steps of one attempt may be from different
-- policy versions.
WITH given AS MATERIALIZED (
    SELECT w.*, r.id AS rollout_id, r.run_id, r.state = 'finished' AS is_held,
        r.finish_reason = 'spare' AS is_spare,
        (SELECT g.evaluation_id IS NOT NULL FROM trinity.rollout_group g WHERE g.id = w.group_id) AS is_evaluated
    FROM unnest(%(group_ids)b::bigint[], %(attempts)b::integer[], %(ordinals)b::smallint[], %(steps)b::smallint[],
            %(prompts)b::text[], %(responses)b::text[], %(states)b::text[], %(codecs)b::text[], %(payloads)b::bytea[],
            %(prompt_lengths)b::integer[], %(response_lengths)b::integer[], %(oldest)b::integer[],
            %(newest)b::integer[], %(requests)b::jsonb[], %(shares)b::boolean[]) WITH ORDINALITY
        AS w (group_id, attempt, ordinal, step, prompt, response, environment, codec, data, prompt_length, response_length,
            version_min, version_max, requests, shares_reward, position)
    JOIN trinity.rollout r ON r.group_id = w.group_id AND r.ordinal = w.ordinal AND r.attempt = w.attempt
    WHERE NOT EXISTS (SELECT FROM trinity.experience e
                      WHERE e.rollout_id = r.id AND e.step = w.step AND e.run_id = r.run_id)
),
new AS MATERIALIZED (
    SELECT n.*, nextval('trinity.experience_id_seq') AS id FROM (SELECT * FROM given ORDER BY position) n
),
fresh AS (
    INSERT INTO trinity.experience (id, run_id, group_id, rollout_id, step, state, held_out, version_min, version_max,
        prompt_length, response_length)
    SELECT id, run_id, group_id, rollout_id, step,
        CASE WHEN NOT is_held THEN 'dropped' WHEN is_evaluated THEN 'clean' ELSE 'raw' END::trinity.experience_state,
        is_evaluated, version_min, version_max, prompt_length, response_length
    FROM new
),
texts AS (
    INSERT INTO trinity.experience_text (experience_id, prompt, response, state, requests)
    SELECT id, prompt, response, environment, requests FROM new
),
payloads AS (
    INSERT INTO trinity.payload (experience_id, codec, num_tokens, data)
    SELECT id, codec, prompt_length + response_length, data FROM new
),
late AS (
    INSERT INTO trinity."drop" (run_id, experience_id, stage, reason)
    SELECT run_id, id, 'explore', CASE WHEN is_spare THEN 'spare' ELSE 'late' END FROM new
    WHERE NOT is_held AND NOT is_evaluated
),
attempts AS (
    UPDATE trinity.rollout r
    SET version_min = least(r.version_min, n.oldest), version_max = greatest(r.version_max, n.newest),
        shares_reward = n.shares_reward
    FROM (SELECT rollout_id, min(version_min) AS oldest, max(version_max) AS newest, bool_or(shares_reward) AS shares_reward
          FROM new GROUP BY rollout_id) n
    WHERE r.id = n.rollout_id AND (n.oldest < r.version_min OR n.newest > r.version_max OR n.shares_reward)
)
UPDATE trinity.rollout_group g
SET version_min = least(g.version_min, n.oldest), version_max = greatest(g.version_max, n.newest)
FROM (SELECT group_id, min(version_min) AS oldest, max(version_max) AS newest FROM new WHERE is_held GROUP BY group_id) n
WHERE g.id = n.group_id AND (n.oldest < g.version_min OR n.newest > g.version_max)

-- name: reward_steps
-- Records, by name, the workflow's rewards for steps written in this transaction or an earlier try of it. A step has
-- either all of its rewards or none, so none is recorded twice.
WITH given AS MATERIALIZED (
    SELECT e.id, e.run_id, w.name, w.value
    FROM unnest(%(group_ids)b::bigint[], %(attempts)b::integer[], %(ordinals)b::smallint[], %(steps)b::smallint[],
            %(names)b::text[], %(rewards)b::float8[]) AS w (group_id, attempt, ordinal, step, name, value)
    JOIN trinity.rollout r ON r.group_id = w.group_id AND r.ordinal = w.ordinal AND r.attempt = w.attempt
    JOIN trinity.experience e ON e.rollout_id = r.id AND e.step = w.step AND e.run_id = r.run_id
    WHERE NOT EXISTS (SELECT FROM trinity.reward_event v WHERE v.experience_id = e.id AND v.source = 'explore')
),
said AS (
    INSERT INTO trinity.reward_event (run_id, experience_id, source, name, value)
    SELECT run_id, id, 'explore', name, value FROM given ORDER BY id, name
)
UPDATE trinity.experience e SET reward = t.reward
FROM (SELECT id, sum(value) AS reward FROM given GROUP BY id) t WHERE e.id = t.id
