-- name: read_payloads
-- Payloads as stored in the database. Archived bytes are NULL here: `archive_row` is their row in the Lance table.
-- Pruned bytes no longer exist.
SELECT p.experience_id, p.codec, p.num_tokens, p.data, p.archive_row, p.pruned_at
FROM trinity.payload p
WHERE p.experience_id = ANY(%(ids)s)

-- name: rows_to_archive
-- Payloads whose bytes are in Postgres, with run, texts, and current reward and policy versions. An adopted row has
-- its source's text.
SELECT p.experience_id, p.codec, p.num_tokens, p.data, r.name AS run, x.prompt, x.response, e.reward,
       e.version_min, e.version_max
FROM trinity.payload p
JOIN trinity.experience e ON e.id = p.experience_id
JOIN trinity.run r ON r.id = e.run_id
LEFT JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
WHERE p.experience_id = ANY(%(ids)s) AND p.data IS NOT NULL

-- name: make_archive
-- Creates this store's archive of a run. A run has one archive per store in which it was archived: this store's
-- archive, and the archives of stores from which this one was copied. The table's name begins with the run's name,
-- restricted to letters that Lance accepts. It is unique across stores, and across the runs of this store.
INSERT INTO trinity.archive (run_id, number, store, name)
SELECT r.id, (SELECT coalesce(max(a.number) + 1, 0) FROM trinity.archive a WHERE a.run_id = r.id), %(store)s::uuid,
       format('%%s_%%s_%%s_%%s',
              coalesce(nullif(trim('-' FROM regexp_replace(left(r.name, 60), '[^A-Za-z0-9_]+', '-', 'g')), ''), 'run'),
              r.id, (extract(epoch FROM r.created_at) * 1000000)::bigint,
              replace(%(store)s::uuid::text, '-', ''))
FROM trinity.run r
WHERE r.id = %(run_id)s
ON CONFLICT DO NOTHING

-- name: claim_archive
-- Makes a worker the only writer of this store's archive of a run, if it has no writer, or the writer is this
-- worker or gone. Each claim increments the attempt, so late writes of an earlier writer change nothing. No row:
-- another worker is the writer.
UPDATE trinity.archive a SET worker_id = %(worker_id)s, attempt = a.attempt + 1
WHERE a.run_id = %(run_id)s AND a.store = %(store)s
  AND (a.worker_id IS NULL OR a.worker_id = %(worker_id)s
       OR EXISTS (SELECT FROM trinity.worker w
                  WHERE w.id = a.worker_id
                    AND (w.stopped_at IS NOT NULL
                         OR NOT trinity.is_alive(w.heartbeat_at, %(lease_seconds)s))))
RETURNING a.number, a.name, a.attempt, a.num_rows

-- name: hold_archive
-- Locks the archive: no other worker can become the writer until this transaction ends. It also waits for the
-- worker's own transactions with unknown outcome. No row if another worker is the writer.
SELECT a.num_rows FROM trinity.archive a
WHERE a.run_id = %(run_id)s AND a.store = %(store)s AND a.worker_id = %(worker_id)s AND a.attempt = %(attempt)s
FOR NO KEY UPDATE

-- name: archivable_payloads
-- Payloads that may be archived, by id: those of finished rows and, in a finished run, those of ready and scored
-- rows, which no step will draw. Rows of evaluations stay in Postgres. Sizes come from row headers; the bytes are not
-- read.
SELECT e.id, octet_length(p.data) AS bytes
FROM trinity.experience e
JOIN trinity.payload p ON p.experience_id = e.id
WHERE e.run_id = %(run_id)s AND e.id >= %(floor)s AND p.data IS NOT NULL AND (e.source_id IS NOT NULL OR NOT e.held_out)
  AND (e.state IN ('trained', 'expired', 'dropped')
       OR (e.state IN ('scored', 'ready') AND (SELECT r.state FROM trinity.run r WHERE r.id = %(run_id)s) = 'finished'))
ORDER BY e.id
LIMIT %(limit)s

-- name: archive_floor
-- The lowest id, from the previous floor, of a row whose payload is in Postgres or still to be written. It skips
-- evaluation rows, and adopted rows drawn next to rollout groups: these finish with the run, and then all rows are
-- examined again.
SELECT e.id
FROM trinity.experience e
LEFT JOIN trinity.payload p ON p.experience_id = e.id
WHERE e.run_id = %(run_id)s AND e.id >= %(floor)s AND (e.source_id IS NOT NULL OR NOT e.held_out)
  AND (p.data IS NOT NULL OR (p.experience_id IS NULL AND e.state NOT IN ('trained', 'expired', 'dropped')))
  AND (e.source_id IS NULL
       OR (SELECT r.config -> 'algorithm' ? 'expert_rows' FROM trinity.run r WHERE r.id = %(run_id)s) IS NOT TRUE)
ORDER BY e.id
LIMIT 1

-- name: archive_payloads
-- Deletes bytes that were written to Lance, flushed and verified; from now on they are read there. Skips payloads
-- that are archived already, and those of rows returned to the processors since they were chosen.
UPDATE trinity.payload p SET data = NULL, archive_row = n.archive_row, archive_number = %(number)s
FROM unnest(%(ids)s::bigint[], %(archive_rows)s::bigint[]) AS n (id, archive_row)
JOIN trinity.experience e ON e.id = n.id AND e.state NOT IN ('raw', 'clean')
WHERE p.experience_id = n.id AND p.data IS NOT NULL

-- name: count_archived
-- Adds archived rows and bytes to the archive's counts.
UPDATE trinity.archive a SET num_rows = a.num_rows + %(rows)s, num_bytes = a.num_bytes + %(bytes)s
WHERE a.run_id = %(run_id)s AND a.number = %(number)s

-- name: archive_orphans
-- Rows of one Lance table to which no payload points.
SELECT n.archive_row
FROM unnest(%(ids)s::bigint[], %(archive_rows)s::bigint[]) AS n (id, archive_row)
LEFT JOIN trinity.payload p ON p.experience_id = n.id AND p.archive_row = n.archive_row
                            AND p.archive_number = %(number)s
WHERE p.experience_id IS NULL

-- name: archived_payloads
-- Which Lance table contains which of these payloads; NULL if the store does not know the table.
SELECT a.name, array_agg(e.id ORDER BY e.id) AS ids
FROM trinity.payload p
JOIN trinity.experience e ON e.id = p.experience_id
LEFT JOIN trinity.archive a ON a.run_id = e.run_id AND a.number = p.archive_number
WHERE p.experience_id = ANY(%(ids)s)
GROUP BY a.name

-- name: archives_of_run
-- The Lance tables of a run, and whether this store writes them.
SELECT a.name, a.store = %(store)s AS is_own FROM trinity.archive a WHERE a.run_id = %(run_id)s ORDER BY a.number
