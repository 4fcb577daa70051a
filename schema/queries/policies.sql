-- name: latest_version
-- The highest policy version number, NULL before the first. Withdrawn versions and versions that the server lost
-- count, too.
SELECT greatest((SELECT max(p.version) FROM trinity.policy_version p WHERE p.run_id = %(run_id)s),
                (SELECT max(s.last_version) FROM trinity.setback s WHERE s.run_id = %(run_id)s)) AS version

-- name: publish_version
-- Publishes a version. Its worker must have committed the version's last step, and the step must still be committed,
-- so a replaced trainer publishes nothing. Locks the batch of the step: waits for a session that is reopening it. The
-- first version has no steps. The new version descends from the newest that was not withdrawn. Idempotent.
WITH last AS MATERIALIZED (
    SELECT b.id
    FROM trinity.batch b
    WHERE b.run_id = %(run_id)s AND b.step = %(step)s AND b.state = 'committed' AND b.worker_id = %(worker_id)s
    FOR NO KEY UPDATE
)
INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash, weights, skipped)
SELECT %(run_id)s, %(version)s, %(step)s, %(checkpoint)s, %(checkpoint_hash)s, %(weights)s::text,
       coalesce((SELECT %(version)s - 1 - p.version + p.skipped FROM trinity.policy_version p
                 WHERE p.run_id = %(run_id)s AND p.version < %(version)s AND p.withdrawn_at IS NULL
                 ORDER BY p.version DESC LIMIT 1), 0)
WHERE %(version)s = 0 OR EXISTS (SELECT FROM last)
ON CONFLICT (run_id, version) DO NOTHING

-- name: find_version
-- The version, if it is published with this step and these weights; distinguishes a repeated publication from a lost
-- lease.
SELECT p.version FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.version = %(version)s AND p.step = %(step)s
  AND p.checkpoint_hash = %(checkpoint_hash)s

-- name: include_batches
-- Marks every batch committed since the previous version as included in this version.
UPDATE trinity.batch b SET included_version = %(version)s
WHERE b.run_id = %(run_id)s AND b.state = 'committed' AND b.included_version IS NULL AND b.step <= %(step)s

-- name: record_checkpoint
-- Records the checkpoint from which a trainer resumes at a version. No effect on versions that were withdrawn or
-- pruned. Idempotent.
UPDATE trinity.policy_version p SET resume_from = %(resume_from)s, resume_hash = %(resume_hash)s
WHERE p.run_id = %(run_id)s AND p.version = %(version)s AND p.checkpoint IS NOT NULL
  AND (p.resume_hash IS NULL OR p.resume_hash = %(resume_hash)s)

-- name: record_upload
-- Records the object store address of a completely uploaded checkpoint. No effect if it was withdrawn or pruned
-- meanwhile. Idempotent.
UPDATE trinity.policy_version p SET resume_address = %(resume_address)s
WHERE p.run_id = %(run_id)s AND p.version = %(version)s AND p.resume_hash = %(resume_hash)s
  AND p.resume_from IS NOT NULL

-- name: versions_with_checkpoint
-- Versions whose weights were not pruned, newest first.
SELECT p.version, p.step, p.checkpoint, p.checkpoint_hash, p.resume_from, p.resume_hash, p.weights, p.resume_address
FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL
ORDER BY p.version DESC

-- name: newest_version
-- The newest version whose weights were not pruned, and the address from which the run's trainer broadcasts it.
SELECT p.version, p.step, p.checkpoint, p.checkpoint_hash, p.resume_from, p.resume_hash, p.weights, p.resume_address,
       (SELECT w.broadcast_at FROM trinity.worker w
        WHERE w.run_id = p.run_id AND w.role = 'train' AND w.exclusive AND w.stopped_at IS NULL) AS broadcast_at
FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL
ORDER BY p.version DESC
LIMIT 1

