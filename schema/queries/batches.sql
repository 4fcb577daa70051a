-- name: hold_trainer
-- Like hold_place; locks the worker FOR SHARE. Also returns the newest version whose checkpoint exists, and the last
-- committed step with its batch. Only this worker changes these, so if they differ from the trainer's own record, the
-- server has lost commits.
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
-- Locks the groups of the rows of batches, including the groups from which rows were adopted, in order of id.
-- Transactions that change rewards lock the same groups first and in the same order, which prevents deadlocks.
SELECT g.id FROM trinity.rollout_group g
WHERE g.id IN (SELECT e.group_id FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id
               WHERE i.batch_id = ANY(%(batch_ids)s) AND i.preference_id IS NULL)
ORDER BY g.id
FOR NO KEY UPDATE

-- name: lock_batch_rows
-- Locks the rows of batches in order of id, after their groups. Excludes rows of pairs, which are neither leased nor
-- used up, and members of the run's own groups, whose settled members change only under the group's lock. ARRAY makes
-- the server look up each row by id.
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
-- Commits a leased batch with its trainer step. No row unless the worker drew it and it is still leased.
UPDATE trinity.batch b SET state = 'committed', committed_at = now()
WHERE b.id = %(batch_id)s AND b.worker_id = %(worker_id)s AND b.state = 'leased'
RETURNING b.run_id

-- name: batch_state
-- State and creation time of a batch; no row if the server has lost it.
SELECT b.state, b.created_at FROM trinity.batch b WHERE b.id = %(batch_id)s

-- name: use_experiences
-- Counts the use of rows. Rows with as many uses as allowed become trained. Adopted rows drawn next to rollout groups
-- stay ready: each use moves them to the next pass.
UPDATE trinity.experience e
SET use_count = e.use_count + 1,
    state = CASE WHEN e.use_count + 1 < %(max_uses)s OR e.source_id IS NOT NULL AND %(keeps_adopted)s
                 THEN 'ready' ELSE 'trained' END::trinity.experience_state,
    worker_id = NULL
FROM trinity.batch_item i
WHERE i.batch_id = %(batch_id)s AND i.preference_id IS NULL AND e.id = i.experience_id AND e.state = 'leased'

-- name: use_groups
-- Sets groups to the use count of their members: ready while uses are left, else trained.
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
-- Counts the use of pairs, locked in order of id.
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
-- Withdraws the versions after :version. They include reopened batches, so explorers must not load them.
UPDATE trinity.policy_version p
SET checkpoint = NULL, weights = NULL, resume_from = NULL, resume_address = NULL, withdrawn_at = now()
WHERE p.run_id = %(run_id)s AND p.version > %(version)s AND p.withdrawn_at IS NULL

-- name: open_batches
-- Locks, in order of id, the leased and committed batches that a version does not include.
SELECT b.id, b.state
FROM trinity.batch b
WHERE b.run_id = %(run_id)s AND b.state IN ('leased', 'committed')
  AND (b.included_version IS NULL OR b.included_version > %(version)s)
ORDER BY b.id
FOR NO KEY UPDATE

-- name: count_pruned_rows
-- Number of pruned rows in these batches. Steps with such rows cannot be repeated.
SELECT count(DISTINCT i.experience_id) AS rows
FROM trinity.batch_item i
JOIN trinity.payload p ON p.experience_id = i.experience_id
WHERE i.batch_id = ANY(%(batch_ids)s) AND p.pruned_at IS NOT NULL

-- name: leased_batch
-- Locks the batch that this worker drew for a step and has not committed. Batches of other workers are never
-- returned.
SELECT b.id
FROM trinity.batch b
WHERE b.run_id = %(run_id)s AND b.step = %(step)s AND b.state = 'leased' AND b.worker_id = %(worker_id)s
FOR NO KEY UPDATE

-- name: reopen_experiences
-- Reopens the rows of batches and subtracts their committed uses, also from rows dropped since then; these stay
-- dropped. Runs under lock_batch_groups and lock_batch_rows.
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
-- Reopens the run's own groups, including adopted ones, with the use counts of their rows; runs after
-- reopen_experiences. Groups with uses left are ready already, and groups that expired since then stay dropped: both
-- lose the committed uses that their rows lose. Excludes groups of pairs, which are not locked, and groups of singly
-- adopted rows, which belong to another run or a data set.
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
-- Reopens the pairs of batches and subtracts their committed uses.
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
-- Marks batches as reopened, so that no version includes them any longer.
UPDATE trinity.batch b SET state = 'reopened', included_version = NULL, reopened_at = now()
WHERE b.id = ANY(%(batch_ids)s)
