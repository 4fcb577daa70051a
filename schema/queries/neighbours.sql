-- name: take_turns
-- Locks the run's row, so that its processors compare rows one after the other: of two near duplicates judged at the
-- same time, one sees the other.
SELECT r.id FROM trinity.run r WHERE r.id = %(run_id)s FOR NO KEY UPDATE

-- name: rows_with_bands
-- Rows with one of these bands that have not been dropped since they passed, in order of id.
SELECT m.experience_id AS id, m.bands
FROM trinity.minhash m
JOIN trinity.experience e ON e.id = m.experience_id
WHERE m.bands && %(bands)s::bigint[] AND (e.state <> 'dropped') IS TRUE
ORDER BY m.experience_id

-- name: read_responses
-- Responses of these rows; no row for deleted ones.
SELECT x.experience_id AS id, x.response FROM trinity.experience_text x WHERE x.experience_id = ANY(%(ids)s)

-- name: write_bands
-- Writes the bands of passing rows, replacing those of another version of the step. :bands concatenates the bands of
-- all rows, the same number for each.
INSERT INTO trinity.minhash (experience_id, bands)
SELECT n.id, (%(bands)s::bigint[])[(n.place - 1) * %(each)s::integer + 1 : n.place * %(each)s::integer]
FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS n (id, place)
ON CONFLICT (experience_id) DO UPDATE SET bands = excluded.bands

-- name: kept_rows
-- Which of these rows exist and are not dropped, and whether the clean processor has judged them.
SELECT e.id, e.state <> 'raw' AS is_judged FROM trinity.experience e WHERE e.id = ANY(%(ids)s) AND (e.state <> 'dropped') IS TRUE
