-- name: hold_trainer
-- Like hold_place. It also returns the newest version whose checkpoint exists and the batch of the last committed
-- step. Only this worker changes either, so if they differ from what the trainer heard, the server has lost commits.
SELECT (SELECT p.version FROM trinity.policy_version p
        WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL ORDER BY p.version DESC LIMIT 1) AS version,
       coalesce(last.step, 0) AS step, last.id AS batch_id, last.created_at
FROM trinity.worker w
LEFT JOIN LATERAL (SELECT b.id, b.step, b.created_at FROM trinity.batch b
                   WHERE b.run_id = %(run_id)s AND b.state <> 'reopened' AND b.state = 'committed'
                   ORDER BY b.step DESC LIMIT 1) last ON true
WHERE w.id = %(worker_id)s AND w.stopped_at IS NULL
FOR SHARE OF w

-- name: stale_groups
-- Ready groups that are staler than the limit allows, locked so that they can expire. Versions newer than the limit
-- allows exist only after a run went back, until it publishes again; only then does the second part look for groups of
-- such versions.
--
-- Where rows are known by id or group, IS TRUE keeps the planner off the partial index of ready rows, as NOT DISTINCT
-- does in hold_rows.
WITH live AS MATERIALIZED (
    SELECT f.floor FROM trinity.floor_of(%(run_id)s) f
),
stale AS MATERIALIZED (
    SELECT g.id
    FROM trinity.rollout_group g
    WHERE g.run_id = %(run_id)s AND g.state = 'ready'
      AND g.version_min < %(version)s::integer - %(max_staleness)s::integer
      AND g.id >= (SELECT live.floor FROM live)
    UNION
    SELECT g.id
    FROM trinity.rollout_group g
    WHERE greatest((SELECT p.version FROM trinity.policy_version p
                    WHERE p.run_id = %(run_id)s ORDER BY p.version DESC LIMIT 1),
                   (SELECT max(s.last_version) FROM trinity.setback s WHERE s.run_id = %(run_id)s))
          > %(version)s::integer + %(max_staleness)s::integer
      AND g.run_id = %(run_id)s AND g.state = 'ready'
      AND g.version_max > %(version)s::integer + %(max_staleness)s::integer
      AND g.id >= (SELECT live.floor FROM live)
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
RETURNING e.id, trinity.staleness(%(version)s::integer, e.version_min, e.version_max) AS staleness

-- name: draw_rows
-- The next rows to imitate, or with labels. Each pass over the data has a shuffled order of its own, which a restart
-- does not change. Only rows with a place can be drawn: with tokens and not known to be bad, that is, no rejected rows
-- and none with a reward of zero or less. In a run that learns from labels, every row with a reward has a place. The
-- statement sees one snapshot, as draw_groups does.
SELECT e.id, e.use_count, e.reward, pg_current_snapshot()::text AS snapshot
FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.state = 'ready' AND e.place IS NOT NULL
ORDER BY e.use_count, e.place, e.id
LIMIT %(limit)s

-- name: draw_pairs
-- The next pairs. Each pass over the data has a shuffled order of its own, which a restart does not change. A pair
-- that was derived from rewards must still agree with them. The statement sees one snapshot, as draw_groups does.
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
                      AND (p.source <> 'pair' OR chosen.reward > rejected.reward)
                    LIMIT 1) AS sides
WHERE p.run_id = %(run_id)s AND p.state = 'ready' AND p.place IS NOT NULL
ORDER BY p.use_count, p.place, p.id
LIMIT %(limit)s

-- name: insert_batch
-- Writes a batch: the rows in the order in which the trainer sees them, the numbers that it uses, and the setting of
-- its worker. Inserts nothing if the step already has a batch, since a run has one trainer.
--
-- The floor is the lowest group that is live now; the search starts at the floor of the batch before. It can never be
-- too high. Groups of a run start in the order of their ids, one transaction after the other. Only reopening makes
-- groups live again, and it reopens only this batch or later ones, whose groups were live when this batch was drawn.
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

-- name: lock_batch_groups
-- Locks the groups of the rows of batches, also the groups that adopted rows come from. Transactions that change
-- rewards lock groups first as well, and in the same order, so that no two sessions wait for each other.
SELECT g.id FROM trinity.rollout_group g
WHERE g.id IN (SELECT e.group_id FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id
               WHERE i.batch_id = ANY(%(batch_ids)s) AND i.preference_id IS NULL)
ORDER BY g.id
FOR NO KEY UPDATE

-- name: lock_batch_rows
-- Locks the rows of batches, after their groups. Rows of pairs are left out: they are neither leased nor used up.
SELECT e.id FROM trinity.experience e
WHERE e.id IN (SELECT i.experience_id FROM trinity.batch_item i
               WHERE i.batch_id = ANY(%(batch_ids)s) AND i.preference_id IS NULL)
ORDER BY e.id
FOR NO KEY UPDATE

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

-- name: read_batch
-- The rows of a batch with the numbers recorded for them and their arrays, in the order of the draw.
SELECT i.ordinal, i.experience_id, i.preference_id, e.group_id, i.reward, i.advantage, i.weight, i.probability,
       i.staleness, p.codec, p.num_tokens, p.data, p.archive_row, p.pruned_at
FROM trinity.batch_item i
JOIN trinity.experience e ON e.id = i.experience_id
LEFT JOIN trinity.payload p ON p.experience_id = i.experience_id
WHERE i.batch_id = %(batch_id)s
ORDER BY i.ordinal

