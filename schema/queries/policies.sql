-- name: latest_version
-- The highest number of a policy version, NULL before the first; withdrawn ones, and those that the server lost, count.
SELECT greatest((SELECT max(p.version) FROM trinity.policy_version p WHERE p.run_id = %(run_id)s),
                (SELECT max(s.last_version) FROM trinity.setback s WHERE s.run_id = %(run_id)s)) AS version

-- name: publish_version
-- The last step must still be committed by the worker that publishes: a trainer that was replaced meanwhile
-- publishes nothing. The lock makes it wait for whoever reopens that step right now. The first version has no
-- steps. Harmless when repeated.
WITH last AS MATERIALIZED (
    SELECT b.id
    FROM trinity.batch b
    WHERE b.run_id = %(run_id)s AND b.step = %(step)s AND b.state = 'committed' AND b.worker_id = %(worker_id)s
    FOR NO KEY UPDATE
)
INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)
SELECT %(run_id)s, %(version)s, %(step)s, %(checkpoint)s, %(checkpoint_hash)s
WHERE %(version)s = 0 OR EXISTS (SELECT FROM last)
ON CONFLICT (run_id, version) DO NOTHING

-- name: find_version
SELECT p.version FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.version = %(version)s AND p.step = %(step)s
  AND p.checkpoint_hash = %(checkpoint_hash)s

-- name: include_batches
-- By this the version's checkpoint includes every batch that was committed since the one before.
UPDATE trinity.batch b SET included_version = %(version)s
WHERE b.run_id = %(run_id)s AND b.state = 'committed' AND b.included_version IS NULL AND b.step <= %(step)s

-- name: versions_with_checkpoint
-- Newest first.
SELECT p.version, p.step, p.checkpoint, p.checkpoint_hash
FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL
ORDER BY p.version DESC
LIMIT %(limit)s

-- name: hold_checkpoint
-- Another run starts from this checkpoint. Until that is on record, the lock makes the run's own pruning wait.
SELECT p.version FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.checkpoint = %(checkpoint)s
FOR SHARE

-- name: lock_checkpoints
-- Before prune_checkpoints, which then sees every run that has started from one of these.
SELECT p.version FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL AND p.version > 0
ORDER BY p.version
FOR NO KEY UPDATE

-- name: prune_checkpoints
-- Forget the checkpoints of all but the newest few versions, before their files are deleted. Version 0 stays:
-- it is where a run starts anew, and what it is compared with. So does one that another run started from.
WITH old AS (
    SELECT p.version, p.checkpoint
    FROM trinity.policy_version p
    WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL AND p.version > 0
    ORDER BY p.version DESC
    OFFSET %(keep)s
)
UPDATE trinity.policy_version p SET checkpoint = NULL
FROM old
WHERE p.run_id = %(run_id)s AND p.version = old.version
  AND NOT EXISTS (SELECT FROM trinity.policy_version o WHERE o.checkpoint = old.checkpoint AND o.run_id <> p.run_id)
RETURNING old.version, old.checkpoint

-- name: relocate_checkpoint
-- The files of a version are in another place by now. Harmless when repeated, and where they are where they were.
UPDATE trinity.policy_version p SET checkpoint = %(checkpoint)s
WHERE p.run_id = %(run_id)s AND p.version = %(version)s AND p.checkpoint_hash = %(checkpoint_hash)s
  AND p.checkpoint <> %(checkpoint)s
