-- name: take_turns
-- Lets processors of a run compare rows one after the other, so that of two near duplicates that they judge at the same
-- time one sees the other.
SELECT r.id FROM trinity.run r WHERE r.id = %(run_id)s FOR NO KEY UPDATE

-- name: rows_with_bands
-- Rows with one of these bands that were not dropped since they passed, in the order of their ids.
SELECT m.experience_id AS id, m.bands
FROM trinity.minhash m
JOIN trinity.experience e ON e.id = m.experience_id
WHERE m.bands && %(bands)s::bigint[] AND (e.state <> 'dropped') IS TRUE
ORDER BY m.experience_id

-- name: read_responses
SELECT x.experience_id AS id, x.response FROM trinity.experience_text x WHERE x.experience_id = ANY(%(ids)s)

-- name: write_bands
-- Writes the bands of rows that pass, in place of those that another version of the step wrote. :bands has those of all
-- rows one after the other, as many for each.
INSERT INTO trinity.minhash (experience_id, bands)
SELECT n.id, (%(bands)s::bigint[])[(n.place - 1) * %(each)s::integer + 1 : n.place * %(each)s::integer]
FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS n (id, place)
ON CONFLICT (experience_id) DO UPDATE SET bands = excluded.bands

-- name: kept_rows
-- Those of these rows that are there and not dropped; and whether the clean processor has written its verdict.
SELECT e.id, e.state <> 'raw' AS is_judged FROM trinity.experience e WHERE e.id = ANY(%(ids)s) AND (e.state <> 'dropped') IS TRUE