-- name: commit_batch
-- Records that the trainer step is done. Only the worker that drew the batch can do so.
UPDATE trinity.batch b SET state = 'committed', committed_at = now()
WHERE b.id = %(batch_id)s AND b.worker_id = %(worker_id)s AND b.state = 'leased'
RETURNING b.run_id

-- name: batch_state
SELECT b.state, b.created_at FROM trinity.batch b WHERE b.id = %(batch_id)s

-- name: use_experiences
-- Counts the use. A row that was used as often as allowed is trained. Adopted rows beside rollout groups come back
-- without end: each use moves them to their place in the next pass.
UPDATE trinity.experience e
SET use_count = e.use_count + 1,
    state = CASE WHEN e.use_count + 1 < %(max_uses)s OR e.source_id IS NOT NULL AND %(keeps_adopted)s
                 THEN 'ready' ELSE 'trained' END::trinity.experience_state,
    worker_id = NULL
FROM trinity.batch_item i
WHERE i.batch_id = %(batch_id)s AND i.preference_id IS NULL AND e.id = i.experience_id AND e.state = 'leased'

-- name: use_groups
-- A group is trained when its members are. It is ready as long as they have uses left.
WITH m AS MATERIALIZED (
    SELECT e.group_id, max(e.use_count) AS uses
    FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id
    WHERE i.batch_id = %(batch_id)s
    GROUP BY e.group_id
)
UPDATE trinity.rollout_group g
SET state = CASE WHEN m.uses < %(max_uses)s THEN 'ready' ELSE 'trained' END::trinity.group_state, worker_id = NULL
FROM m
WHERE g.id = m.group_id AND g.run_id = %(run_id)s AND g.state = 'leased'

-- name: use_preferences
-- Counts the use of pairs, locked in the order of their ids.
WITH held AS MATERIALIZED (
    SELECT p.id FROM trinity.preference p
    WHERE p.id IN (SELECT i.preference_id FROM trinity.batch_item i WHERE i.batch_id = %(batch_id)s)
    ORDER BY p.id
    FOR NO KEY UPDATE
)
UPDATE trinity.preference p
SET use_count = p.use_count + 1,
    state = CASE WHEN p.use_count + 1 < %(max_uses)s THEN 'ready' ELSE 'trained' END::trinity.experience_state,
    worker_id = NULL
FROM held
WHERE p.id = held.id AND p.state = 'leased'

-- name: withdraw_later_versions
-- Withdraws the versions after this one. They include batches that are given back, so no explorer may load them.
UPDATE trinity.policy_version p SET checkpoint = NULL
WHERE p.run_id = %(run_id)s AND p.version > %(version)s AND p.checkpoint IS NOT NULL

-- name: open_batches
-- Batches that the checkpoint of a version does not include.
SELECT b.id, b.state
FROM trinity.batch b
WHERE b.run_id = %(run_id)s AND b.state IN ('leased', 'committed')
  AND (b.included_version IS NULL OR b.included_version > %(version)s)
ORDER BY b.id
FOR NO KEY UPDATE

-- name: count_pruned_rows
-- How many rows of these batches have been pruned. No step can be made with those rows again.
SELECT count(DISTINCT i.experience_id) AS rows
FROM trinity.batch_item i
JOIN trinity.payload p ON p.experience_id = i.experience_id
WHERE i.batch_id = ANY(%(batch_ids)s) AND p.pruned_at IS NOT NULL

-- name: leased_batch
-- The batch that this worker drew for a step and has not committed. A worker gives back no batch of another worker.
SELECT b.id
FROM trinity.batch b
WHERE b.run_id = %(run_id)s AND b.step = %(step)s AND b.state = 'leased' AND b.worker_id = %(worker_id)s
FOR NO KEY UPDATE

-- name: reopen_experiences
-- Gives the rows of batches back. A committed use is taken back, also from a row that was dropped since; such a row
-- stays dropped.
UPDATE trinity.experience e
SET state = CASE WHEN e.state IN ('leased', 'trained') THEN 'ready' ELSE e.state END,
    worker_id = NULL,
    use_count = e.use_count - i.uses
FROM (SELECT i.experience_id, count(*) FILTER (WHERE b.state = 'committed') AS uses
      FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id
      WHERE i.batch_id = ANY(%(batch_ids)s) AND i.preference_id IS NULL
      GROUP BY i.experience_id) i
WHERE e.id = i.experience_id

-- name: reopen_groups
-- Gives back the run's own groups. The groups of adopted rows belong to their data set.
WITH m AS MATERIALIZED (
    SELECT DISTINCT e.group_id
    FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id
    WHERE i.batch_id = ANY(%(batch_ids)s)
)
UPDATE trinity.rollout_group g SET state = 'ready', worker_id = NULL
FROM m
WHERE g.id = m.group_id AND g.run_id = %(run_id)s AND g.state IN ('leased', 'trained')

-- name: reopen_preferences
-- Gives back the pairs of batches.
UPDATE trinity.preference p
SET state = CASE WHEN p.state IN ('leased', 'trained') THEN 'ready' ELSE p.state END,
    worker_id = NULL,
    use_count = p.use_count - i.uses
FROM (SELECT pairs.preference_id, count(*) FILTER (WHERE pairs.state = 'committed') AS uses
      FROM (SELECT DISTINCT i.preference_id, b.id, b.state
            FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id
            WHERE i.batch_id = ANY(%(batch_ids)s) AND i.preference_id IS NOT NULL) pairs
      GROUP BY pairs.preference_id) i
WHERE p.id = i.preference_id

-- name: reopen_batches
UPDATE trinity.batch b SET state = 'reopened', included_version = NULL, reopened_at = now()
WHERE b.id = ANY(%(batch_ids)s)
