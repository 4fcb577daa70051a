-- name: stale_groups
-- Ready groups that are staler than the limit allows, locked so that they can expire. Versions below the number that
-- trinity.oldest_within says are all too far away. From that number on, only versions that were withdrawn or lost can be
-- too far away. The second part looks for groups of such versions, and only if there are any.
--
-- Where rows are known by id or group, IS TRUE keeps the planner off the partial index of ready rows, as NOT DISTINCT
-- does in hold_rows.
WITH live AS MATERIALIZED (
    SELECT f.floor, trinity.oldest_within(%(run_id)s, %(version)s, %(max_staleness)s) AS oldest
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
      AND trinity.staleness(%(run_id)s, %(version)s, g.version_min, g.version_max) > %(max_staleness)s
)
SELECT g.id
FROM stale
JOIN trinity.rollout_group g ON g.id = stale.id AND (g.state = 'ready') IS TRUE
ORDER BY g.id
FOR NO KEY UPDATE OF g

-- name: expire_groups
UPDATE trinity.rollout_group g SET state = 'dropped' WHERE g.id = ANY(%(group_ids)s) AND (g.state = 'ready') IS TRUE

-- name: expire_members
UPDATE trinity.experience e SET state = 'expired'
WHERE e.group_id = ANY(%(group_ids)s) AND (e.state = 'ready') IS TRUE AND e.source_id IS NULL
RETURNING e.id, trinity.staleness(e.run_id, %(version)s, e.version_min, e.version_max) AS staleness

-- name: draw_rows
-- The next rows to imitate, or with labels. Each pass over the data has a shuffled order of its own, which a restart
-- does not change. Only rows with a place can be drawn: with tokens and not known to be bad, that is, no rejected rows
-- and none with a reward of zero or less. In a run that learns from labels, every row with a reward has a place. The
-- statement sees one snapshot, as draw_groups does.
SELECT e.id, e.use_count, e.reward, pg_current_snapshot()::text AS snapshot
FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.pass_number IS NOT NULL
ORDER BY e.pass_number, e.place, e.id
LIMIT %(limit)s

-- name: draw_experts
-- The next rows of each of these data sets, as draw_rows has them of all. It passes over the rows of other data sets that
-- come before them.
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
-- The next pairs. Each pass over the data has a shuffled order of its own, which a restart does not change. A pair
-- that was derived from rewards must still agree with them, unless people uphold it. The statement sees one snapshot, as
-- draw_groups does.
--
-- Limit: rows that were adopted after the trainer's start have no tokens before its next start. Until then each draw
-- passes over their pairs at the head of the order, at about 30 microseconds a pair.
SELECT p.id, p.use_count, p.chosen_id, p.rejected_id, sides.chosen_reward, sides.rejected_reward,
       pg_current_snapshot()::text AS snapshot
FROM trinity.preference p
-- LIMIT so that the planner looks both rows up for each pair in turn, and does not join all before it sorts them.
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
-- The members of the next adopted groups, in passes over all of them, as draw_rows draws rows. The statement sees one
-- snapshot, as draw_groups does.
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
-- Writes a batch: the rows in the order in which the trainer sees them, the numbers that it uses, and the setting of
-- its worker. Inserts nothing if the step already has a batch, since a run has one trainer.
--
-- The floor is the lowest group that is live now; the search starts at the floor of the batch before. It can never be
-- too high. Groups of a run start in the order of their ids, one transaction after the other. Reopening makes groups live
-- again, but only those of this batch or later ones, which were live when this batch was drawn. Groups that are given back
-- to the processors lower the floor: see reopen_dropped_groups.
WITH before AS MATERIALIZED (
    SELECT f.floor FROM trinity.floor_of(%(run_id)s) f
),
batch AS (
    INSERT INTO trinity.batch
        (run_id, step, worker_id, setting_id, policy_version, max_staleness, size, epoch, sampler, seed, query,
         snapshot, parameters, floor)
    SELECT %(run_id)s, %(step)s, %(worker_id)s,
           (SELECT w.setting_id FROM trinity.worker w WHERE w.id = %(worker_id)s),
           %(version)s, %(max_staleness)s, %(size)s, %(epoch)s, %(sampler)s, %(seed)s, %(query)s, %(snapshot)s,
           %(parameters)s::jsonb,
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
-- Leases the rows in the order of their ids, and waits for sessions that change one of them right now. A row that is
-- no longer ready stays as it is.
WITH held AS MATERIALIZED (
    SELECT e.id FROM trinity.experience e WHERE e.id = ANY(%(ids)b) ORDER BY e.id FOR NO KEY UPDATE
)
UPDATE trinity.experience e SET state = 'leased', worker_id = %(worker_id)s, attempt = e.attempt + 1
FROM held
WHERE e.id = held.id AND (e.state = 'ready') IS TRUE

-- name: lease_members
-- Leases the members of groups, under the lock of the groups. Members need no order of their own.
UPDATE trinity.experience e SET state = 'leased', worker_id = %(worker_id)s, attempt = e.attempt + 1
WHERE e.id = ANY(%(ids)b) AND (e.state = 'ready') IS TRUE

-- name: lease_groups
-- Leases groups as lease_experiences leases rows. It comes before lease_members.
WITH held AS MATERIALIZED (
    SELECT g.id FROM trinity.rollout_group g WHERE g.id = ANY(%(ids)b) ORDER BY g.id FOR NO KEY UPDATE
)
UPDATE trinity.rollout_group g SET state = 'leased', worker_id = %(worker_id)s
FROM held
WHERE g.id = held.id AND (g.state = 'ready') IS TRUE

-- name: lease_preferences
-- Leases pairs as lease_experiences leases rows.
WITH held AS MATERIALIZED (
    SELECT p.id FROM trinity.preference p WHERE p.id = ANY(%(ids)b) ORDER BY p.id FOR NO KEY UPDATE
)
UPDATE trinity.preference p SET state = 'leased', worker_id = %(worker_id)s, attempt = p.attempt + 1
FROM held
WHERE p.id = held.id AND p.state = 'ready'
