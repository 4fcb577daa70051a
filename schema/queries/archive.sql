-- name: claim_archive
-- Become the one writer of a run's archive: nobody is, this worker is, or whoever was is gone. The attempt rises with
-- each claim, so that nothing which an earlier holder says later counts. No row: somebody else writes.
INSERT INTO trinity.archive AS a (run_id, worker_id, attempt) VALUES (%(run_id)s, %(worker_id)s, 1)
ON CONFLICT (run_id) DO UPDATE SET worker_id = excluded.worker_id, attempt = a.attempt + 1
WHERE a.worker_id IS NULL OR a.worker_id = excluded.worker_id
   OR EXISTS (SELECT FROM trinity.worker w
              WHERE w.id = a.worker_id
                AND (w.stopped_at IS NOT NULL
                     OR NOT trinity.is_alive(w.heartbeat_at, %(lease_seconds)s)))
RETURNING a.attempt, a.num_rows

-- name: hold_archive
-- Nobody becomes the writer before this transaction ends, and none of the worker's own transactions of which it heard
-- no end is still under way. No row where somebody did.
SELECT a.num_rows FROM trinity.archive a
WHERE a.run_id = %(run_id)s AND a.worker_id = %(worker_id)s AND a.attempt = %(attempt)s
FOR NO KEY UPDATE

-- name: archivable_payloads
-- Payloads of rows that are done with, by id, and those of a finished run that may still be drawn, or are scored and
-- wait for the rest of their group: nobody will draw them.
-- The sizes stand in the rows: the bytes are not read.
SELECT e.id, octet_length(p.data) AS bytes
FROM trinity.experience e
JOIN trinity.payload p ON p.experience_id = e.id
WHERE e.run_id = %(run_id)s AND e.id >= %(floor)s AND p.data IS NOT NULL
  AND (e.state IN ('trained', 'expired', 'dropped')
       OR (e.state IN ('scored', 'ready') AND (SELECT r.state FROM trinity.run r WHERE r.id = %(run_id)s) = 'finished'))
ORDER BY e.id
LIMIT %(limit)s

-- name: archive_floor
-- The lowest id, from the last such on, of a row whose payload is in Postgres or yet to come. Adopted rows beside
-- rollout groups are not waited for: they are done with when the run is, and then all rows are looked at again.
SELECT e.id
FROM trinity.experience e
LEFT JOIN trinity.payload p ON p.experience_id = e.id
WHERE e.run_id = %(run_id)s AND e.id >= %(floor)s
  AND (p.data IS NOT NULL OR (p.experience_id IS NULL AND e.state NOT IN ('trained', 'expired', 'dropped')))
  AND (e.source_id IS NULL
       OR (SELECT r.config -> 'algorithm' ? 'expert_rows' FROM trinity.run r WHERE r.id = %(run_id)s) IS NOT TRUE)
ORDER BY e.id
LIMIT 1

-- name: archive_payloads
-- The bytes are in Lance, flushed and read back: from now on they are read there. What is there already stays so.
UPDATE trinity.payload p SET data = NULL, archive_row = n.archive_row
FROM unnest(%(ids)s::bigint[], %(archive_rows)s::bigint[]) AS n (id, archive_row)
WHERE p.experience_id = n.id AND p.data IS NOT NULL

-- name: count_archived
UPDATE trinity.archive a SET num_rows = a.num_rows + %(rows)s, num_bytes = a.num_bytes + %(bytes)s
WHERE a.run_id = %(run_id)s

-- name: archive_orphans
-- Rows in Lance to which no payload points.
SELECT n.archive_row
FROM unnest(%(ids)s::bigint[], %(archive_rows)s::bigint[]) AS n (id, archive_row)
LEFT JOIN trinity.payload p ON p.experience_id = n.id AND p.archive_row = n.archive_row
WHERE p.experience_id IS NULL

-- name: archived_runs
-- Whose archive has which of these rows.
SELECT r.name, r.id, r.created_at, e.ids
FROM (SELECT e.run_id, array_agg(e.id ORDER BY e.id) AS ids
      FROM trinity.experience e
      WHERE e.id = ANY(%(ids)s)
      GROUP BY e.run_id) e
JOIN trinity.run r ON r.id = e.run_id
