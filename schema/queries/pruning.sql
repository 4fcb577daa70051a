-- name: pruning_limits
-- The pruning limits of a run, from an age in seconds and the number of versions to keep: the time before which rows
-- may be pruned, and the highest version and last step that may be. -1: no version or step; NULL: no such limit
-- given.
SELECT now() - make_interval(secs => %(seconds)s::double precision) AS before, v.version,
       CASE WHEN v.version IS NOT NULL
            THEN coalesce((SELECT max(p.step) FROM trinity.policy_version p
                           WHERE p.run_id = %(run_id)s AND p.version <= v.version), -1) END AS step
FROM (SELECT CASE WHEN %(keep_versions)s::integer IS NOT NULL
                  THEN coalesce((SELECT trinity.oldest_within(%(run_id)s, p.version, %(keep_versions)s::integer - 1)
                                 FROM trinity.policy_version p
                                 WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL
                                 ORDER BY p.version DESC LIMIT 1), 0) - 1 END AS version) v

-- name: hold_run_archive
-- Locks the run's archive before payloads are pruned or rows returned to processors, so that the archiver waits.
-- Every session locks the archive before payloads.
SELECT a.num_rows FROM trinity.archive a WHERE a.run_id = %(run_id)s ORDER BY a.number FOR NO KEY UPDATE

-- name: hold_oldest_checkpoint
-- Locks (FOR SHARE) the oldest version above 0 from which the trainer can resume. Until the transaction ends, the run
-- can neither go back behind this version nor forget its checkpoint.
SELECT p.version
FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.resume_from IS NOT NULL
ORDER BY p.version
LIMIT 1
FOR SHARE

-- name: oldest_checkpoint
-- The same version as hold_oldest_checkpoint, without a lock: for a dry run.
SELECT min(p.version) AS version
FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.resume_from IS NOT NULL

-- name: prunable_payloads
-- Arrays of the run's own rows in a range of ids that no later step will read. The row must be finished, and neither
-- adopted by another run nor part of a pair that is not dropped. The oldest checkpoint above version 0, behind which
-- a run never goes back, must include every batch for which the row was drawn, except reopened ones. Imported rows
-- adopted by a run are kept, since more epochs may use them; therefore all held-out rows here are of evaluations.
-- `bytes` is NULL if the archive has them.
SELECT e.id, octet_length(p.data)::bigint AS bytes
FROM trinity.experience e
JOIN trinity.payload p ON p.experience_id = e.id
WHERE e.run_id = %(run_id)s AND e.id > %(after)s AND e.id <= %(until)s
  AND e.state IN ('trained', 'dropped', 'expired', 'evaluated') AND e.source_id IS NULL
  AND e.worker_id IS NULL AND p.pruned_at IS NULL
  AND (%(before)s::timestamptz IS NULL OR e.created_at < %(before)s)
  AND (%(version)s::integer IS NULL OR e.version_max <= %(version)s)
  AND NOT EXISTS (SELECT FROM trinity.experience a WHERE a.source_id = e.id)
  AND NOT EXISTS (SELECT FROM trinity.preference q WHERE q.chosen_id = e.id AND q.state <> 'dropped')
  AND NOT EXISTS (SELECT FROM trinity.preference q WHERE q.rejected_id = e.id AND q.state <> 'dropped')
  AND NOT EXISTS (SELECT FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id
                  WHERE i.experience_id = e.id AND b.state <> 'reopened'
                    AND (b.included_version <= %(oldest)s::integer) IS NOT TRUE)
ORDER BY e.id

-- name: hold_groups_of
-- Locks the groups of rows before their arrays are pruned: a run that is adopting some of them commits first, and a
-- later one finds the arrays pruned. Repeat prunable_payloads after this.
SELECT g.id
FROM trinity.rollout_group g
WHERE g.id IN (SELECT e.group_id FROM trinity.experience e WHERE e.id = ANY(%(ids)s))
ORDER BY g.id
FOR NO KEY UPDATE

-- name: prune_payloads
-- Deletes arrays. Their rows stay and record the time. An archived array loses its pointer, so it is an orphan in
-- Lance.
UPDATE trinity.payload p SET data = NULL, archive_row = NULL, pruned_at = now()
WHERE p.experience_id = ANY(%(ids)s) AND p.pruned_at IS NULL