-- name: wrong_versions
-- The first version that tokens for training may not be from: the run never published it, or it is farther than the
-- staleness limit from the newest version. A version that was withdrawn may be within the limit.
SELECT v.version, p.version IS NULL AS is_unknown, newest.version AS newest,
       trinity.distance(%(run_id)s, newest.version, v.version) AS staleness
FROM unnest(%(versions)s::integer[]) AS v (version)
CROSS JOIN (SELECT max(q.version) AS version FROM trinity.policy_version q
            WHERE q.run_id = %(run_id)s AND q.withdrawn_at IS NULL) newest
LEFT JOIN trinity.policy_version p ON p.run_id = %(run_id)s AND p.version = v.version
WHERE p.version IS NULL
   OR trinity.distance(%(run_id)s, newest.version, v.version) > %(max_staleness)s::integer
ORDER BY v.version
LIMIT 1

-- name: folders_of_others
-- Weight folders that other runs refer to. A run that started from another run's version refers to the same folder.
SELECT DISTINCT o.checkpoint
FROM trinity.policy_version o
WHERE o.run_id <> %(run_id)s AND o.checkpoint IS NOT NULL

-- name: seconds_since_version
-- Seconds since a version was published.
SELECT extract(epoch FROM clock_timestamp() - p.published_at)::double precision AS seconds
FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.version = %(version)s

-- name: hold_checkpoint
-- Locks (FOR SHARE) weights from which another run starts. Pruning in the first run waits until the start is
-- recorded.
SELECT p.version FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.checkpoint = %(checkpoint)s
FOR SHARE

-- name: lock_checkpoints
-- Locks the run's versions before prune_checkpoints, which then sees every run that has started from one of them.
SELECT p.version FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL AND p.version > 0
ORDER BY p.version
FOR NO KEY UPDATE

-- name: prune_checkpoints
-- Forgets files before they are deleted: all checkpoints except the newest few, and the weights of all versions
-- except the newest few and those with a kept checkpoint. Version 0 is kept, since runs restart from it and are
-- compared with it. Weights are kept if another run started from them or their evaluation is unfinished; those of
-- `saving` too, since its checkpoint is being written. The checkpoint of `uploading` is kept until it is in the
-- object store, and the newest one there until a newer one is, so that a checkpoint can be fetched at any time after
-- the first upload. On request, the weights of every so many steps are kept, and those of the step with the best
-- value of a trainer's or processor's metric; `direction` is 1 if higher is better, else -1. Infinite and NaN values
-- are ignored, and so are those of withdrawn versions of that step. Weights of the versions in `packed` stay in the
-- folder as deltas, and are forgotten in the object store. Also returns which of them need not be complete.
WITH best AS MATERIALIZED (
    SELECT p.version
    FROM trinity.policy_version p
    CROSS JOIN LATERAL (SELECT m.value FROM trinity.metric m
                        WHERE m.run_id = p.run_id AND m.name = %(best)s::text AND m.step = p.step
                          AND m.role IN ('train', 'process')
                          AND NOT EXISTS (SELECT FROM trinity.policy_version w
                                          WHERE w.run_id = p.run_id AND w.version < p.version AND w.step >= p.step
                                            AND w.withdrawn_at > m.created_at)
                        ORDER BY m.id DESC LIMIT 1) m
    WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL AND p.version > 0 AND abs(m.value) < 'Infinity'
    ORDER BY m.value * %(direction)s DESC, p.version DESC
    LIMIT 1
),
kept AS MATERIALIZED (
    SELECT p.version, p.checkpoint, p.resume_from,
           p.version = ANY(%(packed)s::integer[]) AS packs,
           p.resume_from IS NOT NULL
           AND (row_number() OVER (PARTITION BY p.resume_from IS NULL ORDER BY p.version DESC) <= %(keep)s
                OR (p.version = %(uploading)s::integer) IS TRUE
                OR p.resume_address IS NOT NULL
                   AND row_number() OVER (PARTITION BY p.resume_address IS NULL ORDER BY p.version DESC) = 1) AS resumes,
           row_number() OVER (ORDER BY p.version DESC) <= %(keep)s
           OR (p.version = %(saving)s::integer) IS TRUE
           OR (p.step %% %(every)s::integer = 0) IS TRUE
           OR p.version IN (SELECT best.version FROM best)
           OR EXISTS (SELECT FROM trinity.policy_version o WHERE o.checkpoint = p.checkpoint AND o.run_id <> p.run_id)
           OR EXISTS (SELECT FROM trinity.evaluation v
                      WHERE v.run_id = p.run_id AND v.version = p.version AND v.finished_at IS NULL) AS stays
    FROM trinity.policy_version p
    WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL AND p.version > 0
),
changed AS (
    UPDATE trinity.policy_version p
    SET checkpoint = CASE WHEN kept.stays OR kept.packs THEN p.checkpoint END,
        weights = CASE WHEN kept.stays THEN p.weights END, resume_from = NULL, resume_address = NULL
    FROM kept
    WHERE p.run_id = %(run_id)s AND p.version = kept.version AND NOT kept.resumes
      AND (NOT kept.stays AND (NOT kept.packs OR p.weights IS NOT NULL) OR kept.resume_from IS NOT NULL)
    RETURNING p.version, CASE WHEN NOT kept.stays AND NOT kept.packs THEN kept.checkpoint END AS checkpoint,
              kept.resume_from
)
SELECT changed.version, changed.checkpoint, changed.resume_from, false AS packs FROM changed
UNION ALL
SELECT kept.version, NULL, NULL, true FROM kept WHERE kept.packs AND NOT kept.stays AND NOT kept.resumes

