-- name: count_words
-- How many words a search has; 0: it finds nothing.
SELECT numnode(websearch_to_tsquery('simple', %(words)s)) AS words

-- name: search_words
-- Rows whose prompt or response has the words, the best first, among those of :run, or of all runs if that is NULL. It
-- reads each text, for which there is no index: that would cost every write. Of a longer text it reads the first 200,000
-- characters, as more words do not fit a tsvector. Of one with more than 250,000 bytes it reads :characters. Words with
-- hyphens stand in a tsvector as a whole and in parts, so 60,000 characters, of four bytes at most, fit in any case.
-- Adopted rows share the text of their original, and only a search of their own run finds them.
SELECT e.id AS experience, r.name AS run, e.state::text AS state, e.version_max AS version, e.reward,
       ts_rank_cd(d.document, q.wanted)::float8 AS score, x.prompt, x.response
FROM websearch_to_tsquery('simple', %(words)s) AS q (wanted)
CROSS JOIN trinity.experience e
JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
JOIN trinity.run r ON r.id = e.run_id
CROSS JOIN LATERAL left(x.prompt || ' ' || x.response, 200000) AS t (beginning)
CROSS JOIN LATERAL to_tsvector('simple', CASE WHEN octet_length(t.beginning) > 250000
                                              THEN left(t.beginning, %(characters)s::integer)
                                              ELSE t.beginning END) AS d (document)
WHERE (e.run_id = %(run_id)s::bigint OR %(run_id)s::bigint IS NULL AND e.source_id IS NULL) AND d.document @@ q.wanted
ORDER BY score DESC, e.id DESC
LIMIT %(limit)s

-- name: response_of
-- The response of a row, which an adopted row shares with its original.
SELECT x.response
FROM trinity.experience e
JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
WHERE e.id = %(id)s

-- name: searched_after
-- The next rows that a search looks at after the id :after, by id, with their responses.
SELECT e.id, x.response
FROM trinity.experience e
JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
WHERE (e.run_id = %(run_id)s::bigint OR %(run_id)s::bigint IS NULL AND e.source_id IS NULL) AND e.id > %(after)s
ORDER BY e.id
LIMIT %(limit)s

-- name: read_found
-- Rows that a search has found, as search_words has them.
SELECT e.id AS experience, r.name AS run, e.state::text AS state, e.version_max AS version, e.reward, x.prompt, x.response
FROM trinity.experience e
JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
JOIN trinity.run r ON r.id = e.run_id
WHERE e.id = ANY(%(ids)s)
