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

-- name: lock_batch_groups
-- Locks the groups of the rows of batches, also the groups that adopted rows come from. Transactions that change
-- rewards lock groups first as well, and in the same order, so that no two sessions wait for each other.
SELECT g.id FROM trinity.rollout_group g
WHERE g.id IN (SELECT e.group_id FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id
               WHERE i.batch_id = ANY(%(batch_ids)s) AND i.preference_id IS NULL)
ORDER BY g.id
FOR NO KEY UPDATE

-- name: lock_batch_rows
-- Locks the rows of batches, after their groups. Rows of pairs are left out: they are neither leased nor used up. So are
-- members of the run's own groups: a transaction that changes a settled member holds the lock of its group.
-- ARRAY has the server look up each row by its id.
SELECT e.id FROM trinity.experience e
WHERE e.id = ANY(ARRAY(SELECT i.experience_id FROM trinity.batch_item i
                       WHERE i.batch_id = ANY(%(batch_ids)s) AND i.preference_id IS NULL))
  AND (e.group_id IS NULL OR e.source_id IS NOT NULL)
ORDER BY e.id
FOR NO KEY UPDATE

-- name: read_batch
-- The rows of a batch with the numbers recorded for them and their arrays, in the order of the draw.
SELECT i.ordinal, i.experience_id, i.preference_id, e.group_id, i.reward, i.advantage, i.weight, i.probability,
       i.staleness, coalesce(pair.margin, 0) AS margin, p.codec, p.num_tokens, p.data, p.archive_row, p.pruned_at
FROM trinity.batch_item i
JOIN trinity.experience e ON e.id = i.experience_id
LEFT JOIN trinity.preference pair ON pair.id = i.preference_id
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
SET state = CASE WHEN m.uses < %(max_uses)s THEN 'ready' ELSE 'trained' END::trinity.group_state, worker_id = NULL,
    use_count = m.uses
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
UPDATE trinity.policy_version p
SET checkpoint = NULL, weights = NULL, resume_from = NULL, resume_address = NULL, withdrawn_at = now()
WHERE p.run_id = %(run_id)s AND p.version > %(version)s AND p.withdrawn_at IS NULL

-- name: open_batches
-- Batches that a version does not include.
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
-- Gives back the run's own groups, also adopted ones, and takes their use count from their rows. It comes after
-- reopen_experiences. A group that has uses left is ready already, and a group that expired since stays dropped: both lose
-- the committed uses that their rows lose. Two kinds of groups stay as they are: those of pairs, which are not locked, and
-- those of rows that were adopted singly, which belong to another run or to a data set.
WITH m AS MATERIALIZED (
    SELECT e.group_id, max(e.use_count) AS uses
    FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id
    WHERE i.batch_id = ANY(%(batch_ids)s) AND i.preference_id IS NULL
    GROUP BY e.group_id
)
UPDATE trinity.rollout_group g
SET state = CASE WHEN g.state IN ('leased', 'trained') THEN 'ready' ELSE g.state END, worker_id = NULL, use_count = m.uses
FROM m
WHERE g.id = m.group_id AND g.run_id = %(run_id)s

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
