-- name: adopt_version
-- Makes a checkpoint that the server has lost a version of the run again, with a new number. Its steps have no
-- batches in the store. Idempotent.
INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash, resume_from, resume_hash,
                                   skipped)
SELECT %(run_id)s, %(version)s, %(step)s, %(checkpoint)s, %(checkpoint_hash)s, %(resume_from)s, %(resume_hash)s,
       (SELECT %(version)s - 1 - p.version + p.skipped FROM trinity.policy_version p
        WHERE p.run_id = %(run_id)s AND p.version < %(version)s AND p.withdrawn_at IS NULL
        ORDER BY p.version DESC LIMIT 1)
ON CONFLICT (run_id, version) DO NOTHING

-- name: record_setback
-- Records the server's losses, once for each trainer that detects them.
INSERT INTO trinity.setback
    (run_id, worker_id, known_version, known_step, last_step, num_rows, first_version, last_version, resumed_version)
SELECT %(run_id)s, %(worker_id)s, %(known_version)s, %(known_step)s, %(last_step)s, %(num_rows)s, %(first_version)s,
       %(last_version)s, %(resumed_version)s
WHERE NOT EXISTS (SELECT FROM trinity.setback s
                  WHERE s.run_id = %(run_id)s AND s.worker_id = %(worker_id)s AND s.known_step = %(known_step)s
                    AND s.last_step = %(last_step)s AND s.last_version IS NOT DISTINCT FROM %(last_version)s::integer)

-- name: setback_of_version
-- The setback in which a version was lost; the newest if there are several.
SELECT s.id, s.known_version, s.adopted_version
FROM trinity.setback s
WHERE s.run_id = %(run_id)s AND %(version)s BETWEEN s.first_version AND s.last_version
ORDER BY s.id DESC
LIMIT 1

-- name: adopt_lost_version
-- Records that the run continues from a lost version after all, with another number.
UPDATE trinity.setback s SET adopted_version = %(lost_version)s, resumed_version = %(version)s WHERE s.id = %(id)s
