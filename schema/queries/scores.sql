-- name: write_scores
-- Writes the scores of a model for rows, replacing earlier scores of the same name.
INSERT INTO trinity.score (experience_id, name, digest, data)
SELECT n.id, n.name, n.digest, n.data
FROM unnest(%(ids)s::bigint[], %(names)s::text[], %(digests)s::text[], %(data)s::bytea[]) AS n (id, name, digest, data)
ON CONFLICT (experience_id, name) DO UPDATE
SET digest = excluded.digest, data = excluded.data, created_at = excluded.created_at

-- name: read_scores
-- The scores of rows under a name. Writers ensure that all of them are from one model.
SELECT s.experience_id, s.data
FROM trinity.score s
WHERE s.experience_id = ANY(%(ids)s) AND s.name = %(name)s

-- name: unscored_rows
-- Adopted rows, drawable or held out, that this model has not scored, by id after :after.
SELECT e.id
FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.is_offered AND e.source_id IS NOT NULL AND e.prompt_length IS NOT NULL
  AND e.id > %(after)s
  AND NOT EXISTS (SELECT FROM trinity.score s
                  WHERE s.experience_id = e.id AND s.name = %(name)s AND s.digest = %(digest)s)
ORDER BY e.id
LIMIT %(limit)s

-- name: count_unscored
-- Number of rows in unscored_rows, over all ids.
SELECT count(*) AS rows
FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.is_offered AND e.source_id IS NOT NULL AND e.prompt_length IS NOT NULL
  AND NOT EXISTS (SELECT FROM trinity.score s
                  WHERE s.experience_id = e.id AND s.name = %(name)s AND s.digest = %(digest)s)