-- name: discount_archived
-- Subtracts these payloads from the archive's counts before they are pruned; the archiver detects orphans by the
-- difference. The bytes are reduced in proportion.
UPDATE trinity.archive a
SET num_rows = a.num_rows - n.rows, num_bytes = a.num_bytes - (a.num_bytes::numeric * n.rows / a.num_rows)::bigint
FROM (SELECT p.archive_number AS number, count(*) AS rows
      FROM trinity.payload p
      WHERE p.experience_id = ANY(%(ids)s) AND p.archive_row IS NOT NULL
      GROUP BY p.archive_number) n
WHERE a.run_id = %(run_id)s AND a.number = n.number AND a.num_rows >= n.rows

-- name: prunable_calls
-- Arrays of calls, for a range of ids of agents that can no longer call and whose attempts became no accepted
-- rollout. A call has the age of its agent's end, and the version of its group.
SELECT a.id, octet_length(c.data)::bigint AS bytes
FROM trinity.agent a
JOIN trinity.rollout_group g ON g.id = a.group_id
JOIN trinity.call c ON c.agent_id = a.id
WHERE a.run_id = %(run_id)s AND a.id > %(after)s AND a.id <= %(until)s AND c.data IS NOT NULL
  AND (a.ended_at IS NOT NULL OR g.completed_at IS NOT NULL)
  AND (%(before)s::timestamptz IS NULL OR coalesce(a.ended_at, g.completed_at) < %(before)s)
  AND (%(version)s::integer IS NULL OR g.version_max <= %(version)s)
ORDER BY a.id

-- name: prune_calls
-- Deletes the arrays of all calls of these agents. The calls stay, with their prompts.
UPDATE trinity.call c SET data = NULL WHERE c.agent_id = ANY(%(ids)s) AND c.data IS NOT NULL

-- name: next_agent
-- Like next_experience, for agents.
SELECT min(a.id) AS id, max(a.id) AS last FROM trinity.agent a WHERE a.id > %(after)s

-- name: prunable_processing
-- Processing records of finished rows in a range of ids; no retry counts these records any longer. OFFSET 0 makes the
-- server look up the records of each row, even if its statistics show few.
SELECT e.id, c.bytes
FROM trinity.experience e
CROSS JOIN LATERAL (
    SELECT pg_column_size(c.*)::bigint AS bytes, c.created_at
    FROM trinity.processing c
    WHERE c.experience_id = e.id
    OFFSET 0
) c
WHERE e.run_id = %(run_id)s AND e.id > %(after)s AND e.id <= %(until)s
  AND e.state IN ('trained', 'dropped', 'expired', 'evaluated')
  AND (%(before)s::timestamptz IS NULL OR c.created_at < %(before)s)
  AND (%(version)s::integer IS NULL OR e.version_max <= %(version)s)

-- name: prune_processing
-- Deletes the records of these rows that prunable_processing found.
DELETE FROM trinity.processing c
WHERE c.experience_id = ANY(%(ids)s) AND (%(before)s::timestamptz IS NULL OR c.created_at < %(before)s)

-- name: prunable_metrics
-- A run's metrics in a range of ids. No checkpoint needs any. Explorers' metrics are recorded by version, not by
-- step.
SELECT m.id, pg_column_size(m.*)::bigint AS bytes
FROM trinity.metric m
WHERE m.run_id = %(run_id)s AND m.id > %(after)s AND m.id <= %(until)s
  AND (%(before)s::timestamptz IS NULL OR m.created_at < %(before)s)
  AND (%(version)s::integer IS NULL
       OR m.step <= CASE m.role WHEN 'explore' THEN %(version)s ELSE %(step)s::integer END)
ORDER BY m.id

-- name: prune_metrics
-- Deletes these metrics.
DELETE FROM trinity.metric m WHERE m.id = ANY(%(ids)s)

-- name: next_metric
-- Like next_experience, for metrics.
SELECT min(m.id) AS id, max(m.id) AS last FROM trinity.metric m WHERE m.id > %(after)s
