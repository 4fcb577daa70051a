-- name: stale_groups
-- Locks, in order of id, ready groups beyond the staleness limit, so that they can expire. Versions below
-- trinity.oldest_within are all too old. From that number on, only withdrawn or lost versions can be too old; the
-- second part looks for groups of such versions, and only if there are any.
--
-- For rows known by id or group, IS TRUE keeps the planner off the partial index of ready rows, as NOT DISTINCT does
-- in hold_rows.
WITH live AS MATERIALIZED (
    SELECT f.floor, trinity.oldest_within(%(run_id)s, %(version)s, %(max_staleness)s::integer - %(versions_ahead)s) AS oldest
    FROM trinity.floor_of(%(run_id)s) f
),
stale AS MATERIALIZED (
    SELECT g.id
    FROM trinity.rollout_group g
    WHERE g.run_id = %(run_id)s AND g.state = 'ready'
      AND g.version_min < (SELECT live.oldest FROM live)
      AND g.id >= (SELECT live.floor FROM live)
    UNION
    SELECT g.id
    FROM trinity.rollout_group g
    WHERE (EXISTS (SELECT FROM trinity.policy_version p
                   WHERE p.run_id = %(run_id)s AND p.version >= (SELECT live.oldest FROM live)
                     AND p.withdrawn_at IS NOT NULL)
           OR EXISTS (SELECT FROM trinity.setback s
                      WHERE s.run_id = %(run_id)s AND s.last_version >= (SELECT live.oldest FROM live)))
      AND g.run_id = %(run_id)s AND g.state = 'ready'
      AND g.id >= (SELECT live.floor FROM live)
      AND trinity.staleness(%(run_id)s, %(version)s, g.version_min, g.version_max) + %(versions_ahead)s > %(max_staleness)s
)
SELECT g.id
FROM stale
JOIN trinity.rollout_group g ON g.id = stale.id AND (g.state = 'ready') IS TRUE
ORDER BY g.id
FOR NO KEY UPDATE OF g

-- name: expire_groups
-- Drops locked groups that are too stale.
UPDATE trinity.rollout_group g SET state = 'dropped' WHERE g.id = ANY(%(group_ids)s) AND (g.state = 'ready') IS TRUE

-- name: expire_members
-- Expires the members of locked groups that are too stale; returns the staleness of each.
UPDATE trinity.experience e SET state = 'expired'
WHERE e.group_id = ANY(%(group_ids)s) AND (e.state = 'ready') IS TRUE AND e.source_id IS NULL
RETURNING e.id, trinity.staleness(e.run_id, %(version)s, e.version_min, e.version_max) + %(versions_ahead)s AS staleness

-- name: draw_rows
-- The next rows to imitate, or labelled rows. Each pass over the data has its own shuffled order, which survives
-- restarts. Only rows with a place can be drawn: with tokens and not known to be bad, that is, no rejected rows and
-- no rows with a reward of zero or less. In a run that learns from labels, every row with a reward has a place. Like
-- draw_groups, it sees one snapshot and locks nothing.
SELECT e.id, e.use_count, e.reward, pg_current_snapshot()::text AS snapshot
FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.pass_number IS NOT NULL
ORDER BY e.pass_number, e.place, e.id
LIMIT %(limit)s

-- name: draw_experts
-- The next rows of each of these data sets, like draw_rows; rows of other data sets before them are skipped.
SELECT d.name AS data, e.id, pg_current_snapshot()::text AS snapshot
FROM unnest(%(data)s::text[]) WITH ORDINALITY AS d (name, number)
JOIN trinity.run r ON r.name = d.name
CROSS JOIN LATERAL (SELECT e.id, e.pass_number, e.place
                    FROM trinity.experience e
                    JOIN trinity.experience o ON o.id = e.source_id
                    WHERE e.run_id = %(run_id)s AND e.pass_number IS NOT NULL AND o.run_id = r.id
                    ORDER BY e.pass_number, e.place, e.id
                    LIMIT %(limit)s) e
ORDER BY d.number, e.pass_number, e.place, e.id

-- name: draw_pairs
-- The next pairs. Each pass over the data has its own shuffled order, which survives restarts. A pair derived from
-- rewards must still agree with them, unless people uphold it. Like draw_groups, it sees one snapshot and locks
-- nothing.
--
-- Limitation: rows adopted after the trainer's start have no tokens before its next start. Until then each draw skips
-- their pairs at the head of the order, at about 30 microseconds per pair.
SELECT p.id, p.use_count, p.chosen_id, p.rejected_id, sides.chosen_reward, sides.rejected_reward,
       pg_current_snapshot()::text AS snapshot
FROM trinity.preference p
-- LIMIT makes the planner look up both rows of each pair in turn, instead of joining all rows before sorting.
CROSS JOIN LATERAL (SELECT chosen.reward AS chosen_reward, rejected.reward AS rejected_reward
                    FROM trinity.experience chosen, trinity.experience rejected
                    WHERE chosen.id = p.chosen_id AND rejected.id = p.rejected_id
                      AND chosen.prompt_length IS NOT NULL AND rejected.prompt_length IS NOT NULL
                      AND (p.source <> 'pair' OR p.upheld OR chosen.reward > rejected.reward)
                    LIMIT 1) AS sides
WHERE p.run_id = %(run_id)s AND p.state = 'ready' AND p.place IS NOT NULL
ORDER BY p.use_count, p.place, p.id
LIMIT %(limit)s

