-- name: latest_version
-- The highest number of a policy version, NULL before the first. Versions that were withdrawn, or that the server
-- lost, count too.
SELECT greatest((SELECT max(p.version) FROM trinity.policy_version p WHERE p.run_id = %(run_id)s),
                (SELECT max(s.last_version) FROM trinity.setback s WHERE s.run_id = %(run_id)s)) AS version

-- name: publish_version
-- Publishes a version. The worker that publishes must have committed the version's last step, and the step must still
-- be committed: so a trainer that was replaced publishes nothing. The lock waits for a session that reopens the step
-- right now. The first version has no steps. Harmless when repeated.
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
-- Records that the checkpoint of the version includes every batch that was committed since the one before.
UPDATE trinity.batch b SET included_version = %(version)s
WHERE b.run_id = %(run_id)s AND b.state = 'committed' AND b.included_version IS NULL AND b.step <= %(step)s

-- name: versions_with_checkpoint
-- Versions whose checkpoint was not pruned, newest first.
SELECT p.version, p.step, p.checkpoint, p.checkpoint_hash
FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL
ORDER BY p.version DESC
LIMIT %(limit)s

-- name: hold_checkpoint
-- Locks a checkpoint from which another run starts. The first run's own pruning waits until the start is on record.
SELECT p.version FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.checkpoint = %(checkpoint)s
FOR SHARE

-- name: lock_checkpoints
-- Locks the versions before prune_checkpoints, which then sees every run that has started from one of them.
SELECT p.version FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL AND p.version > 0
ORDER BY p.version
FOR NO KEY UPDATE

-- name: prune_checkpoints
-- Forgets the checkpoints of all but the newest few versions, before their files are deleted. Version 0 stays, since
-- runs start anew from it and are compared with it. A checkpoint that another run started from stays too, and so does
-- that of a version whose evaluation is not finished.
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
  AND NOT EXISTS (SELECT FROM trinity.evaluation v
                  WHERE v.run_id = p.run_id AND v.version = p.version AND v.finished_at IS NULL)
RETURNING old.version, old.checkpoint

-- name: relocate_checkpoint
-- Records that the files of a version are in another place now. Harmless when repeated.
UPDATE trinity.policy_version p SET checkpoint = %(checkpoint)s
WHERE p.run_id = %(run_id)s AND p.version = %(version)s AND p.checkpoint_hash = %(checkpoint_hash)s
  AND p.checkpoint <> %(checkpoint)s