-- name: may_pack
-- Locks a version whose weights are about to be removed because its delta is written. No row if a trainer resumes
-- from it, if another run refers to its folder or starts from it, or if it was withdrawn or pruned.
SELECT p.version FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.version = %(version)s AND p.checkpoint = %(checkpoint)s AND p.resume_from IS NULL
  AND p.checkpoint_hash = %(checkpoint_hash)s
  AND NOT EXISTS (SELECT FROM trinity.policy_version o WHERE o.checkpoint = p.checkpoint AND o.run_id <> p.run_id)
FOR NO KEY UPDATE

-- name: relocate_checkpoint
-- Records the new place of a version's files. Idempotent.
UPDATE trinity.policy_version p SET checkpoint = %(checkpoint)s, resume_from = %(resume_from)s
WHERE p.run_id = %(run_id)s AND p.version = %(version)s AND p.checkpoint_hash = %(checkpoint_hash)s
  AND (p.checkpoint, p.resume_from) IS DISTINCT FROM (%(checkpoint)s, %(resume_from)s::text)

-- name: record_weights
-- Records the object store address of a version's completely uploaded files. No effect on versions that were
-- withdrawn or pruned. Idempotent.
UPDATE trinity.policy_version p SET weights = %(weights)s
WHERE p.run_id = %(run_id)s AND p.version = %(version)s AND p.checkpoint_hash = %(checkpoint_hash)s
  AND p.checkpoint IS NOT NULL

-- name: broken_weights
-- Versions whose objects live explorers found missing or damaged, and whose files the trainer has.
SELECT p.version, p.step, p.checkpoint, p.checkpoint_hash, p.resume_from, p.resume_hash, p.weights, p.resume_address
FROM (SELECT DISTINCT w.broken_weights AS weights FROM trinity.worker w
      WHERE w.run_id = %(run_id)s AND w.stopped_at IS NULL AND w.broken_weights IS NOT NULL) w
CROSS JOIN LATERAL (SELECT * FROM trinity.policy_version p
                    WHERE p.run_id = %(run_id)s AND p.weights = w.weights AND p.checkpoint IS NOT NULL) p
ORDER BY p.version