-- name: draw_adopted_groups
-- The members of the next adopted groups, in passes over all of them, like draw_rows. Like draw_groups, it sees
-- one snapshot and locks nothing.
WITH picked AS MATERIALIZED (
    SELECT g.id, g.use_count
    FROM trinity.rollout_group g
    WHERE g.run_id = %(run_id)s AND g.state = 'ready' AND g.place IS NOT NULL
    ORDER BY g.use_count, g.place, g.id
    LIMIT %(limit)s
)
SELECT e.id, e.group_id, e.reward, picked.use_count, NULL::integer AS staleness, NULL::float8 AS probability,
       pg_current_snapshot()::text AS snapshot
FROM picked
JOIN trinity.experience e ON e.group_id = picked.id
WHERE (e.state = 'ready') IS TRUE AND e.run_id = %(run_id)s
ORDER BY e.group_id, e.id

-- name: insert_batch
-- Writes a batch: its rows in the trainer's order, the numbers used, and the setting of its worker. Inserts nothing
-- if the step already has a batch, since a run has one trainer.
--
-- The floor is the lowest live group; the search starts at the floor of the previous batch. It can never be too high:
-- groups of a run start in order of id, one transaction after the other, and reopening makes only groups of this or
-- later batches live, which were live when this batch was drawn. Groups returned to the processors lower the floor:
-- see reopen_dropped_groups.
WITH before AS MATERIALIZED (
    SELECT f.floor FROM trinity.floor_of(%(run_id)s) f
),
batch AS (
    INSERT INTO trinity.batch
        (run_id, step, worker_id, setting_id, policy_version, versions_ahead, max_staleness, size, epoch, sampler, seed,
         query, snapshot, parameters, floor)
    SELECT %(run_id)s, %(step)s, %(worker_id)s,
           (SELECT w.setting_id FROM trinity.worker w WHERE w.id = %(worker_id)s),
           %(version)s, %(versions_ahead)s, %(max_staleness)s, %(size)s, %(epoch)s, %(sampler)s, %(seed)s, %(query)s,
           %(snapshot)s, %(parameters)s::jsonb,
           least((SELECT min(g.id) FROM trinity.rollout_group g
                  WHERE g.run_id = %(run_id)s AND g.state = 'open' AND g.id >= before.floor),
                 (SELECT min(g.id) FROM trinity.rollout_group g
                  WHERE g.run_id = %(run_id)s AND g.state = 'complete' AND g.id >= before.floor),
                 (SELECT min(g.id) FROM trinity.rollout_group g
                  WHERE g.run_id = %(run_id)s AND g.state = 'ready' AND g.id >= before.floor),
                 (SELECT min(g.id) FROM trinity.rollout_group g
                  WHERE g.run_id = %(run_id)s AND g.state = 'leased' AND g.id >= before.floor))
    FROM before
    ON CONFLICT (run_id, step) WHERE state <> 'reopened' DO NOTHING
    RETURNING id, created_at
),
items AS (
    INSERT INTO trinity.batch_item
        (batch_id, ordinal, experience_id, preference_id, reward, advantage, staleness, probability, weight)
    SELECT batch.id, i.ordinal - 1, i.experience_id, i.preference_id, i.reward, i.advantage, i.staleness, i.probability,
           i.weight
    FROM batch
    CROSS JOIN unnest(%(experience_ids)b::bigint[], %(preference_ids)b::bigint[], %(rewards)b::float8[],
                      %(advantages)b::float8[], %(staleness)b::integer[], %(probabilities)b::float8[],
                      %(weights)b::float8[])
         WITH ORDINALITY
         AS i (experience_id, preference_id, reward, advantage, staleness, probability, weight, ordinal)
)
SELECT id, created_at FROM batch

-- name: lease_experiences
-- Leases ready rows, locked in order of id; waits for sessions that are changing them. Rows that are no longer ready
-- are unchanged.
WITH held AS MATERIALIZED (
    SELECT e.id FROM trinity.experience e WHERE e.id = ANY(%(ids)b) ORDER BY e.id FOR NO KEY UPDATE
)
UPDATE trinity.experience e SET state = 'leased', worker_id = %(worker_id)s, attempt = e.attempt + 1
FROM held
WHERE e.id = held.id AND (e.state = 'ready') IS TRUE

-- name: lease_members
-- Leases the members of groups, under the lock of the groups, so members need no order.
UPDATE trinity.experience e SET state = 'leased', worker_id = %(worker_id)s, attempt = e.attempt + 1
WHERE e.id = ANY(%(ids)b) AND (e.state = 'ready') IS TRUE

-- name: lease_groups
-- Leases groups, like lease_experiences; runs before lease_members.
WITH held AS MATERIALIZED (
    SELECT g.id FROM trinity.rollout_group g WHERE g.id = ANY(%(ids)b) ORDER BY g.id FOR NO KEY UPDATE
)
UPDATE trinity.rollout_group g SET state = 'leased', worker_id = %(worker_id)s
FROM held
WHERE g.id = held.id AND (g.state = 'ready') IS TRUE

-- name: lease_preferences
-- Leases pairs, like lease_experiences.
WITH held AS MATERIALIZED (
    SELECT p.id FROM trinity.preference p WHERE p.id = ANY(%(ids)b) ORDER BY p.id FOR NO KEY UPDATE
)
UPDATE trinity.preference p SET state = 'leased', worker_id = %(worker_id)s, attempt = p.attempt + 1
FROM held
WHERE p.id = held.id AND p.state = 'ready'
